"""Check txl on a GPU and measure it: the one command for a card, which no machine without one needs.

python -m tests.gpu [PART ...] [--minutes 9] [--keep FOLDER [--total-minutes 20]] [--json FILE] [--only NAME]
    [--device cuda|cpu] [--toy]

Parts, in this order and all of them by default: `tests` (rates of copies and matrix products, and every test of
`test_cuda_*.py` in parallel processes), `throughput` (training, evaluation and single tokens as users run them, with
the kernels that take the most time), `bf16` (losses of 300 steps against autocast's and those of float64), `peer`
(Hugging Face's TransfoXL in the same precision), `ptb` (Penn Treebank in the time that is left). The results are in the
file after every row; a table of them ends the output.
"""

import functools
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tests.benchmarks.peer import COMPARISONS
from tests.gpu import ptb, rows
from tests.gpu.stage import Stage, describe_machine
from txlcli import console
from txlcli.errors import TxlError
from txlcli.system.command_lines import DATA_DIR

DIRECTORY = Path(__file__).parent
TESTS_S, ROW_S = 180.0, 120.0
"""The longest time of all tests, and of another row, compilation included."""
PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}
TRAINED = {"enwik8": (), "wt103": (), "wt103-nvidia": ("train.batch_size=32",), "ptb-memory": ()}
"""Recipes whose training is timed, with changes: NVIDIA's batch of 256 is that of eight GPUs."""
EVALUATED = (("enwik8", 10), ("enwik8", 1), ("wt103-nvidia", 16))
"""Recipes and batch sizes of evaluations."""
MEMORIES = (1600, 3800)
"""Memory lengths of single tokens."""
ROWS_OF_PEER = ("training-b22", "eval10", "eval1", "token1600", "wt103-training-b60")
TOY_ROWS_OF_PEER = ("training", "eval1")

PARTS = ("tests", "throughput", "bf16", "peer", "ptb")


def check(stage, device, *, toy):
    """The ceilings of the device, and the tests."""
    run = functools.partial(stage.run, at_most_s=ROW_S, device=device)
    run("copy", rows.copy_rate)
    for precision in PRECISIONS[device]:
        run(f"product, {precision}", rows.product_rate, precision=precision)
    files = [DIRECTORY / "test_cuda_steps.py"] if toy else sorted(DIRECTORY.glob("test_cuda_*.py"))
    stage.run("tests", rows.run_tests, at_most_s=TESTS_S, files=files, seconds=TESTS_S)


def time_recipes(stage, device, *, toy):
    """The recipes as users run them, in bf16."""
    run = functools.partial(stage.run, at_most_s=ROW_S, device=device, toy=toy)
    for name, changes in TRAINED.items():
        run(f"training {name}", rows.training, name=name, changes=changes)
    for name, batch_size in EVALUATED:
        run(f"evaluation {name}, B {batch_size}", rows.evaluation, name=name, batch_size=batch_size)
    for mem_len in MEMORIES:
        used = mem_len // 100 if toy else mem_len
        run(f"single tokens enwik8, M {mem_len}", rows.single_tokens, name="enwik8", mem_len=used)


def compare_precisions(stage, device, *, toy):
    """Losses of bf16 by the default path."""
    stage.run("losses in bf16", rows.bf16_steps, at_most_s=ROW_S, device=device, toy=toy)


def compare_with_peer(stage, device, *, toy):
    """The rows of `tests.benchmarks.peer`, in bf16 first: time may end before the others."""
    for comparison in reversed(COMPARISONS[device]):
        for name in TOY_ROWS_OF_PEER if toy else ROWS_OF_PEER:
            given = {"name": name, "comparison": comparison, "device": device, "toy": toy}
            stage.run(f"peer {name}, {comparison.peer}", rows.with_peer, at_most_s=ROW_S, **given)


def main(
    parts: Annotated[list[str] | None, typer.Argument(metavar="[PART]...", help=", ".join(PARTS))] = None,
    json_file: Annotated[Path, typer.Option("--json", help="File of the results, written after every row.")] = Path(
        "gpu.json"
    ),
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="Device to test.")] = "cuda",
    toy: Annotated[bool, typer.Option("--toy", help="Small sizes, which show that everything runs.")] = False,
    only: Annotated[str | None, typer.Option(help="Part of the names of the rows to compute.")] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="Time for all rows; others are not run.")] = 9.0,
    data_dir: Annotated[Path, typer.Option(help="Folder of the token stores.")] = DATA_DIR,
    keep: Annotated[Path | None, typer.Option(help="Folder of the run of ptb; a later call continues it.")] = None,
    total_minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Time of the run of ptb in all calls with --keep.")
    ] = None,
) -> None:
    """Check and measure txl on a device."""
    if not json_file.parent.is_dir():
        sys.exit(f"error: --json {json_file}: there is no folder {json_file.parent}; make it first")
    if keep is not None and keep.exists() and not (keep / "plan.json").exists():
        sys.exit(f"error: --keep {keep} exists; give a new folder, or that of an earlier call")
    if total_minutes is not None and keep is None:
        sys.exit("error: --total-minutes needs --keep, so that a later call continues")
    if unknown := set(parts or ()) - set(PARTS):
        sys.exit(f"error: no part {min(unknown)!r}; there are {', '.join(PARTS)}")
    facts = {"device": device, "toy": toy, "command": sys.argv[1:]}
    stage = Stage(facts=facts, json_file=json_file, minutes=minutes, only=only)
    if stage.run("machine", describe_machine, device=device) is None:
        raise typer.Exit(1)
    chosen = parts or PARTS
    computed = (check, time_recipes, compare_precisions, compare_with_peer)
    for part, compute in zip(PARTS, computed, strict=False):
        if part in chosen:
            compute(stage, device, toy=toy)
    if "ptb" in chosen:
        try:
            ptb.run(stage, device, toy=toy, data_dir=data_dir, keep=keep, total_minutes=total_minutes)
        except TxlError as error:
            console.complain(f"ptb is left out: {error}")
    raise typer.Exit(stage.end())


if __name__ == "__main__":
    typer.run(main)
