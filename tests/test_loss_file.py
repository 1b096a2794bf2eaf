"""The file with the loss of every token."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from txlcli import loss_file
from txlcli.errors import StoreError, UsageError

TOKENS = np.array([3, 1, 2, 1, 0], dtype=np.int64)
LOSSES = {0: np.linspace(1, 2, 5, dtype=np.float32), 160: np.linspace(0, 1, 5, dtype=np.float32)}


def write(path):
    loss_file.write(path, TOKENS, LOSSES, {"run": "runs/mine", "text": "novel test"})


def test_tokens_and_losses_come_back(tmp_path):
    write(tmp_path / "losses.h5")
    with h5py.File(tmp_path / "losses.h5") as file:
        assert set(file) == {"tokens", "mem_len_0", "mem_len_160"}
        np.testing.assert_array_equal(file["tokens"][()], TOKENS)
        for mem_len, losses in LOSSES.items():
            dataset = file[f"mem_len_{mem_len}"]
            np.testing.assert_array_equal(dataset[()], losses)
            assert dataset.dtype == np.float32
            assert dataset.attrs["mem_len"] == mem_len
        assert dict(file.attrs) == {"format": 1, "run": "runs/mine", "text": "novel test"}


def test_nothing_else_is_left_in_the_folder(tmp_path):
    (tmp_path / "losses.h5").write_text("an older file")
    write(tmp_path / "losses.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["losses.h5"]
    assert h5py.is_hdf5(tmp_path / "losses.h5")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StoreError) as caught:
        write(tmp_path / "no/losses.h5")
    assert str(caught.value).startswith(f"{tmp_path / 'no/losses.h5'}: the losses cannot be written (")
    assert str(caught.value).endswith("; check the folder and the free space")
    assert "\n" not in str(caught.value)


def test_a_place_for_losses_is_a_new_file_or_one_of_older_losses(tmp_path):
    path = tmp_path / "losses.h5"
    loss_file.check_path(path)
    write(path)
    loss_file.check_path(path)


def test_any_other_file_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "folder.h5").mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["tokens"] = TOKENS
    for name in ("thesis.txt", "folder.h5", "other.h5"):
        with pytest.raises(UsageError) as caught:
            loss_file.check_path(tmp_path / name)
        assert str(caught.value) == f"--losses {tmp_path / name}: exists and holds no losses; give another name"


def test_a_folder_that_is_not_there_is_refused_beforehand():
    with pytest.raises(UsageError, match=r"^--losses no/losses\.h5: there is no folder no; make it first$"):
        loss_file.check_path(Path("no/losses.h5"))


def test_what_cannot_be_replaced_stays(tmp_path):
    (tmp_path / "losses.h5").mkdir()
    with pytest.raises(StoreError):
        write(tmp_path / "losses.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["losses.h5"]
