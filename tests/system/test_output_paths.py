"""Places where no file can go are refused beforehand."""

import os
from pathlib import Path

import pytest

from txlcli.errors import UsageError
from txlcli.system.output_paths import check_folder


def test_a_folder_that_takes_files_is_good(tmp_path, monkeypatch):
    check_folder(tmp_path / "curve.png", "--plot curve.png")
    monkeypatch.chdir(tmp_path)
    check_folder(Path("curve.png"), "--plot curve.png")


def test_a_missing_folder_is_refused():
    with pytest.raises(UsageError, match=r"^--plot nowhere/curve\.png: there is no folder nowhere; make it first$"):
        check_folder(Path("nowhere/curve.png"), "--plot nowhere/curve.png")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "notes").touch()
    with pytest.raises(UsageError, match=r"^mine\.toml: there is no folder .*notes; make it first$"):
        check_folder(tmp_path / "notes" / "mine.toml", "mine.toml")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _folder, mode: mode != os.W_OK)
    with pytest.raises(UsageError) as caught:
        check_folder(tmp_path / "losses.h5", "--losses losses.h5")
    assert str(caught.value) == f"--losses losses.h5: the folder {tmp_path} cannot be written; name another"
