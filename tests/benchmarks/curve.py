"""Train a recipe and lay its curve beside public logs of the script that the recipe follows.

python -m tests.benchmarks.curve ptb --epochs 3 [--seed S] [--keep FOLDER] [--json FILE] [--figure FILE]
python -m tests.benchmarks.curve ptb --steps 400
python -m tests.benchmarks.curve wt2 --steps 5600

`curves/` has what the logs say: perplexity on valid after every epoch of ptb and every 400 steps of wt2, and the mean
training loss by steps of the first epoch of ptb. The run is the whole recipe, stopped after so many epochs or steps;
with --keep, another call continues it.
"""

import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import matplotlib as mpl
import typer
from rich.console import Console
from rich.table import Table

from tests.benchmarks.public_logs import WIDENED, beside, read_logs, read_losses
from txlcli.config import recipe
from txlcli.core.training.segments import TrainingSegments
from txlcli.data.token_store import TokenStore
from txlcli.runs import history, run_directory
from txlcli.system.command_lines import DATA_DIR
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace


def show(title, unit, rows):
    table = Table(title=title)
    for heading in (unit, "txl", *rows[0]["logs"], "band", "inside"):
        table.add_column(heading, justify="right")
    for row in rows:
        low, high = row["band"]
        logs = [f"{value:.2f}" for value in row["logs"].values()]
        table.add_row(
            str(row["at"]), f"{row['ours']:.2f}", *logs, f"{low:.2f} to {high:.2f}", "yes" if row["inside"] else "no"
        )
    Console().print(table)


def draw(unit, rows, path):
    """Draw the band of the logs and our line, by epoch or by step."""
    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure, axes = plt.subplots(figsize=(6.4, 4))
    at = [row["at"] for row in rows]
    values = [row["logs"].values() for row in rows]
    axes.fill_between(at, [min(of) for of in values], [max(of) for of in values], alpha=0.4, label="public logs")
    axes.plot(at, [row["ours"] for row in rows], color="black", marker="o", label="txl")
    axes.set(xlabel=unit, ylabel="perplexity on valid", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:.0f}"))
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def steps_of_epochs(name, epochs, seed, data_dir):
    """Return the number of steps of the first epochs of a recipe."""
    settings = recipe.load(name, [] if seed is None else [f"train.seed={seed}"])
    store = TokenStore.open(data_dir / f"{settings.corpus.store}.h5")
    segments = TrainingSegments(store.ids("train"), settings.train)
    return sum(segments.segments_in(epoch) for epoch in range(epochs))


def trained(recipe_name, options, workspace):
    """Train the run that options name, or continue it; return its reports from the beginning.

    A run that has taken all these steps, and made the validation that they end with, is only read.
    """
    directory = workspace.runs_dir / options.name
    if not (directory / run_directory.LAST).exists():
        train_recipe(recipe_name, options, workspace)
        return history.read(run_directory.read_run(directory)).reports
    begun = history.read(run_directory.read_run(directory))
    last_step = options.max_steps or begun.run.settings.train.max_steps
    if begun.step < last_step or (begun.step == last_step and validation_is_due(begun)):
        train_recipe(None, TrainOptions(resume=options.name, max_steps=options.max_steps), workspace)
    return history.read(begun.run).reports


def validation_is_due(begun):
    """Return True if the saved step ends with a validation that is missing: the run was stopped before it."""
    train = begun.run.settings.train
    if train.valid_every == "epoch":
        ends_interval = begun.saved["place"]["segment"] == 0
    else:
        ends_interval = begun.step % train.valid_every == 0
    return (ends_interval or begun.step == train.max_steps) and begun.saved["validated"] < begun.step


def main(
    name: Annotated[Literal["ptb", "wt2"], typer.Argument(help="Recipe.")],
    epochs: Annotated[int, typer.Option(min=1, help="Epochs after which the run stops.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps after which it stops, instead of epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed instead of the recipe's.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder of the run, which a later call continues.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File of the results.")] = None,
    figure: Annotated[Path | None, typer.Option(help="File of a figure.")] = None,
    device: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Device to train on.")] = "auto",
    data_dir: Annotated[Path, typer.Option(help="Folder of the token stores.")] = DATA_DIR,
) -> None:
    """Train the recipe, and print its curve beside the logs."""
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(data_dir=data_dir, runs_dir=Path(folder), device=device)
        last_step = steps or steps_of_epochs(name, epochs, seed, data_dir)
        reports = trained(name, TrainOptions(name=name, max_steps=last_step, seed=seed), workspace)
    unit = "epoch" if recipe.load(name).train.valid_every == "epoch" else "step"
    perplexities = {round(line[unit]): line["ppl"] for line in reports if line["kind"] == "valid"}
    mean_losses = {line["step"]: line["loss_nats"] for line in reports if line["kind"] == "train"}
    valid = beside(perplexities, read_logs(name), widened=WIDENED)
    losses = beside(mean_losses, read_losses(name))
    if losses:
        show("Mean training loss up to a step, in nats", "step", losses)
    if valid:
        show(f"Perplexity on valid by {unit}", unit, valid)
    if json_file:
        json_file.write_text(json.dumps({"recipe": name, "valid": valid, "losses": losses}, indent=1) + "\n")
    if figure and valid:
        draw(unit, valid, figure)


if __name__ == "__main__":
    typer.run(main)
