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


def test_a_file_in_place_of_the_directory_is_rejected(tmp_path):
    (tmp_path / "notes").touch()
    with pytest.raises(UsageError, match=r"^mine\.toml: there is no folder .*notes; make it first$"):
        check_output(tmp_path / "notes" / "mine.toml", "mine.toml")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_a_special_file_is_no_output(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    SPECIAL[kind](Path("curve.png"))
    with pytest.raises(UsageError, match=rf"^--plot curve\.png is a {kind}, not a regular file; name another$"):
        check_output(Path("curve.png"), "--plot curve.png")


def test_a_directory_is_no_output(tmp_path):
    with pytest.raises(UsageError, match=r"^--plot curves is a folder; name a file$"):
        check_output(tmp_path, "--plot curves")


def test_a_name_that_is_too_long_with_the_ending_of_the_draft_is_rejected_at_once(tmp_path):
    with pytest.raises(OSError, match="File name too long"):
        check_output(tmp_path / ("a" * 252), "--losses a")


def test_a_read_only_directory_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _directory, mode: mode != os.W_OK)
    with pytest.raises(UsageError) as caught:
        check_output(tmp_path / "losses.h5", "--losses losses.h5")
    assert str(caught.value) == f"--losses losses.h5: the folder {tmp_path} cannot be written; name another"
