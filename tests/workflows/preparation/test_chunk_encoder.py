import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txlcli.corpora.locate import whole
from txlcli.data.vocabulary import Vocab, count_lines, count_words
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.chunks import ChunkEncoder, join_files

BLANKS = "ab \n\r\t\x0b\x1c\x85\u00a0\u1680\u2003\u2028\u202f\u205f\u3000\u00e9\u2014\u65e5"


@given(st.text(BLANKS))
def test_words_are_counted_like_str_split(text):
    assert count_words(text.encode(), 7, "byte", has_boundary=False)[0] == len(text.split())


@given(st.text("a\r\n"))
def test_lines_are_counted_like_universal_newlines(text):
    read = io.TextIOWrapper(io.BytesIO(text.encode()), newline=None).read()
    assert count_lines(text.encode()) == read.count("\n")


def run(tmp_path: Path, encoder: ChunkEncoder, data: bytes):
    (tmp_path / "text").write_bytes(data)
    pieces = join_files(whole(tmp_path / "text"), close_last=encoder.boundary is not None)
    encoded = encoder((pieces, tmp_path / "ids", []))
    encoded = replace(encoded, symbols=encoded.symbols.to_pylist())
    return encoded, np.load(encoded.path).tolist()


@given(st.binary(min_size=1))
@example(b"a" * 70_000 + bytes([9, 7, 9, 8]))
def test_bytes_are_numbered_in_first_seen_order(tmp_path_factory, data):
    encoded, ids = run(tmp_path_factory.mktemp("chunk"), ChunkEncoder("byte"), data)
    assert encoded.symbols == [chr(value) for value in dict.fromkeys(data)]
    assert bytes(ord(encoded.symbols[number]) for number in ids) == data
    assert dict(zip(encoded.symbols, encoded.counts.tolist(), strict=True)) == Counter(map(chr, data))


@given(st.text("ab\n\u00e9\u3042\U0001f600", min_size=1))
def test_characters_are_numbered_in_first_seen_order(tmp_path_factory, text):
    encoded, ids = run(tmp_path_factory.mktemp("chunk"), ChunkEncoder("char"), text.encode())
    assert encoded.symbols == list(dict.fromkeys(text))
    assert "".join(encoded.symbols[number] for number in ids) == text
    assert dict(zip(encoded.symbols, encoded.counts.tolist(), strict=True)) == Counter(text)


@given(st.text(BLANKS, min_size=1), st.booleans())
def test_words_are_those_of_the_vocabulary(tmp_path_factory, text, closed):
    boundary = "<eos>" if closed else None
    encoded, ids = run(tmp_path_factory.mktemp("chunk"), ChunkEncoder("word", boundary), text.encode())
    rules = Vocab("word", ["<eos>"] if closed else [], boundary=0 if closed else None)
    lacks_line_end = closed and not text.encode().isspace() and not text.endswith(("\n", "\r"))
    words = rules.split_words(text + "\n" * lacks_line_end)
    assert [encoded.symbols[number] for number in ids] == words
    assert encoded.symbols == list(dict.fromkeys(words))
    assert dict(zip(encoded.symbols, encoded.counts.tolist(), strict=True)) == Counter(words)


def test_every_blank_of_python_separates_words(tmp_path):
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    text = "".join(f"a{character}b" for character in characters)
    encoded, ids = run(tmp_path, ChunkEncoder("word"), text.encode())
    assert [encoded.symbols[number] for number in ids] == text.replace("\r", "\n").split()


@pytest.mark.parametrize(
    ("boundary", "text", "symbols", "ids", "words", "lines"),
    [
        ("<eos>", b" B a\nA c", ["b", "a", "<eos>", "c"], [0, 1, 2, 1, 3, 2], 4, 2),
        (None, b" B a\nA c\n\n", ["b", "a", "c"], [0, 1, 1, 2], 4, 3),  # every id is a word
    ],
)
def test_words_are_numbered_in_first_seen_order(tmp_path, boundary, text, symbols, ids, words, lines):
    encoded, numbers = run(tmp_path, ChunkEncoder("word", boundary, lower_case=True), text)
    assert (encoded.symbols, numbers, encoded.counts.tolist()) == (symbols, ids, np.bincount(ids).tolist())
    assert (encoded.words, encoded.lines, encoded.bytes) == (words, lines, len(text) + (text[-1:] != b"\n"))


def test_an_error_about_invalid_utf8_names_the_file_and_the_byte(tmp_path):
    with pytest.raises(
        CorpusInputError, match=r"text: byte 2 is not valid UTF-8; give its `encoding`, such as cp1252, repair the file"
    ):
        run(tmp_path, ChunkEncoder("char"), b"ab\xffc")
