"""Temporary directories are removed when their process ends, and also after it was killed; locks are optional."""

from contextlib import nullcontext
from functools import partial

import pytest
from filelock import FileLock

from txlcli.system.locks import temporary_directory, writing

work_directory = partial(temporary_directory, prefix=".preparing-")


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("error", [None, OSError, KeyboardInterrupt])
def test_a_temporary_directory_leaves_nothing_behind(tmp_path, error):
    def use_it():
        with work_directory(tmp_path) as work:
            (work / "spool").write_text("tokens")
            if error:
                raise error

    with pytest.raises(error) if error else nullcontext():
        use_it()
    assert names(tmp_path) == []


def test_directories_of_killed_processes_are_removed(tmp_path):
    for left in (".preparing-dead", ".preparing-older"):
        (tmp_path / left / "unpacked").mkdir(parents=True)
    (tmp_path / ".preparing-dying.lock").touch()  # killed before it created its directory
    (tmp_path / ".preparing-dead.lock").touch()  # the older one has no lock: an earlier version wrote none
    (tmp_path / "my.h5").touch()
    with work_directory(tmp_path) as work:
        assert names(tmp_path) == sorted([work.name, f"{work.name}.lock", "my.h5"])
    assert names(tmp_path) == ["my.h5"]


def test_the_directory_of_a_running_process_stays(tmp_path):
    with work_directory(tmp_path) as one, work_directory(tmp_path) as other:
        assert one != other
        assert one.is_dir()
    (tmp_path / ".preparing-alive").mkdir()
    with FileLock(tmp_path / ".preparing-alive.lock"), work_directory(tmp_path):
        assert (tmp_path / ".preparing-alive").is_dir()


def test_where_no_lock_can_be_made_a_file_is_written_without_one(tmp_path):
    (tmp_path / "file").touch()
    ran = False
    with writing(tmp_path / "file" / "below", "busy"):
        ran = True
    assert ran
    assert names(tmp_path) == ["file"]
