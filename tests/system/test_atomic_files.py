"""Files are replaced atomically, and output paths are checked before work begins."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.system.test_input_files import SPECIAL
from txlcli.errors import UsageError
from txlcli.system.atomic_files import check_output, replacing


def files(directory):
    return {path.name: path.read_text() for path in directory.iterdir()}


@pytest.mark.parametrize("error", [None, OSError, KeyboardInterrupt])
def test_a_file_is_replaced_unless_writing_fails(tmp_path, error):
    def write():
        with replacing(tmp_path / "report.md") as beside:
            beside.write_text("second")
            if error:
                raise error

    (tmp_path / "report.md").write_text("first")
    with pytest.raises(error) if error else nullcontext():
        write()
    assert files(tmp_path) == {"report.md": "first" if error else "second"}


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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/curve.png", "the folder nowhere is missing"),
        ("pipe", "is a folder, pipe or device"),
        ("plots", "is a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_rejected(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    SPECIAL["pipe"](Path("pipe"))
    Path("plots").mkdir()
    with pytest.raises(UsageError, match=message):
        check_output(Path(path), f"--plot {path}")
    check_output(Path("curve.png"), "--plot curve.png")
    check_output(tmp_path / "curve.png", "--plot curve.png")
