"""The file with the loss of each token."""

import h5py
import numpy as np
import pytest

from txlcli.data import loss_file
from txlcli.data.loss_file import TokenLosses
from txlcli.errors import StoreError, UsageError

TOKENS = np.array([3, 1, 2, 1, 0], dtype=np.int64)
RISING, FALLING, LOW = (np.linspace(*ends, 5, dtype=np.float32) for ends in ((1, 2), (1, 0), (0.5, 0.6)))
RESULTS = [
    TokenLosses("mem_len", 0, RISING, {"seg_len": 7, "same_length": None}),
    TokenLosses("mem_len", 160, FALLING, {"seg_len": 7, "same_length": "m"}),
    TokenLosses("attn_len", 160, LOW, {"stride": 3}),
]


def write(path):
    loss_file.write(path, TOKENS, RESULTS, {"run": "runs/mine", "step": 11, "split": None})


def test_tokens_and_losses_are_written_to_a_new_file_or_over_an_earlier_one(tmp_path):
    for _ in range(2):
        loss_file.check_path(tmp_path / "losses.h5", "")
        write(tmp_path / "losses.h5")
        assert [path.name for path in tmp_path.iterdir()] == ["losses.h5"]
    with h5py.File(tmp_path / "losses.h5") as file:
        assert set(file) == {"tokens", "mem_len_0", "mem_len_160", "attn_len_160"}
        np.testing.assert_array_equal(file["tokens"][()], TOKENS)
        for name, losses in {"mem_len_0": RISING, "mem_len_160": FALLING, "attn_len_160": LOW}.items():
            np.testing.assert_array_equal(file[name][()], losses)
            assert file[name].dtype == np.float32


def test_evaluation_settings_that_are_not_none_become_attributes(tmp_path):
    write(tmp_path / "losses.h5")
    with h5py.File(tmp_path / "losses.h5") as file:
        assert dict(file.attrs) == {"format": 1, "run": b"runs/mine", "step": 11}
        assert dict(file["mem_len_0"].attrs) == {"mem_len": 0, "seg_len": 7}
        assert dict(file["mem_len_160"].attrs) == {"mem_len": 160, "seg_len": 7, "same_length": b"m"}
        assert dict(file["attn_len_160"].attrs) == {"attn_len": 160, "stride": 3}


def test_writing_into_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="the losses cannot be written") as caught:
        write(tmp_path / "no/losses.h5")
    assert "\n" not in str(caught.value)


def test_any_other_file_is_rejected(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "folder.h5").mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["tokens"] = TOKENS
    for name in ("thesis.txt", "folder.h5", "other.h5"):
        with pytest.raises(UsageError, match="holds no losses"):
            loss_file.check_path(tmp_path / name, "`losses` a")
