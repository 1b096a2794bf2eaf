"""On CUDA, train.compile = "auto" is decided once and recorded; on a CPU it means not compiled."""

from pathlib import Path

import pytest
import torch

from tests.commands.novel import RECIPE
from txlcli.config import recipe
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.distributed import SINGLE_PROCESS
from txlcli.runs.run_directory import Run
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training.plan import Plan, decide_compile

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def decided(*changes, device=CUDA, saved=None):
    """Return train.compile after the decision, and what the user was told."""
    settings = recipe.resolve_text(RECIPE, "tiny.toml", list(changes))
    run = Run(
        directory=Path("runs/tiny"), recipe_name="tiny", settings=settings, vocab_fingerprint="", vocab_size=300,
        parameters=1, metric="bpc",
    )  # fmt: skip
    lines = []
    reporter = Reporter(lambda text, done, total: lines.append(text))
    checkpoint = None if saved is None else Checkpoint({}, saved)
    after = decide_compile(Plan(run=run, device=device), checkpoint, SINGLE_PROCESS, reporter)
    return after.compile, lines


@pytest.mark.parametrize(
    ("changes", "how", "expected"),
    [
        ([], {"saved": {"compiled": True}}, "on"),
        ([], {"saved": {"compiled": False}}, "off"),
        (["train.compile=off"], {"saved": {"compiled": True}}, "off"),
        (["train.compile=on"], {"saved": {"compiled": False}}, "on"),
        ([], {"device": CPU}, "auto"),
    ],
)
def test_a_resumed_run_is_compiled_as_before_unless_the_setting_says_otherwise(changes, how, expected):
    assert decided(*changes, **how) == (expected, [])
