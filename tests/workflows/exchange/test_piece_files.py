"""Files of one piece each: NumPy arrays and JSON are joined in order, each piece a document, and refused if no ids."""

import json
import zipfile

import numpy as np
import pytest

from tests.bombs import packed_zeros, zip_of
from tests.errors import rejection
from txlcli.corpora.corpus import CorpusError
from txlcli.errors import CorpusInputError
from txlcli.workflows.exchange import piece_files

PIECES = [[5, 0, 16], [7, 7], [40_000]]


def write(path, content):
    if path.suffix == ".npy":
        np.save(path, content)
    else:
        path.write_text(json.dumps(content))
    return path


def lists(path):
    return [piece.tolist() for piece in piece_files.read_pieces(path)]


@pytest.mark.parametrize("name", ["a.npy", "train.npy"])
def test_a_link_to_a_file_that_does_not_exist_is_named(tmp_path, name):
    write(tmp_path / name, PIECES[0])
    (tmp_path / "valid.npy").symlink_to("gone.npy")
    assert "valid.npy: a link to a file that does not exist" in rejection(CorpusError, piece_files.find, tmp_path)


@pytest.mark.parametrize("dtype", ["uint8", "<i4", ">i8"])
def test_an_array_is_a_piece_or_one_for_each_row(tmp_path, dtype):
    assert lists(write(tmp_path / "one.npy", np.array([3, 1, 2], dtype))) == [[3, 1, 2]]
    assert lists(write(tmp_path / "two.npy", np.array([[3, 1], [2, 4]], dtype))) == [[3, 1], [2, 4]]


def test_an_archive_has_a_piece_for_each_array(tmp_path):
    np.savez(tmp_path / "all.npz", b=PIECES[0], a=PIECES[1])
    assert lists(tmp_path / "all.npz") == PIECES[:2]


def test_an_archive_with_an_array_for_each_split_is_refused(tmp_path):
    path = tmp_path / "all.npz"
    np.savez(path, train=PIECES[0], valid=PIECES[1])
    assert "train.npy, valid.npy" in rejection(CorpusInputError, piece_files.read_pieces, path)
    np.savez(path, train_0=PIECES[0], train_1=PIECES[1])
    assert lists(path) == PIECES[:2]


def test_what_is_next_to_the_ids_of_a_file_is_named_and_not_read(tmp_path):
    np.savez(tmp_path / "all.npz", lengths=[3, 2], input_ids=PIECES[0])
    write(tmp_path / "b.json", {"attention_mask": [1, 1, 0], "ids": PIECES[1]})
    assert lists(tmp_path / "all.npz") == PIECES[:1]
    tokens = piece_files.find(tmp_path).joined(tmp_path, None)
    assert tokens.left_out == ("attention_mask", "lengths")


def test_an_archive_has_arrays_alone_unless_they_are_named(tmp_path):
    path = tmp_path / "all.npz"
    np.savez(path, ids=PIECES[0], piece=PIECES[1])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "in C")
    assert piece_files.read_content(path, 100).left_out == ["piece", "notes.txt"]
    np.savez(path, piece=PIECES[0])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "in C")
    assert "notes.txt in it is not a NumPy array" in rejection(CorpusInputError, piece_files.read_pieces, path)


def test_a_file_that_is_called_an_archive_and_is_none_is_refused(tmp_path):
    write(tmp_path / "a.npy", PIECES[0]).rename(tmp_path / "a.npz")
    assert "a.npz: damaged, or not an .npz" in rejection(CorpusInputError, piece_files.read_pieces, tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["offsets", "lengths", "attention_mask", "cu_seqlens"])
def test_an_array_that_describes_ids_is_not_read_as_a_piece(tmp_path, name):
    path = tmp_path / "a.npz"
    np.savez(path, values=PIECES[0], **{name: [0, 3]})
    assert f'"{name}" does not look like ids' in rejection(CorpusInputError, piece_files.read_pieces, path)
    np.savez(path, ids=PIECES[0], **{name: [0, 3]})
    assert lists(path) == PIECES[:1]


def test_a_second_array_in_one_npy_is_not_lost(tmp_path):
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        for piece in PIECES[:2]:
            np.save(file, piece)
    assert "144 bytes follow its array" in rejection(CorpusInputError, piece_files.read_pieces, path)


def test_a_truncated_array_and_one_of_lists_are_not_called_wrong_ids(tmp_path):
    path = write(tmp_path / "a.npy", PIECES[0])
    path.write_bytes(path.read_bytes()[:-1])
    assert "write it again" in rejection(CorpusInputError, piece_files.read_pieces, path)
    write(path, np.array(PIECES, object))
    assert "are read from .json" in rejection(CorpusInputError, piece_files.read_pieces, path)


def test_an_empty_list_that_numpy_saved_as_floats_is_left_out(tmp_path):
    assert lists(write(tmp_path / "empty.npy", [])) == []


@pytest.mark.parametrize(
    "wrapped", [lambda ids: ids, lambda ids: {"ids": ids, "tokens": [[1]]}, lambda ids: {"tokens": ids}]
)
def test_json_is_one_list_or_several_also_as_miditok_saves_it(tmp_path, wrapped):
    assert lists(write(tmp_path / "one.json", wrapped(PIECES[0]))) == [PIECES[0]]
    assert lists(write(tmp_path / "all.json", wrapped([*PIECES, []]))) == PIECES
    assert lists(write(tmp_path / "empty.json", wrapped([]))) == []


def test_pieces_are_joined_in_the_order_of_their_files_and_begin_documents(tmp_path):
    (tmp_path / "music").mkdir()
    write(tmp_path / "music/b.json", PIECES[:2])
    write(tmp_path / "music/a.npy", PIECES[2])
    write(tmp_path / "music/vocab.json", {"Pitch_60": 0})
    (tmp_path / "music/a.mid").write_bytes(b"MThd")
    tokens = piece_files.find(tmp_path / "music").joined(tmp_path, None)
    (piece,) = tokens.splits[""]
    assert [int(number) for block in tokens.blocks(piece) for number in block] == [40_000, 5, 0, 16, 7, 7]
    assert [start // 4 for start in tokens.documents.starts([piece])] == [0, 1, 4]


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.json", {"notes": [1]}, '"ids"'),
        ("a.json", "text", '"ids"'),
        ("a.json", [1, 2.5], "float64"),
        ("a.json", [True], "bool"),
        ("a.json", [1, None], "object"),
        ("a.json", [[1, 2], None], "object"),
        ("a.json", [3, -1], "-1"),
        ("a.json", [1 << 20], "1,048,576"),
        ("a.json", [1 << 70], "object"),
        ("a.json", [[[1, 2], [3, 4]]], "shape"),  # tokens of several ids, as of MidiTok's Octuple with several tracks
        ("a.npy", np.array([0.5]), "float64"),
        ("a.npy", np.zeros((2, 2, 2), int), "shape"),
        ("a.npy", np.array(1), "shape"),
        ("a.npy", np.array(["a"], object), "objects"),
    ],
)
def test_what_is_not_ids_is_refused_with_the_file(tmp_path, name, content, word):
    path = write(tmp_path / name, content)
    assert word in rejection(CorpusInputError, piece_files.read_pieces, path)


def test_an_id_that_the_vocabulary_does_not_have_is_refused_with_its_file(tmp_path):
    path = write(tmp_path / "a.json", PIECES)
    assert "a.json: has the id 40,000" in rejection(CorpusInputError, piece_files.find(path).joined, tmp_path, 40_000)
    piece_files.find(path).joined(tmp_path, 40_001)


@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("a.json", b"[1,", "a.json"),
        ("lines.json", b'{"ids": [1]}\n{"ids": [2]}\n', "one list, or one list of lists"),
        ("a.npz", b"PK", "a.npz"),
        ("a.npy", b"\x93NUMPY", "a.npy"),
        ("b.npy", b"", "b.npy"),
    ],
)
def test_a_damaged_file_or_one_of_json_lines_is_refused(tmp_path, name, data, word):
    (tmp_path / name).write_bytes(data)
    assert word in rejection(CorpusInputError, piece_files.read_pieces, tmp_path / name)


def test_ids_without_a_header_that_are_named_like_an_array_are_renamed(tmp_path):
    (tmp_path / "train.npy").write_bytes(bytes(range(1, 200)))
    assert "train.bin" in rejection(CorpusInputError, piece_files.read_pieces, tmp_path / "train.npy")


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path):
    size = 3 << 30
    path = zip_of(tmp_path / "bomb.npz", "a.npy", packed_zeros(size=size), size)
    assert "MiB" in rejection(CorpusInputError, piece_files.read_pieces, path)
