"""Losses by context length are saved, and found again by everything that they depend on."""

import h5py
import numpy as np
import pytest

from tests.hdf5_files import flip
from txlcli.data.context_file import ContextFile
from txlcli.errors import UsageError

FACTS = {"weights": "abc", "reading": {"mem_len": 5}}
KEY = "0"


def filled(path):
    saved = ContextFile(path)
    saved.add(FACTS, 100, np.array([7, 3]), np.array([0.7, 0.3], dtype=np.float32))
    saved.add(FACTS, 100, np.array([5]), np.array([0.5], dtype=np.float32))
    saved.add(FACTS, 200, np.array([3]), np.array([0.1], dtype=np.float32))
    return saved


def test_positions_that_were_not_added_are_missing(tmp_path):
    saved = filled(tmp_path / "recl.h5")
    wanted = np.array([2, 3, 5, 7, 9])
    assert saved.missing(FACTS, 100, wanted).tolist() == [2, 9]
    assert saved.missing(FACTS, 200, wanted).tolist() == [2, 5, 7, 9]
    assert saved.missing(FACTS, 300, wanted).tolist() == wanted.tolist()
    assert saved.missing({**FACTS, "weights": "abd"}, 100, wanted).tolist() == wanted.tolist()


def test_losses_are_read_from_the_file_by_position(tmp_path):
    path = tmp_path / "recl.h5"
    filled(path).save()
    again = ContextFile(path)
    np.testing.assert_allclose(again.losses(FACTS, 100, np.array([3, 7])), [0.3, 0.7])
    np.testing.assert_allclose(again.losses(FACTS, 100, np.array([3, 5, 7])), [0.3, 0.5, 0.7])
    np.testing.assert_allclose(again.losses(FACTS, 200, np.array([3])), [0.1])


def test_the_file_records_what_its_losses_depend_on(tmp_path):
    filled(tmp_path / "recl.h5").save()
    with h5py.File(tmp_path / "recl.h5") as file:
        assert file[KEY].attrs["facts"] == b'{"reading": {"mem_len": 5}, "weights": "abc"}'
        assert file[KEY]["context_100"]["positions"][()].tolist() == [3, 5, 7]


def test_without_new_losses_the_file_is_not_written(tmp_path):
    path = tmp_path / "recl.h5"
    ContextFile(path).save()
    assert not path.exists()
    filled(path).save()
    before = path.stat().st_mtime_ns, path.stat().st_ino
    ContextFile(path).save()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def other_hdf5(path):
    with h5py.File(path, "w") as file:
        file["ids"] = np.arange(5)


def without_positions(path):
    filled(path).save()
    with h5py.File(path, "r+") as file:
        del file[KEY]["context_100"]["positions"]


DAMAGED = r"is damaged \(.*\); remove it or give another name"


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b"no HDF5"), DAMAGED),
        (lambda path: path.write_bytes(b""), DAMAGED),
        (without_positions, DAMAGED),
        (other_hdf5, "holds no losses of txl recl; give another name or remove it"),
    ],
)
def test_another_file_is_rejected_and_kept(tmp_path, write, message):
    path = tmp_path / "recl.h5"
    write(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=rf"^{path}: {message}$"):
        ContextFile(path)
    assert path.read_bytes() == before


def contents(saved):
    """Return everything that is read from a file."""
    positions = np.array([3, 5, 7])
    return [
        (facts, length, number, saved.losses(facts, length, np.array([number])).tolist())
        for facts in (FACTS, {})
        for length in (100, 200)
        for number in positions
        if not saved.missing(facts, length, np.array([number])).size
    ]


def test_no_flipped_bit_changes_losses_without_an_error(tmp_path):
    path = tmp_path / "recl.h5"
    filled(path).save()
    before, whole = contents(ContextFile(path)), path.read_bytes()
    rejected = 0
    for place in range(0, len(whole), 7):
        flip(path, place, bit=place % 8)
        try:
            assert contents(ContextFile(path)) == before
        except UsageError:
            rejected += 1
        path.write_bytes(whole)
    assert rejected > len(whole) // 7 // 4
