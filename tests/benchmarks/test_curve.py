"""The runs of `python -m tests.benchmarks.curve`, and what the public logs say."""

import os
import signal

import pytest

from tests.benchmarks.curve import trained
from tests.benchmarks.public_logs import read_logs, read_losses
from tests.commands.conftest import here, trained_novel
from tests.commands.novel import HERE
from txlcli.errors import Interrupted
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace

__all__ = ["here", "trained_novel"]


def validated_steps(reports):
    return [report["step"] for report in reports if report["kind"] == "valid"]


@pytest.mark.parametrize("valid_every", ["3", "epoch"])
def test_a_run_that_was_stopped_before_its_last_validation_makes_it(here, valid_every):
    workspace = Workspace(**HERE)
    changes = (f"train.valid_every={valid_every}",)
    first, *_ = validated_steps(trained("tiny.toml", TrainOptions(name="whole", overrides=changes), workspace))

    def interrupt(report):
        if report["step"] == first:
            os.kill(os.getpid(), signal.SIGINT)

    options = TrainOptions(name="stopped", overrides=changes, max_steps=first)
    with pytest.raises(Interrupted):
        train_recipe("tiny.toml", options, workspace, on_report=interrupt)
    earlier = TrainOptions(name="stopped", overrides=changes, max_steps=1)
    assert validated_steps(trained("tiny.toml", earlier, workspace)) == []
    assert validated_steps(trained("tiny.toml", options, workspace)) == [first]
    assert validated_steps(trained("tiny.toml", options, workspace)) == [first]


def test_a_run_that_has_taken_all_its_steps_is_only_read(here):
    options = TrainOptions(name="byte", max_steps=2)
    before = (here / "runs/byte/last.safetensors").read_bytes()
    assert trained("tiny.toml", options, Workspace(**HERE))
    assert (here / "runs/byte/last.safetensors").read_bytes() == before


def test_the_first_mean_loss_of_the_logs_is_divided_by_the_steps_that_it_adds_up():
    logged = read_logs("ptb_losses")
    losses = read_losses("ptb")
    assert losses[200] == pytest.approx({log: loss * 200 / 201 for log, loss in logged[200].items()})
    assert losses[400] == logged[400]
    assert read_losses("wt2") == {}
