"""Sealed HDF5 files: no damage goes unnoticed, and a failing disk costs neither the old file nor the process."""

import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest

from tests.data.test_token_store import FACTS, VOCAB
from tests.data.test_token_store import write as write_store
from tests.hdf5_files import flip, make_endless, seal_again, unsealed
from tests.samples import sampled
from txlcli.data.sealed_hdf5 import USER_BLOCK, DamagedFileError, read_hdf5, replacing_hdf5, verify_seal
from txlcli.data.token_store import TokenStore, writing
from txlcli.errors import StoreError


def write(path, numbers=(2, 3, 5, 7)):
    with replacing_hdf5(path, path.with_name("draft")) as new:
        new.hdf5["numbers"] = np.array(numbers)
    return path


def numbers_of(file):
    return file["numbers"][()].tolist()


def test_a_sealed_file_is_read_by_txl_and_by_any_hdf5_program(tmp_path):
    path = write(tmp_path / "a.h5")
    assert verify_seal(path)
    with h5py.File(path) as same:
        assert read_hdf5(path, numbers_of) == numbers_of(same) == [2, 3, 5, 7]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.h5"]


def test_a_file_without_seal_is_read_without_this_check(tmp_path):
    path = write(tmp_path / "a.h5")
    with unsealed(path):
        pass
    assert not verify_seal(path)
    assert read_hdf5(path, numbers_of) == [2, 3, 5, 7]


def test_every_flipped_bit_is_found(tmp_path):
    path = write(tmp_path / "a.h5")
    for place in range(0, path.stat().st_size, 5):
        flip(path, place, bit=place % 8)
        with pytest.raises((DamagedFileError, OSError)):
            verify_seal(path)
        flip(path, place, bit=place % 8)
    assert verify_seal(path)


def test_every_flipped_bit_of_a_store_is_found(tmp_path):
    path = write_store(tmp_path / "tiny.h5", {"train": [2, 3, 0, 1] * 50, "test": [3, 0]})
    for place in range(0, path.stat().st_size, 17):
        flip(path, place, bit=place % 8)
        with pytest.raises(StoreError, match=r"tiny\.h5"):
            TokenStore.open(path).verify()
        flip(path, place, bit=place % 8)
    TokenStore.open(path).verify()


@pytest.mark.parametrize("fill", sampled(2, [b"\0", b"\xff"]))
def test_a_bad_page_is_found_before_hdf5_reads_it(tmp_path, fill):
    path = write_store(tmp_path / "tiny.h5", {"train": [2, 3, 0, 1] * 5000, "test": [3, 0]})
    whole = path.read_bytes()
    for start in range(0, len(whole) - 511, 512):
        path.write_bytes(whole[:start] + fill * 512 + whole[start + 512 :])
        if path.read_bytes() != whole:
            with pytest.raises(StoreError, match=r"tiny\.h5"):
                TokenStore.open(path).verify()


@pytest.mark.parametrize("size", [0, 1, USER_BLOCK - 1, USER_BLOCK, USER_BLOCK + 1, -1])
def test_a_truncated_file_is_refused(tmp_path, size):
    path = write(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises((DamagedFileError, OSError)):
        verify_seal(path)


def test_a_longer_file_is_refused(tmp_path):
    path = write(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DamagedFileError, match=r"it has [\d,]+ bytes instead of [\d,]+"):
        verify_seal(path)


ENDLESS = """
    import sys
    from pathlib import Path
    from txlcli.data import loss_file
    from txlcli.data.context_file import ContextFile
    from txlcli.data.token_store import TokenStore
    from txlcli.errors import TxlError
    readers = {"store": TokenStore.open, "losses of recl": ContextFile, "losses of eval": loss_file.check_path}
    try:
        readers[sys.argv[1]](Path(sys.argv[2]))
    except TxlError as error:
        print(error)
"""
REFUSALS = {
    "store": "{path} is damaged or no HDF5 file (HDF5 never ends in reading it); run",
    "losses of recl": "--losses {path}: is damaged (HDF5 never ends in reading it); remove it or give another name",
    "losses of eval": "--losses {path}: exists and holds no losses; give another name",
}


@pytest.mark.parametrize(("has_seal", "kind"), sampled(3, [True, False], REFUSALS))
def test_a_file_on_which_hdf5_never_ends_is_refused(tmp_path, kind, has_seal):
    path = write_store(tmp_path / "tiny.h5")
    if not has_seal:
        with unsealed(path):
            pass
    make_endless(path)
    if has_seal:
        seal_again(path)
        assert verify_seal(path)
    command = [sys.executable, "-c", textwrap.dedent(ENDLESS), kind, str(path)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("\n") == 1
    assert ran.stdout.startswith(REFUSALS[kind].format(path=path))


def test_a_vocabulary_that_is_not_the_stores_is_refused_without_a_seal(tmp_path):
    path = write_store(tmp_path / "tiny.h5")
    with unsealed(path) as file:
        file.attrs["fingerprint"] = "0" * 64
    with pytest.raises(StoreError, match=r"tiny\.h5: the vocabulary is damaged \(wrong fingerprint\)"):
        _ = TokenStore.open(path).vocab


def test_a_draft_that_fails_its_check_does_not_replace_the_file(tmp_path):
    path = write(tmp_path / "a.h5")
    before = path.read_bytes()

    def refuse(draft):
        raise DamagedFileError(f"{draft.name} is refused")

    with (
        pytest.raises(DamagedFileError, match="draft is refused"),
        replacing_hdf5(path, tmp_path / "draft", check=refuse) as new,
    ):
        new.hdf5["numbers"] = [11]
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.h5"]


LIMITED = """
    import resource, sys
    from pathlib import Path
    import numpy as np
    from tests.data.test_sealed_hdf5 import store_of
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    from txlcli.errors import StoreError
    try:
        store_of(Path(sys.argv[1]), 30_000)
    except StoreError as error:
        print(error)
"""


def store_of(path, tokens):
    """Write a store of so many tokens in blocks."""
    from txlcli.data.token_store import SplitCounts

    with writing(path, FACTS, VOCAB) as writer:
        counts = SplitCounts(tokens=tokens, words=1, bytes=1, unknown=0, types=1)
        writer.add("train", counts, np.array_split(np.zeros(tokens, dtype=np.uint8), 7))


@pytest.mark.parametrize("size", sampled(2, range(0, 36_864, 4096)))
def test_wherever_space_ends_the_old_store_stays_and_the_error_is_one_line(tmp_path, size):
    path = write_store(tmp_path / "tiny.h5")
    before = path.read_bytes()
    command = [sys.executable, "-c", textwrap.dedent(LIMITED), str(path), str(size)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"could not write {path} (File too large); free some space or give another --data-dir\n"
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.h5"]
