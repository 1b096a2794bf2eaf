"""States that a kill can leave in the directory of the runs are completed or rolled back, and no checkpoint is lost."""

import pytest
import torch

from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.runs.lifecycle import recover
from txlcli.system import locks


@pytest.fixture
def runs_dir(tmp_path):
    (tmp_path / "runs" / ".locks").mkdir(parents=True)
    return tmp_path / "runs"


def make(directory, *files, step=None):
    """Make a run directory with empty files, and with a checkpoint of a step."""
    directory.mkdir()
    for name in files:
        (directory / name).write_text(directory.name)
    if step is not None:
        checkpoint.save(directory / "last.safetensors", Checkpoint({"a": torch.ones(2)}, {"step": step}))
    return directory


def recovered(runs_dir):
    lines = []
    recover(runs_dir, lines.append)
    return lines


@pytest.mark.parametrize(
    ("files", "step"),
    [
        (None, None),
        *((files, step) for files in ([], ["vocab.json"]) for step in (None, 0)),
        (["vocab.json", "run.json", "metrics.jsonl", ".last.safetensors.new"], None),
    ],
)
def test_a_replacement_without_progress_is_rolled_back(runs_dir, files, step):
    make(runs_dir / ".a.replaced", "run.json", step=5)
    if files is not None:  # else it was killed before its directory was there
        make(runs_dir / "a", *files, step=step)
    (line,) = recovered(runs_dir)
    assert line.startswith("restored the run")
    assert checkpoint.load(runs_dir / "a/last.safetensors").state["step"] == 5
    assert sorted(path.name for path in runs_dir.iterdir()) == [".locks", "a"]


@pytest.mark.parametrize(("files", "step"), [((), 1), (("metrics.jsonl",), 1), (("best.safetensors",), 0)])
def test_a_replacement_with_progress_is_completed(runs_dir, files, step):
    make(runs_dir / ".a.replaced", "run.json", step=5)
    make(runs_dir / "a", "run.json", *files, step=step)
    (line,) = recovered(runs_dir)
    assert line.startswith("deleted the earlier run")
    assert checkpoint.load(runs_dir / "a/last.safetensors").state["step"] == step
    assert sorted(path.name for path in runs_dir.iterdir()) == [".locks", "a"]


def test_both_runs_are_kept_if_the_checkpoint_of_the_replacement_is_damaged(runs_dir):
    make(runs_dir / ".a.replaced", "run.json", step=5)
    make(runs_dir / "a", "run.json", "last.safetensors")
    (line,) = recovered(runs_dir)
    assert "a/last.safetensors: damaged" in line
    assert (runs_dir / "a").exists()
    assert (runs_dir / ".a.replaced").exists()


def test_a_run_that_a_process_writes_is_left_alone(runs_dir):
    make(runs_dir / ".a.replaced", "run.json", step=5)
    make(runs_dir / "a", "vocab.json")
    with locks.exclusive(runs_dir / ".locks/a", "busy"):
        assert recovered(runs_dir) == []
    assert (runs_dir / ".a.replaced").exists()
