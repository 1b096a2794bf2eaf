"""Train a recipe of Penn Treebank for a given time, in one call or in several, and evaluate it.

The schedule has as many steps as fit into the time at the measured pace, so that the learning rate falls to its end;
warm-up and mean of the weights keep their shares. With a folder to keep, a later call of the same command continues.
The results are the curve, beside public logs if all steps of the recipe fit, and the perplexities on valid and test by
each way of evaluation, with their temperatures.
"""

import dataclasses
import json
import os
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

from tests.benchmarks import public_logs
from tests.benchmarks.corpus import write_text
from tests.gpu import rows
from tests.gpu.stage import PASSED, Skip
from txlcli.config import recipe
from txlcli.data.token_store import TokenStore
from txlcli.errors import TxlError
from txlcli.runs import history, run_directory
from txlcli.workflows.evaluation import evaluate
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.preparation import preparing
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace

RECIPES = {"ptb-fast": 20.0, "ptb": float("inf")}
"""Recipes, with the longest time in minutes for which each is chosen."""
RUN = "ptb"
STORE = "ptb.h5"
IN_MEMORY = Path("/dev/shm")
READINGS = {
    "the script's": {"attn_len": (140,), "stride": 10, "temperature": 1.08},  # of the public script that ptb follows
    "windows": {"attn_len": (140,), "stride": 10},
    "memory": {"mem_len": (130,)},
}
DYNAMIC = {"mem_len": (140,), "seg_len": 70, "dynamic": True}
TOY_READINGS = {"windows": {"attn_len": (16,), "stride": 4}, "memory": {"mem_len": (8,), "seg_len": 8}}
SHARE_OF_STEPS = 0.9
"""Part of the time left for steps; the rest is for validations and saving."""
EVALUATION_S, PACE_S = 60.0, 60.0
"""Time that is kept for the evaluation, and the longest one of measuring a step."""
TOY_STEPS, TOY_BYTES, TOY_TYPES = 12, 60_000, 211
TOY_STORE = "made-up"
TOY_CHANGES = (*rows.TOY, "train.mem_len=0", "train.reread_len=8", "train.valid_every=6", f"corpus.store={TOY_STORE}")


def recipe_for(minutes):
    """Return the recipe that is trained for this time."""
    return next(name for name, longest in RECIPES.items() if minutes <= longest)


def fitting_steps(ms_per_step, seconds, most):
    """Return how many steps fit into the time, rounded down to hundreds; at most those of the recipe."""
    fitting = 1e3 * SHARE_OF_STEPS * (seconds - EVALUATION_S) / ms_per_step
    return most if fitting >= most else max(100, int(fitting) // 100 * 100)


def schedule(settings, steps):
    """Return the changes of a recipe for a schedule of `steps` steps; none for its own."""
    train = settings.train
    if steps == train.max_steps:
        return ()
    warm_up = train.warmup_steps * steps // train.max_steps
    return (
        f"train.max_steps={steps}",
        f"train.warmup_steps={warm_up}",
        f"train.valid_every={max(1, steps // 40)}",
        f"log.every={max(1, steps // 200)}",
    )


def workspace(directory, device):
    return Workspace(data_dir=directory, runs_dir=directory / "runs", device=device)


def training(directory, name, changes, device, minutes, tell):
    """Train the recipe, or continue its run, and tell the curve while it grows."""
    resumes = (directory / "runs" / RUN / run_directory.LAST).exists()
    before = history.read(run_directory.read_run(directory / "runs" / RUN)).reports if resumes else ()
    curve = {"train": [], "valid": []}

    def on_report(line):
        further = "tokens_per_s" if line["kind"] == "train" else "seconds"
        curve[line["kind"]].append({field: line[field] for field in ("step", "epoch", "ppl", further)})
        tell({"curve": curve})

    for line in before:
        on_report(line)
    tell({"recipe": name, "changes": changes})
    if resumes and history.read(run_directory.read_run(directory / "runs" / RUN)).state == "finished":
        return tell(facts_of(directory, curve))
    ending = {"max_minutes": minutes}
    options = (
        TrainOptions(resume=RUN, **ending) if resumes else TrainOptions(name=RUN, overrides=tuple(changes), **ending)
    )
    train_recipe(None if resumes else name, options, workspace(directory, device), on_report=on_report)
    return tell(facts_of(directory, curve))


def facts_of(directory, curve):
    """Return facts about the run as far as it is trained, and its curve beside the logs of the script."""
    past = history.read(run_directory.read_run(directory / "runs" / RUN))
    train = past.run.settings.train
    facts = {"steps": past.step, "all_steps": past.state == "finished", "parameters": past.run.parameters}
    if train.valid_every == "epoch":
        perplexities = {round(point["epoch"]): point["ppl"] for point in curve["valid"]}
        facts["beside_logs"] = public_logs.beside(
            perplexities, public_logs.read_logs("ptb"), widened=public_logs.WIDENED
        )
    return {**facts, "seeds": [train.seed]}


def evaluation(directory, device, readings):
    """Evaluate the best weights, at the temperature that is best on valid where none is given.

    The result is that on test where valid is best.
    """
    here = workspace(directory, device)
    run = run_directory.find(RUN, here.runs_dir)
    found = {}
    for reading, changes in readings.items():
        options = {"temperature": "auto", "timed": False, **changes}
        of_splits = {
            split: evaluate.evaluate_run(run, EvalOptions(split=split, **options), here).rows
            for split in ("valid", "test")
        }
        for row, on_test in zip(*of_splits.values(), strict=True):
            found[f"{reading}{f', {row.method}' if row.method else ''}"] = {
                "valid_ppl": row.measures["ppl"],
                "test_ppl": on_test.measures["ppl"],
                "temperature": on_test.temperature,
            }
    best = min(found, key=lambda reading: found[reading]["valid_ppl"])
    published = dataclasses.asdict(recipe.load("ptb").published)
    return {"readings": found, "best": best, "published": published, **found[best]}


def prepare_toy(directory):
    """Prepare a small store from words that are made up."""
    text = directory / f"{TOY_STORE}.txt"
    write_text(text, TOY_BYTES, types=TOY_TYPES)
    os.truncate(text, TOY_BYTES)
    preparing.run(str(text), PrepareOptions(tokenizer="word", split=(80, 10, 10), force=True), directory)


def find_store(data_dir):
    try:
        return {"store": str(TokenStore.open(data_dir / STORE).path)}
    except TxlError as error:
        raise Skip(str(error)) from error


def pace(stage, name, device, *, toy):
    """Return the milliseconds of a step: those that were measured before, if they were; None if they are not known."""
    timed = [row for row in stage.rows if row["row"] == f"training {name}" and row["status"] == PASSED]
    given = {"name": name, "changes": (), "device": device, "toy": toy}
    row = timed[0] if timed else stage.run(f"training {name}", rows.training, at_most_s=PACE_S, **given)
    return None if row is None else row["ms_per_token"] * row["tokens_per_step"]


def plan(stage, device, *, toy, minutes):
    """Return the recipe and its changes for a training run of so many minutes in all."""
    name = recipe_for(minutes)
    ms_per_step = pace(stage, name, device, toy=toy)
    settings = recipe.load(name)
    steps = TOY_STEPS if toy else settings.train.max_steps
    if ms_per_step is not None and not toy:
        steps = fitting_steps(ms_per_step, 60 * minutes, steps)
    return name, [
        "train.precision=bf16",
        *schedule(settings, steps),
        *(TOY_CHANGES if toy else ()),
        *rows.LONG_RUN[device],
    ]


def run(stage, device, *, toy, data_dir, keep, total_minutes):
    """Compute the rows of Penn Treebank in the time that is left of this call.

    Args:
        keep: directory of the run, perhaps that of an earlier call; None to keep nothing.
        total_minutes: time of the run in all calls; None for the time of this one.
    """
    if not stage.includes("ptb training"):
        return
    kept = nullcontext(keep) if keep else tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
    with kept as folder:
        directory = Path(folder)
        planned = directory / "plan.json"
        if not planned.exists():
            if not toy and stage.run("ptb store", find_store, at_most_s=PACE_S, data_dir=data_dir) is None:
                return
            directory.mkdir(exist_ok=True, parents=True)
            if toy:
                prepare_toy(directory)
            else:
                shutil.copy(data_dir / STORE, directory)
            minutes = total_minutes or stage.seconds_left / 60
            planned.write_text(json.dumps(plan(stage, device, toy=toy, minutes=minutes)))
        name, changes = json.loads(planned.read_text())
        given = {"directory": directory, "device": device}
        minutes = max(0.0, stage.seconds_left - EVALUATION_S) / 60 or 0.01
        trained = stage.run("ptb training", training, name=name, changes=changes, minutes=minutes, **given)
        if trained is not None and trained["all_steps"]:
            stage.run("ptb evaluation", evaluation, readings=TOY_READINGS if toy else READINGS, **given)
            if not toy:
                stage.run("ptb dynamic evaluation", evaluation, readings={"dynamic": DYNAMIC}, **given)
