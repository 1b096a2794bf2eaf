"""Files are replaced atomically, and output paths are checked before work begins."""

import os
from pathlib import Path

import pytest

from tests.system.test_input_files import SPECIAL
from txlcli.errors import UsageError
from txlcli.system.atomic_files import check_output, replacing


def files(directory):
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_an_existing_file_is_replaced(tmp_path):
    for text in ("first", "second"):
        with replacing(tmp_path / "report.md") as beside:
            beside.write_text(text)
        assert files(tmp_path) == {"report.md": text}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_existing_file_is_unchanged_if_writing_fails(tmp_path, error):
    def write_half():
        with replacing(tmp_path / "report.md") as beside:
            beside.write_text("half")
            raise error

    (tmp_path / "report.md").write_text("first")
    with pytest.raises(error):
        write_half()
    assert files(tmp_path) == {"report.md": "first"}


def test_the_new_file_has_default_permissions(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "weights") as beside:
        beside.unlink()
        beside.touch(mode=0o600)
    assert (tmp_path / "weights").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_is_flushed_to_disk_before_it_is_renamed(tmp_path, monkeypatch):
    done = []
    flush, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_size), flush(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("named"), replace(*names)))
    with replacing(tmp_path / "report.md") as beside:
        beside.write_text("first")
    assert done == [5, "named"]


def test_a_writable_directory_is_accepted(tmp_path, monkeypatch):
    check_output(tmp_path / "curve.png", "--plot curve.png")
    monkeypatch.chdir(tmp_path)
    check_output(Path("curve.png"), "--plot curve.png")


def test_a_missing_directory_is_rejected():
    with pytest.raises(UsageError, match=r"^--plot nowhere/curve\.png: there is no folder nowhere; make it first$"):
        check_output(Path("nowhere/curve.png"), "--plot nowhere/curve.png")


def test_a_special_file_is_no_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SPECIAL["pipe"](Path("curve.png"))
    with pytest.raises(UsageError, match=r"^--plot curve\.png is a pipe, not a regular file; name another$"):
        check_output(Path("curve.png"), "--plot curve.png")


def test_a_directory_is_no_output(tmp_path):
    with pytest.raises(UsageError, match=r"^--plot curves is a folder; name a file$"):
        check_output(tmp_path, "--plot curves")
