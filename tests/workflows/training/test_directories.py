"""Starting a training: which directory the run gets, and what is left of a run without a checkpoint."""

import pytest
from filelock import FileLock

from tests.commands.novel import HERE, RecordingReporter, card, done, refusal
from txlcli.errors import BusyError
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace


def test_trainings_that_start_together_get_different_directories(here):
    workspace = Workspace(**HERE, reporter=RecordingReporter())
    with FileLock("runs/.locks/tiny"):
        train_recipe("tiny.toml", TrainOptions(max_steps=1), workspace)
        with pytest.raises(BusyError, match=r"another process; wait for it, or name another run$"):
            train_recipe("tiny.toml", TrainOptions(max_steps=1, name="tiny"), workspace)
    assert card("runs/tiny-2")["recipe"] == "tiny"
    assert not (here / "runs/tiny").exists()
    with FileLock("runs/.locks/tiny-2", blocking=False):
        assert refusal("runs", "delete", "tiny-2", "--yes", code=1).endswith(
            "another process; wait for it, or name another run"
        )
    done("train", "--resume", "tiny-2")


def test_a_run_in_training_cannot_be_replaced_and_is_discarded_without_a_checkpoint(here):
    def interrupt(report):
        message = refusal("train", "tiny.toml", "--name", "new", "--force", code=1)
        assert "runs/new is being written by another process" in message
        raise ValueError

    options = TrainOptions(name="new")
    with pytest.raises(ValueError, match=r"^$"):
        train_recipe("tiny.toml", options, Workspace(**HERE, reporter=RecordingReporter()), on_report=interrupt)
    assert not (here / "runs/new").exists()
