"""Runs that are links to folders elsewhere, as on another disk."""

import pytest

from tests.runs.test_run_folder import create
from txlcli.errors import BusyError
from txlcli.runs import run_folder
from txlcli.runs.recovery import recover


@pytest.fixture
def runs_dir(tmp_path):
    """Make a folder of runs with the run `mine`, which is a link to the folder `elsewhere/kept`."""
    run = create(tmp_path / "runs", "mine")
    (run.folder / "last.safetensors").write_text("weights")
    (tmp_path / "elsewhere").mkdir()
    run.folder.rename(tmp_path / "elsewhere/kept")
    run.folder.symlink_to(tmp_path / "elsewhere/kept")
    return tmp_path / "runs"


def weights(runs_dir):
    return (runs_dir.parent / "elsewhere/kept/last.safetensors").read_text()


def test_force_replaces_the_link_and_keeps_the_folder(runs_dir):
    for _ in range(2):
        run = create(runs_dir, "mine", force=True)
        (run.folder / "last.safetensors").write_text("new")
        run_folder.delete_replaced(run)
        assert not run.folder.is_symlink()
        assert [path.name for path in runs_dir.iterdir()] == ["mine"]
    assert weights(runs_dir) == "weights"


def test_a_replacement_of_a_link_that_failed_is_rolled_back(runs_dir):
    run_folder.restore_replaced(create(runs_dir, "mine", force=True))
    assert (runs_dir / "mine").is_symlink()
    assert weights(runs_dir) == "weights"


def test_an_interrupted_replacement_of_a_link_is_completed_once(runs_dir):
    run = create(runs_dir, "mine", force=True)
    (run.folder / "last.safetensors").write_text("damaged, which counts as progress")
    lines = []
    with run_folder.locked(run.folder):  # as every training does before
        pass
    for _ in range(2):
        recover(runs_dir, lines.append)
    assert len(lines) == 1
    assert weights(runs_dir) == "weights"


@pytest.mark.parametrize("names", [("runs/mine", "elsewhere/kept"), ("elsewhere/kept", "runs/mine")])
def test_one_process_writes_a_run_whatever_its_name(runs_dir, names):
    first, second = (runs_dir.parent / name for name in names)
    with run_folder.locked(first), pytest.raises(BusyError), run_folder.locked(second):
        pass
