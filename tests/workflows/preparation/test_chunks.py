import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.corpus import Slice, whole
from txlcli.workflows.preparation import chunks
from txlcli.workflows.preparation.chunks import between_characters, chunks_of, read


def content(chunk) -> bytes:
    return b"".join(part.data for part in read(chunk))


@given(text=st.text("ab \n語", max_size=200), size=st.integers(1, 40))
def test_chunks_give_the_text_back(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("chunks") / "text"
    path.write_bytes(text.encode())
    parts = [content(chunk) for chunk in chunks_of(whole(path), size)]
    assert b"".join(parts) == text.encode()
    assert all(parts)
    assert "".join(part.decode() for part in parts) == text  # no cut inside a character
    assert [word for part in parts for word in part.decode().split()] == text.split()  # nor inside a word


def test_chunks_end_with_lines_where_they_can(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"seven b\nnine byte\nfive\n")
    assert [content(chunk) for chunk in chunks_of(whole(path), 11)] == [b"seven b\n", b"nine byte\n", b"five\n"]


def test_a_word_without_end_is_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "LONGEST_WORD", 7)
    monkeypatch.setattr(chunks, "TAIL", 3)
    path = tmp_path / "text"
    path.write_text("語" * 20, encoding="utf-8")
    parts = [content(chunk).decode() for chunk in chunks_of(whole(path), 8)]
    assert "".join(parts) == "語" * 20
    assert len(parts) > 1


def test_small_files_share_a_chunk(tmp_path):
    slices = []
    for number in range(7):
        (tmp_path / str(number)).write_bytes(b"abc\n")
        slices += whole(tmp_path / str(number))
    assert [len(chunk) for chunk in chunks_of(slices, 11)] == [2, 2, 2, 1]


def test_a_file_that_ends_in_a_line_is_told_from_a_slice_that_does(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one two")
    (first,), (second,) = read((Slice(path, 0, 4),)), read((Slice(path, 4, 7),))
    assert (first.open_end, second.open_end) == (False, True)


def test_slices_are_moved_off_the_inside_of_characters(tmp_path):
    path = tmp_path / "text"
    path.write_text("語語語", encoding="utf-8")
    moved = between_characters([Slice(path, 0, 4), Slice(path, 4, 9)])
    assert [(piece.start, piece.stop) for piece in moved] == [(0, 6), (6, 9)]


@pytest.mark.parametrize("size", [1, 1000])
def test_nothing_gives_no_chunks(tmp_path, size):
    (tmp_path / "empty").touch()
    assert list(chunks_of(whole(tmp_path / "empty"), size)) == []
