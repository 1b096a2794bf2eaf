"""A request for training that follows a restart of the processes resumes the run."""

from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.resolve import resolve
from txlcli.workflows.workspace import Workspace


def test_the_limits_of_a_run_stay_after_a_restart(here):
    options = TrainOptions(
        name="byte",
        overrides=("corpus.store=novel", "published.parameters=1"),
        max_steps=2,
        max_minutes=0.5,
        profile=3,
    )
    lines = []
    workspace = Workspace(reporter=Reporter(lambda text, done, total: lines.append(text)))
    request = resolve("tiny.toml", options, workspace, restarts=1)
    assert request.resumed.name == "byte"
    assert (request.options.max_steps, request.options.max_minutes, request.options.profile) == (2, 0.5, None)
    assert "restart 1" in lines[0]
