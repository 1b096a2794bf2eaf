"""Files are replaced whole or not at all."""

import os

import pytest

from txlcli.system.atomic_files import replacing


def files(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_file_takes_the_place_of_the_one_before(tmp_path):
    for text in ("first", "second"):
        with replacing(tmp_path / "report.md") as beside:
            beside.write_text(text)
        assert files(tmp_path) == {"report.md": text}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_was_there_stays_when_something_stops_the_writing(tmp_path, error):
    def write_half():
        with replacing(tmp_path / "report.md") as beside:
            beside.write_text("half")
            raise error

    (tmp_path / "report.md").write_text("first")
    with pytest.raises(error):
        write_half()
    assert files(tmp_path) == {"report.md": "first"}


def test_others_may_read_it_whatever_the_writer_makes_of_its_mode(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "weights") as beside:
        beside.unlink()
        beside.touch(mode=0o600)
    assert (tmp_path / "weights").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_is_on_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    done = []
    flush, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_size), flush(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("named"), replace(*names)))
    with replacing(tmp_path / "report.md") as beside:
        beside.write_text("first")
    assert done == [5, "named"]
