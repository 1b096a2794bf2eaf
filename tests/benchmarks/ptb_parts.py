"""Compare four-layer models of the recipes ptb, ptb-memory and ptb-fast, and ptb without or with single parts.

python -m tests.benchmarks.ptb_parts --steps N [--seeds 3] [--only TEXT] [--stride 10] [--json FILE]
python -m tests.benchmarks.ptb_parts --only "on top" --steps 6000 --lanes 10 --precision fp32 --keep FOLDER

The recipes have several seeds, the variants one by default, which only shows what does harm. The file has the results
after every run; with --keep, another call continues the runs. What stands on top of ptb is evaluated as the recipe
says, segments of 10 tokens, with a memory of 130 tokens and that of training.
"""

import json
import re
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from tests.benchmarks import mixture as _  # noqa: F401 - registers the architecture "mixture"
from tests.benchmarks.curve import trained
from txlcli.runs import run_directory
from txlcli.system.command_lines import DATA_DIR
from txlcli.workflows.evaluation import evaluate
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.reproduction.models import Model
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.workspace import Workspace

SHARED = (
    *("model.n_layers=4", "model.dropout=0.1", "model.embedding_dropout=0.2", "model.output_dropout=0.2"),
    *("model.word_dropout=0.1", "model.attention_dropout=0.1", "train.valid_tokens=20_000"),
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
MUON = ("train.optimizer=muon", "train.lr=2e-3", "train.betas=[0.9,0.99]")
ADDITIONS = {
    "on top: nothing": (),
    "on top: memory of 70": ("train.mem_len=70", "eval.mem_len=200"),
    "on top: memory of 140": ("train.mem_len=140", "eval.mem_len=270"),
    "on top: Muon": MUON,
    "on top: Muon with weight decay": (*MUON, "train.weight_decay=0.2"),
    "on top: SwiGLU of half the width": ("model.feed_forward=swiglu", "model.d_inner=675"),
    "on top: mixture of softmaxes": ("model.arch=mixture", "model.softmaxes=3"),
    "on top: exponential average": VARIANTS["no mean of the weights"] + ("train.average=exponential",),
}
"""Changes of the recipe, each of which adds or replaces one part."""


def scheduled(steps):
    """Return the changes for a schedule of so many steps, with a twelfth of them for warm-up, as was measured."""
    return (f"train.max_steps={steps}", f"train.warmup_steps={steps // 12}", f"train.valid_every={max(1, steps // 12)}")


def measure(recipe_name, label, changes, seed, workspace, *, lengths):
    """Train a variant; return its perplexities on valid and test, at the temperature that is best on valid.

    The last one of the changes of a setting counts.
    """
    name = re.sub(r"\W+", "-", f"{recipe_name} {label} {seed}")
    model = Model(label, recipe_name).changed(label, *changes)
    trained(recipe_name, TrainOptions(name=name, overrides=model.changes, seed=seed), workspace)
    result = {"recipe": recipe_name, "variant": label, "seed": seed}
    for split in ("valid", "test"):
        reading = EvalOptions(split=split, temperature="auto", timed=False, **lengths)
        run = run_directory.find(name, workspace.runs_dir)
        row = evaluate.evaluate_run(run, reading, workspace).rows[0]
        result["temperature"] = row.temperature
        result[f"{split}_ppl"] = row.measures["ppl"]
    return result


def cases(seeds, variant_seeds, stride):
    """Yield recipe, label, changes, seed and how the run is evaluated."""
    for name in RECIPES:
        lengths = {"attn_len": (140,), "stride": stride} if name == "ptb" else {"mem_len": (70,)}
        for seed in range(1, seeds + 1):
            yield name, "whole recipe", (), seed, lengths
    for seed in range(1, variant_seeds + 1):
        for label, changes in VARIANTS.items():
            yield "ptb", label, changes, seed, {"attn_len": (140,), "stride": stride}
        for label, changes in ADDITIONS.items():
            yield "ptb", label, changes, seed, {}


def main(
    steps: Annotated[int, typer.Option(min=12, help="Steps of a run.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the whole recipes.")] = 3,
    variant_seeds: Annotated[int, typer.Option(min=1, help="Seeds of the variants.")] = 1,
    only: Annotated[
        str, typer.Option(help="Part of the names of variant and recipe, as in 'whole recipe ptb-fast'.")
    ] = "",
    json_file: Annotated[Path, typer.Option("--json", help="File of the results.")] = Path("ptb_parts.json"),
    stride: Annotated[int, typer.Option(min=1, help="Tokens of a window of ptb that count.")] = 10,
    lanes: Annotated[int, typer.Option(min=1, help="Batch size.")] = 20,
    precision: Annotated[Literal["fp32", "bf16"], typer.Option(help="Precision of products.")] = "bf16",
    keep: Annotated[Path | None, typer.Option(help="Folder of the runs, which a later call continues.")] = None,
    device: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Device to train on.")] = "auto",
    data_dir: Annotated[Path, typer.Option(help="Folder of the token stores.")] = DATA_DIR,
) -> None:
    """Train all variants, and write the results after each."""
    results = []
    shared = (*SHARED, f"train.batch_size={lanes}", f"train.precision={precision}")
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(data_dir=data_dir, runs_dir=Path(folder), device=device)
        for name, label, changes, seed, lengths in cases(seeds, variant_seeds, stride):
            if only in f"{label} {name}":
                of_run = (*shared, *RECIPES[name], *scheduled(steps), *changes)
                results.append(measure(name, label, of_run, seed, workspace, lengths=lengths))
                json_file.write_text(json.dumps({"steps": steps, "results": results}, indent=1) + "\n")
                typer.echo(json.dumps(results[-1]))


if __name__ == "__main__":
    typer.run(main)
