"""Losses by context length are saved, and found again by everything that they depend on."""

import h5py
import numpy as np
import pytest

from tests.hdf5_files import flip
from txlcli.data.context_file import ContextFile, key_of
from txlcli.errors import UsageError

FACTS = {"weights": "abc", "reading": {"mem_len": 5}}
KEY = key_of(FACTS)


def filled(path):
    saved = ContextFile(path)
    saved.add(FACTS, 100, np.array([7, 3]), np.array([0.7, 0.3], dtype=np.float32))
    saved.add(FACTS, 100, np.array([5]), np.array([0.5], dtype=np.float32))
    saved.add(FACTS, 200, np.array([3]), np.array([0.1], dtype=np.float32))
    return saved


def test_positions_that_were_not_added_are_missing(tmp_path):
    saved = filled(tmp_path / "recl.h5")
    wanted = np.array([2, 3, 5, 7, 9])
    assert saved.missing(KEY, 100, wanted).tolist() == [2, 9]
    assert saved.missing(KEY, 200, wanted).tolist() == [2, 5, 7, 9]
    assert saved.missing(KEY, 300, wanted).tolist() == wanted.tolist()
    assert saved.missing(key_of({**FACTS, "weights": "abd"}), 100, wanted).tolist() == wanted.tolist()


def test_losses_are_read_from_the_file_by_position(tmp_path):
    path = tmp_path / "recl.h5"
    filled(path).save()
    again = ContextFile(path)
    np.testing.assert_allclose(again.losses(KEY, 100, np.array([3, 7])), [0.3, 0.7])
    np.testing.assert_allclose(again.losses(KEY, 100, np.array([3, 5, 7])), [0.3, 0.5, 0.7])
    np.testing.assert_allclose(again.losses(KEY, 200, np.array([3])), [0.1])


def test_the_file_records_what_its_losses_depend_on(tmp_path):
    filled(tmp_path / "recl.h5").save()
    with h5py.File(tmp_path / "recl.h5") as file:
        assert file[KEY].attrs["facts"] == b'{"reading": {"mem_len": 5}, "weights": "abc"}'
        assert file[KEY]["context_100"]["positions"][()].tolist() == [3, 5, 7]


def test_the_key_does_not_depend_on_the_order_of_facts():
    assert key_of(dict(reversed(FACTS.items()))) == KEY


def test_without_new_losses_the_file_is_not_written(tmp_path):
    path = tmp_path / "recl.h5"
    ContextFile(path).save()
    assert not path.exists()
    filled(path).save()
    before = path.stat().st_mtime_ns, path.stat().st_ino
    ContextFile(path).save()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


@pytest.mark.parametrize("content", [b"no HDF5", b""])
def test_another_file_is_rejected(tmp_path, content):
    path = tmp_path / "recl.h5"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"^--losses {path}: is damaged \(.*\); remove it or give another name$"):
        ContextFile(path)
    assert path.read_bytes() == content


def test_another_hdf5_file_is_rejected(tmp_path):
    path = tmp_path / "store.h5"
    with h5py.File(path, "w") as file:
        file["ids"] = np.arange(5)
    with pytest.raises(UsageError, match=r"holds no losses of txl recl; give another name or remove it$"):
        ContextFile(path)


def contents(saved):
    """Return everything that is read from a file."""
    keys, positions = (KEY, key_of({})), np.array([3, 5, 7])
    return [
        (key, length, number, saved.losses(key, length, np.array([number])).tolist())
        for key in keys
        for length in (100, 200)
        for number in positions
        if not saved.missing(key, length, np.array([number])).size
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


def test_a_file_without_a_part_is_rejected(tmp_path):
    path = tmp_path / "recl.h5"
    filled(path).save()
    with h5py.File(path, "r+") as file:
        del file[KEY]["context_100"]["positions"]
    with pytest.raises(UsageError, match=r"is damaged"):
        ContextFile(path)


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(UsageError) as caught:
        ContextFile(tmp_path / "nowhere" / "recl.h5")
    directory = tmp_path / "nowhere"
    assert str(caught.value) == f"--losses {directory / 'recl.h5'}: there is no folder {directory}; make it first"
