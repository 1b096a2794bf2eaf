"""Train the recipe `ptb` to the end of its schedule, and evaluate it.

If the steps of the recipe take longer than the time that is left, the schedule is shortened to as many steps as fit, so
that the learning rate still falls to its end. Text and run are in memory. The results are the curve, and the
perplexities of several memory lengths on valid and test.
"""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

from tests.benchmarks.corpus import write_text
from tests.gpu import rows
from tests.gpu.stage import PASSED
from txlcli import api
from txlcli.config import recipe
from txlcli.data.token_store import TokenStore
from txlcli.workflows.options import PrepareOptions, TrainOptions
from txlcli.workflows.preparation import preparing
from txlcli.workflows.training import start
from txlcli.workflows.workspace import Workspace

RECIPE = "ptb"
IN_MEMORY = Path("/dev/shm")
MEMORIES = (70, 140, 280, 420)
"""Memory lengths of the evaluation."""
SHARE_OF_STEPS = 0.9
"""Part of the time left for steps; the rest is for validations and saving."""
EVALUATION_S, PACE_S = 60.0, 60.0
"""Time that is kept for the evaluation, and the longest one of measuring a step."""
TOY_STEPS, TOY_BYTES, TOY_TYPES = 12, 60_000, 211
TOY_STORE = "made-up"
TOY_CHANGES = (
    *rows.TOY,
    f"corpus.store={TOY_STORE}",
    "train.warmup_steps=3",
    "train.valid_every=6",
    f"train.max_steps={TOY_STEPS}",
)


def fitting_steps(ms_per_step, seconds, most):
    """Return how many steps fit into the time that is left, rounded down to hundreds; at most those of the recipe."""
    fitting = 1e3 * SHARE_OF_STEPS * (seconds - EVALUATION_S) / ms_per_step
    return most if fitting >= most else max(100, int(fitting) // 100 * 100)


def schedule(settings, steps):
    """Return the changes of a recipe for a schedule of `steps` steps."""
    train = settings.train
    warm_up = train.warmup_steps * steps // train.max_steps
    return (f"train.max_steps={steps}", f"train.warmup_steps={warm_up}", f"log.every={max(1, steps // 200)}")


def workspace(directory, device):
    return Workspace(data_dir=directory, runs_dir=directory / "runs", device=device)


def training(directory, changes, device, minutes, tell):
    """Train the recipe, and tell the curve while it grows."""
    curve = {"train": [], "valid": []}

    def on_report(line):
        fields = (
            ("step", "epoch", "ppl", "tokens_per_s") if line["kind"] == "train" else ("step", "epoch", "ppl", "seconds")
        )
        curve[line["kind"]].append({field: line[field] for field in fields})
        tell({"curve": curve})

    options = TrainOptions(name=RECIPE, overrides=tuple(changes), max_minutes=minutes)
    trained = start.run(RECIPE, options, workspace(directory, device), on_report=on_report)
    tell({"changes": changes, "steps": trained.step, "parameters": trained.run.parameters})
    tell({"all_steps": trained.step == trained.run.settings.train.max_steps})


def evaluation(directory, device, toy):
    """Evaluate the best weights; the test result is that of the memory length that is best on valid."""
    run = api.load(RECIPE, runs_dir=directory / "runs", data_dir=directory, device=device)
    memories = (8, 16) if toy else MEMORIES
    found = {split: run.evaluate(mem_len=memories, split=split) for split in ("valid", "test")}
    best = min(range(len(memories)), key=lambda number: found["valid"][number].loss_nats)
    return {
        "best_mem_len": memories[best],
        **{f"{split}_ppl": rows[best].ppl for split, rows in found.items()},
        "published": dataclasses.asdict(recipe.load(RECIPE).published),
        **{split: [dataclasses.asdict(row) for row in rows] for split, rows in found.items()},
    }


def prepare_toy(directory):
    """Prepare a small store from words that are made up."""
    text = directory / f"{TOY_STORE}.txt"
    write_text(text, TOY_BYTES, types=TOY_TYPES)
    os.truncate(text, TOY_BYTES)
    preparing.run(str(text), PrepareOptions(tokenizer="word", split=(80, 10, 10), force=True), directory)


def pace(stage, device, *, toy):
    """Return the milliseconds of a step: those that were measured before, if they were; None if they are not known."""
    timed = [row for row in stage.rows if row["row"] == f"training {RECIPE}" and row["status"] == PASSED]
    given = {"name": RECIPE, "changes": (), "device": device, "toy": toy}
    row = timed[0] if timed else stage.run(f"training {RECIPE}", rows.training, at_most_s=PACE_S, **given)
    return None if row is None else row["ms_per_token"] * row["tokens_per_step"]


def run(stage, device, *, toy, data_dir, keep):
    """Compute the rows of Penn Treebank in the time that is left; `keep` is a new directory for the run, or None."""
    if not stage.includes("ptb training"):
        return
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as name:
        directory = Path(name)
        prepare_toy(directory) if toy else shutil.copy(TokenStore.open(data_dir / f"{RECIPE}.h5").path, directory)
        ms_per_step = pace(stage, device, toy=toy)
        settings = recipe.load(RECIPE, list(TOY_CHANGES) if toy else [])
        steps = settings.train.max_steps
        if ms_per_step is not None and not toy:
            steps = fitting_steps(ms_per_step, stage.seconds_left, steps)
        small = TOY_CHANGES if toy else ("train.valid_every=4000",)
        changes = ("train.precision=bf16", *small, *schedule(settings, steps), *rows.LONG_RUN[device])
        minutes = max(0.0, stage.seconds_left - EVALUATION_S) / 60 or 0.01
        given = {"directory": directory, "device": device}
        if stage.run("ptb training", training, changes=changes, minutes=minutes, **given) is not None:
            stage.run("ptb evaluation", evaluation, toy=toy, **given)
            if keep is not None:
                shutil.copytree(directory / "runs" / RECIPE, keep)
