import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlcli.corpora.corpus import Slice
from txlcli.corpora.locate import whole
from txlcli.workflows.preparation.numbered_text import align_to_characters, cut_into_chunks, join_files, read_chunk


def content(chunk) -> bytes:
    return read_chunk(chunk, is_utf8=False)


@given(text=st.text("ab \n語", max_size=200), size=st.integers(1, 40))
def test_the_chunks_joined_are_the_text(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("chunks") / "text"
    path.write_bytes(text.encode())
    size += max(len(word.encode()) for word in ["", *text.split()])
    parts = [content(chunk) for chunk in cut_into_chunks([whole(path)], size)]
    assert b"".join(parts) == text.encode()
    assert all(parts)
    assert "".join(part.decode() for part in parts) == text  # no cut inside a character
    assert [word for part in parts for word in part.decode().split()] == text.split()  # nor inside a word


def test_chunks_end_after_a_line_if_possible(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"seven b\nnine byte\nfive\n")
    assert [content(chunk) for chunk in cut_into_chunks([whole(path)], 11)] == [b"seven b\n", b"nine byte\n", b"five\n"]


def test_a_word_longer_than_a_chunk_is_cut_between_characters(tmp_path):
    path = tmp_path / "text"
    path.write_text("語" * 20, encoding="utf-8")
    parts = [content(chunk).decode() for chunk in cut_into_chunks([whole(path)], 8)]
    assert parts == ["語語語"] * 6 + ["語語"]


def test_small_files_share_a_chunk(tmp_path):
    slices = []
    for number in range(7):
        (tmp_path / str(number)).write_bytes(b"abc\n")
        slices.append(whole(tmp_path / str(number)))
    assert [len(chunk) for chunk in cut_into_chunks(slices, 11)] == [2, 2, 2, 1]


@pytest.mark.parametrize(("close_last", "end"), [(False, b""), (True, b"\n")])
@pytest.mark.parametrize("size", [1, 4, 5, 1000])
def test_files_are_joined_by_the_line_ends_that_they_lack(tmp_path, close_last, end, size):
    slices = []
    for number, data in enumerate([b"one two", b"", b"three\n", b"four\r", b"five"]):
        (tmp_path / str(number)).write_bytes(data)
        slices.append(whole(tmp_path / str(number)))
    joined = join_files(slices, close_last=close_last)
    expected = b"one two\nthree\nfour\rfive" + end
    assert b"".join(content(chunk) for chunk in cut_into_chunks(joined, size)) == expected
    assert b"".join(block for piece in joined for block in piece.blocks(size)) == expected
    assert sum(piece.size for piece in joined) == len(expected)


def test_ends_inside_characters_are_moved_behind_them(tmp_path):
    path = tmp_path / "text"
    path.write_text("語語語", encoding="utf-8")
    moved = align_to_characters([Slice(path, 0, 4), Slice(path, 4, 9)])
    assert [(piece.start, piece.stop) for piece in moved] == [(0, 6), (6, 9)]


@pytest.mark.parametrize("size", [1, 1000])
def test_an_empty_text_has_no_chunks(tmp_path, size):
    (tmp_path / "empty").touch()
    assert list(cut_into_chunks([whole(tmp_path / "empty")], size)) == []
