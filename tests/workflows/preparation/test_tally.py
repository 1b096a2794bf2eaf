import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.corpus import whole
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation import tally
from txlcli.workflows.preparation.tally import Job, Tokenizer, count_lines, count_words

BLANKS = "ab \n\r\t\x0b\x1c\x85\u00a0\u1680\u2003\u2028\u202f\u205f\u3000\u00e9\u2014\u65e5"


@given(st.text(BLANKS))
def test_words_are_counted_as_split_does(text):
    assert count_words(text.encode()) == len(text.split())


@given(st.text("a\r\n"))
def test_lines_are_counted_as_universal_newlines_do(text):
    read = io.TextIOWrapper(io.BytesIO(text.encode()), newline=None).read()
    assert count_lines(text.encode()) == read.count("\n")


def run(tmp_path: Path, tokenizer: Tokenizer, data: bytes):
    (tmp_path / "text").write_bytes(data)
    found = tokenizer(Job(whole(tmp_path / "text"), tmp_path / "ids"))
    return found, np.fromfile(found.path, dtype=found.kind).tolist()


@given(st.binary(min_size=1))
def test_bytes_are_numbered_as_first_seen(tmp_path_factory, data):
    found, ids = run(tmp_path_factory.mktemp("tally"), Tokenizer("byte"), data)
    assert found.symbols == [chr(value) for value in dict.fromkeys(data)]
    assert bytes(ord(found.symbols[number]) for number in ids) == data
    assert dict(zip(found.symbols, found.counts.tolist(), strict=True)) == Counter(map(chr, data))


def test_bytes_that_come_late_are_in_order_too(tmp_path, monkeypatch):
    monkeypatch.setattr(tally, "FIRST_LOOK", 3)
    found, _ = run(tmp_path, Tokenizer("byte"), b"aaaa" + bytes([9, 7, 9, 8]))
    assert found.symbols == ["a", "\x09", "\x07", "\x08"]


@given(st.text("ab\n\u00e9\u3042\U0001f600", min_size=1))
def test_characters_are_numbered_as_first_seen(tmp_path_factory, text):
    found, ids = run(tmp_path_factory.mktemp("tally"), Tokenizer("char"), text.encode())
    assert found.symbols == list(dict.fromkeys(text))
    assert "".join(found.symbols[number] for number in ids) == text
    assert dict(zip(found.symbols, found.counts.tolist(), strict=True)) == Counter(text)


def test_words_are_numbered_as_first_seen(tmp_path):
    found, ids = run(tmp_path, Tokenizer("word", "<eos>", lower_case=True), b" B a\nA c")
    assert found.symbols == ["b", "a", "<eos>", "c"]
    assert ids == [0, 1, 2, 1, 3, 2]
    assert (found.counts.tolist(), found.words, found.lines, found.bytes) == ([1, 2, 2, 1], 4, 2, 8)


def test_without_a_boundary_every_id_is_a_word(tmp_path):
    found, ids = run(tmp_path, Tokenizer("word"), b" B a\nA c\n\n")
    assert found.symbols == ["B", "a", "A", "c"]
    assert ids == [0, 1, 2, 3]
    assert (found.words, found.lines) == (4, 3)


def test_bad_utf8_names_file_and_byte(tmp_path):
    with pytest.raises(
        CorpusInputError, match=r"text: byte 2 is not valid UTF-8; repair the file or take --tokenizer byte"
    ):
        run(tmp_path, Tokenizer("char"), b"ab\xffc")
