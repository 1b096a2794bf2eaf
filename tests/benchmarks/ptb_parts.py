"""Compare four-layer models of the recipes ptb, ptb-memory and ptb-fast, and ptb without each of its parts.

python -m tests.benchmarks.ptb_parts [--minutes 20 | --steps N] [--seeds 3] [--only TEXT] [--stride 10] [--json FILE]

The recipes have several seeds, the variants one, which only shows what does harm. All runs take the same number of
steps, those that `ptb` can take in the time at the measured pace. The file has the results after every run.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from txlcli.config import recipe
from txlcli.system.command_lines import DATA_DIR
from txlcli.workflows.evaluation import evaluate
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace

SHARED = (
    *("train.precision=bf16", "model.n_layers=4", "train.batch_size=20"),
    *("model.dropout=0.1", "model.embedding_dropout=0.2", "model.output_dropout=0.2", "model.word_dropout=0.1"),
    *("model.attention_dropout=0.1", "train.valid_tokens=20_000"),
)
"""The regularization of a smaller model, as for the measured one of four layers."""
RECIPES = {
    "ptb": ("train.lr=8e-4", "model.distance_dropout=0.2", "model.projection_dropout=0.1"),
    "ptb-memory": ("train.lr=8e-4",),
    "ptb-fast": (),
}
"""Recipes, with the changes for the size of the model that each has for itself."""
MEMORY = ("train.mem_len=70", "train.reread_len=0")
VARIANTS = {
    "memory instead of extended context": MEMORY,
    "one segment length": ("train.seg_len_jitter=false",),
    "no penalties": ("train.activation_penalty=0", "train.slowness_penalty=0"),
    "one rate for all": ("train.embedding_lr=1",),
    "no mean of the weights": ("train.average=none", "train.average_from=0.75", "train.average_lr_factor=1"),
    "position relative": ("model.position=relative",),
    "no dropout of projections": ("model.projection_dropout=0",),
    "dropout of R as elsewhere": ("model.distance_dropout=0.1",),
}
"""Changes of the recipe, each of which takes out one part."""
PROBE_STEPS = 12


def scheduled(steps):
    """Return the changes for a schedule of so many steps, with a twelfth of them for warm-up, as was measured."""
    return (f"train.max_steps={steps}", f"train.warmup_steps={steps // 12}", f"train.valid_every={max(1, steps // 12)}")


def pace(workspace):
    times = []
    options = TrainOptions(name="pace", overrides=(*SHARED, *RECIPES["ptb"], *scheduled(PROBE_STEPS), "log.every=1"))
    train_recipe("ptb", options, workspace, on_report=times.append)
    settings = recipe.load("ptb", SHARED).train
    rates = [line["tokens_per_s"] for line in times if line["kind"] == "train"]
    return settings.batch_size * settings.seg_len / statistics.median(rates)


def measure(name, label, changes, seed, workspace, *, stride=10):
    """Train a variant; return its perplexities on valid and test, at the temperature that is best on valid."""
    options = TrainOptions(name=f"{name}-{abs(hash((label, seed)))}", overrides=tuple(changes), seed=seed)
    run = train_recipe(name, options, workspace).run
    lengths = {"attn_len": (140,), "stride": stride} if name == "ptb" else {"mem_len": (70,)}
    readings = {
        split: EvalOptions(split=split, temperature="auto", timed=False, **lengths) for split in ("valid", "test")
    }
    rows = {split: evaluate.run(str(run.directory), reading, workspace).rows[0] for split, reading in readings.items()}
    ppl = {f"{split}_ppl": row.measures["ppl"] for split, row in rows.items()}
    return {"recipe": name, "variant": label, "seed": seed, "temperature": rows["test"].temperature, **ppl}


def main(
    minutes: Annotated[float, typer.Option(min=0.0, help="Longest time of a run.")] = 20.0,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the whole recipes.")] = 3,
    only: Annotated[
        str, typer.Option(help="Part of the names of variant and recipe, as in 'whole recipe ptb-fast'.")
    ] = "",
    json_file: Annotated[Path, typer.Option("--json", help="File of the results.")] = Path("ptb_parts.json"),
    steps: Annotated[int | None, typer.Option(min=12, help="Steps of a run instead of a time.")] = None,
    stride: Annotated[int, typer.Option(min=1, help="Tokens of a window of ptb that count.")] = 10,
    device: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Device to train on.")] = "auto",
    data_dir: Annotated[Path, typer.Option(help="Folder of the token stores.")] = DATA_DIR,
) -> None:
    """Train all variants, and write the results after each."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(data_dir=data_dir, runs_dir=Path(folder), device=device)
        steps = steps or max(12, int(60 * minutes / pace(workspace)))
        cases = [(name, "whole recipe", (), seed) for name in RECIPES for seed in range(1, seeds + 1)]
        cases += [("ptb", label, changes, 1) for label, changes in VARIANTS.items()]
        for name, label, changes, seed in cases:
            if only in f"{label} {name}":
                of_run = (*SHARED, *RECIPES[name], *scheduled(steps), *changes)
                results.append(measure(name, label, of_run, seed, workspace, stride=stride))
                json_file.write_text(json.dumps({"steps": steps, "results": results}, indent=1) + "\n")
                typer.echo(json.dumps(results[-1]))


if __name__ == "__main__":
    typer.run(main)
