"""The folder of a preparation under way, and of one that was killed."""

import pytest
from filelock import FileLock

from txlcli.workflows.preparation.workplace import workplace


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [None, OSError, KeyboardInterrupt])
def test_nothing_is_left_of_it(tmp_path, error):
    def work_there():
        with workplace(tmp_path) as work:
            (work / "spool").write_text("tokens")
            if error:
                raise error

    if error is None:
        work_there()
    else:
        with pytest.raises(error):
            work_there()
    assert names(tmp_path) == []


def test_what_a_killed_preparation_left_is_cleared_away_by_the_next(tmp_path):
    for left in (".preparing-dead", ".preparing-older"):
        (tmp_path / left / "unpacked").mkdir(parents=True)
    (tmp_path / ".preparing-dying.lock").touch()  # killed before it had a folder
    (tmp_path / ".preparing-dead.lock").touch()  # the older one was made before there were locks
    (tmp_path / "my.h5").touch()
    with workplace(tmp_path) as work:
        assert names(tmp_path) == sorted([work.name, f"{work.name}.lock", "my.h5"])
    assert names(tmp_path) == ["my.h5"]


def test_the_folder_of_another_that_is_at_work_stays(tmp_path):
    with workplace(tmp_path) as one, workplace(tmp_path) as other:
        assert one != other
        assert one.is_dir()
    (tmp_path / ".preparing-alive").mkdir()
    with FileLock(tmp_path / ".preparing-alive.lock"), workplace(tmp_path):
        assert (tmp_path / ".preparing-alive").is_dir()
