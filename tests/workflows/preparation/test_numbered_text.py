import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txlcli.corpora.locate import whole
from txlcli.data.vocabulary import Vocab, count_words
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.numbered_text import NumberedText, join_files, number_chunk, read_chunk
from txlcli.workflows.reporter import Reporter

BLANKS = "ab \n\r\t\x0b\x1c\x85\u00a0\u1680\u2003\u2028\u202f\u205f\u3000\u00e9\u2014\u65e5"


@given(st.text(BLANKS))
def test_words_are_counted_like_str_split(text):
    assert count_words(text.encode(), 7, "byte", has_boundary=False)[0] == len(text.split())


@given(st.text("a\r\n"))
def test_lines_are_counted_like_universal_newlines(text):
    read = io.TextIOWrapper(io.BytesIO(text.encode()), newline=None).read()
    assert count_words(text.encode(), 7, "byte", has_boundary=False)[1] == read.count("\n")


def numbered(vocab: Vocab, text: str | bytes):
    symbols, numbers, sizes = vocab.number([text])
    assert symbols == list(dict.fromkeys(symbols))
    assert sizes == [len(numbers)]
    return symbols, [symbols[number] for number in numbers]


@given(st.binary(min_size=1))
@example(b"a" * 70_000 + bytes([9, 7, 9, 8]))
def test_bytes_are_numbered_in_first_seen_order(data):
    assert numbered(Vocab("byte"), data) == ([chr(value) for value in dict.fromkeys(data)], list(map(chr, data)))


@given(st.text("ab\n\u00e9\u3042\U0001f600", min_size=1))
def test_characters_are_numbered_in_first_seen_order(text):
    assert numbered(Vocab("char"), text) == (list(dict.fromkeys(text)), list(text))


@given(st.text(BLANKS), st.booleans(), st.booleans())
@example("", False, False)
def test_words_are_those_of_str_split_with_the_boundary_at_each_line_end(text, closed, lower_case):
    rules = Vocab("word", ["<eos>"] * closed, boundary=0 if closed else None, lower_case=lower_case)
    read = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", newline=None).read()
    words = (read.lower() if lower_case else read).replace("\n", " <eos> " if closed else " ").split()
    assert numbered(rules, text) == (list(dict.fromkeys(words)), words)


def test_every_blank_of_python_separates_words():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    text = "".join(f"a{character}b" for character in characters)
    assert numbered(Vocab("word"), text)[1] == text.replace("\r", "\n").split()


def read(tmp_path: Path, vocab: Vocab, data: bytes, starts=(), *, sentences=False):
    """Return a numbered chunk, and the ids that a vocabulary gives it, -1 for unknown symbols."""
    (tmp_path / "text").write_bytes(data)
    pieces = join_files([whole(tmp_path / "text")], close_last=vocab.boundary is not None)
    chunk = number_chunk(vocab, tmp_path, (pieces, list(starts)), sentences=sentences)
    counts = Counter(numbered(vocab, read_chunk(pieces, is_utf8=False))[1])
    text = NumberedText({"train": [chunk]})
    assert text.symbol_counts() == {"train": counts}
    with Reporter().progress("writing") as step:
        (ids,) = text.ids("train", vocab, step)
    return chunk, ids.tolist()


@pytest.mark.parametrize(
    ("boundary", "text", "ids", "words", "lines", "starts"),
    [
        ("<eos>", b" B a\nA <unk> c", [2, 3, 0, 3, 1, -1, 0], 5, 2, [3, 7]),
        (None, b" B a\nA c\n\n", [1, 2, 2, -1], 4, 3, []),  # every id is a word
    ],
)
def test_a_chunk_of_words_is_numbered_and_counted(tmp_path, boundary, text, ids, words, lines, starts):
    symbols = ["<eos>"] * (boundary is not None) + ["<unk>", "b", "a"]
    first = 0 if boundary else None
    vocab = Vocab("word", symbols, boundary=first, unknown=symbols.index("<unk>"), lower_case=True)
    chunk, numbers = read(tmp_path, vocab, text, sentences=True)
    assert (numbers, chunk.tokens, chunk.starts.tolist()) == (ids, len(ids), starts)
    assert (chunk.words, chunk.lines, chunk.bytes) == (words, lines, len(text) + (text[-1:] != b"\n"))
    assert chunk.literal_unknown == text.count(b"<unk>")


def test_documents_begin_at_ids_after_bytes_are_dropped(tmp_path):
    chunk, ids = read(tmp_path, Vocab.of_bytes(b"abc", dropped=b"\n"), b"a\nb\nc", [0, 2, 4])
    assert (ids, chunk.starts.tolist()) == ([0, 1, 2], [0, 1, 2])


def test_the_chunks_of_a_split_are_put_together(tmp_path):
    vocab, chunks = Vocab.of_bytes(b"ab"), []
    for data, starts in ((b"ab", [1]), (b"", []), (b"bba", [0, 2])):
        (tmp_path / "text").write_bytes(data)
        chunks.append(number_chunk(vocab, tmp_path, ([whole(tmp_path / "text")], starts), sentences=False))
    text = NumberedText({"train": chunks, "test": chunks[:1]})
    info = text.counts("train", count_line_ends=True)
    assert (info.tokens, info.words, info.bytes, text.total("bytes")) == (5, 2, 5, 7)
    assert text.starts("train").tolist() == [0, 1, 2, 4]
    assert list(text.symbol_counts()["train"].items()) == [("a", 2), ("b", 3)]
    with Reporter().progress("writing") as step:
        assert [block.tolist() for block in text.ids("train", vocab, step)] == [[0, 1], [], [1, 1, 0]]
    assert not list(tmp_path.glob("*.arrow"))


def test_an_error_about_invalid_utf8_names_the_file_and_the_byte(tmp_path):
    (tmp_path / "text").write_bytes(b"ab\xffc")
    reason = r"text: byte 2 is not valid UTF-8; give its `encoding`, such as cp1252, repair the file"
    with pytest.raises(CorpusInputError, match=reason):
        read_chunk([whole(tmp_path / "text")], is_utf8=True)
