"""Runs that are links to directories elsewhere, as on another disk."""

import pytest

from tests.runs.test_run_directory import create
from txlcli.errors import BusyError
from txlcli.runs import run_directory
from txlcli.runs.recovery import recover


@pytest.fixture
def runs_dir(tmp_path):
    """Make a directory of runs with the run `mine`, which is a link to the directory `elsewhere/kept`."""
    run = create(tmp_path / "runs", "mine")
    (run.directory / "last.safetensors").write_text("weights")
    (tmp_path / "elsewhere").mkdir()
    run.directory.rename(tmp_path / "elsewhere/kept")
    run.directory.symlink_to(tmp_path / "elsewhere/kept")
    return tmp_path / "runs"


def weights(runs_dir):
    return (runs_dir.parent / "elsewhere/kept/last.safetensors").read_text()


def test_force_replaces_the_link_and_keeps_the_directory(runs_dir):
    for _ in range(2):
        run = create(runs_dir, "mine", force=True)
        (run.directory / "last.safetensors").write_text("new")
        run_directory.delete_replaced(run)
        assert not run.directory.is_symlink()
        assert [path.name for path in runs_dir.iterdir()] == ["mine"]
    assert weights(runs_dir) == "weights"


def test_a_replacement_of_a_link_that_failed_is_rolled_back(runs_dir):
    run_directory.restore_replaced(create(runs_dir, "mine", force=True))
    assert (runs_dir / "mine").is_symlink()
    assert weights(runs_dir) == "weights"


def test_an_interrupted_replacement_of_a_link_is_completed_once(runs_dir):
    run = create(runs_dir, "mine", force=True)
    (run.directory / "last.safetensors").write_text("damaged, which counts as progress")
    lines = []
    with run_directory.locked(run.directory):  # as every training does before
        pass
    for _ in range(2):
        recover(runs_dir, lines.append)
    assert len(lines) == 1
    assert weights(runs_dir) == "weights"


@pytest.mark.parametrize("names", [("runs/mine", "elsewhere/kept"), ("elsewhere/kept", "runs/mine")])
def test_one_process_writes_a_run_whatever_its_name(runs_dir, names):
    first, second = (runs_dir.parent / name for name in names)
    with run_directory.locked(first), pytest.raises(BusyError), run_directory.locked(second):
        pass
