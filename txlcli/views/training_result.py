"""Shows the result of a training."""

from txlcli import console
from txlcli.paper import metrics
from txlcli.workflows.training.execution import TrainingResult


def show(result: TrainingResult) -> None:
    """Print steps, best validation and next command of a training as a table."""
    run = result.run
    best = metrics.format_measure(metrics.in_metric(result.best_nats, run.metric))
    rows = [
        ["run", str(run.folder)],
        ["steps", f"{result.step:,} of {run.settings.train.max_steps:,}"],
        ["epochs", f"{result.epoch:.2f}"],
        [f"best valid {run.metric}", best if result.best_nats < float("inf") else "-"],
        ["next", result.next_command],
    ]
    console.show_table(f"{run.name}: {run.parameters:,} parameters", ("", ""), rows)
