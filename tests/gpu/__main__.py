"""Check txl on a GPU and measure it: the one command for a card, which no machine without one needs.

python -m tests.gpu [PART ...] [--minutes 9] [--keep FOLDER [--total-minutes 20]] [--json FILE] [--only NAME]
    [--device cuda|cpu] [--toy] [--cache FOLDER]
python -m tests.gpu wheels

Parts, all of them by default, in this order or the one given: `smoke` (enwik8 with two layers: the default path against
eager steps and the definition), `enwik8` (training, with the kernels of three replays), `tests` (every test of
`test_cuda_*.py` in parallel processes, while the other recipes are compiled), `training` (other recipes), `reading`
(evaluation and single tokens), `bf16` (losses of 300 steps against autocast's and those of float64), `compiler`
(training with other options of the compiler), `peer` (Hugging Face's TransfoXL in the same precision), `rates` (of
copies and matrix products), `ptb` (Penn Treebank in the time that is left). Each row is printed and written to the file
before the next begins; a table of them ends the output. `wheels` lists the packages that each part needs.
"""

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path

from tests.gpu import wheels
from tests.gpu.stage import Stage, describe_machine, releases

DIRECTORY = Path(__file__).parent
ROW_S, SMOKE_S, TESTS_S, TO_END_TESTS_S = 100.0, 40.0, 150.0, 20.0
"""The longest time of a row, compilation included, of the smoke test, of all tests, and of what follows these."""
CACHE = Path(tempfile.gettempdir()) / "txl-gpu-cache"
"""Where compiled kernels are kept by default: the home directory may not be writable."""
PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}
NVIDIA = ("train.batch_size=32",)
"""NVIDIA's batch of 256 is that of eight GPUs."""
TRAINED = {"wt103-nvidia": NVIDIA, "ptb": (), "wt103": (), "ptb-memory": ()}
"""Recipes whose training is timed after enwik8, with changes."""
WARMED = (("wt103-nvidia", *NVIDIA, "--", "ptb-memory"), ("wt103", "--", "ptb"))
"""Recipes that are compiled while the tests run, in two processes."""
EVALUATED = (("enwik8", 10), ("enwik8", 1), ("wt103-nvidia", 16))
"""Recipes and batch sizes of evaluations."""
MEMORIES = (1600, 3800)
"""Memory lengths of single tokens."""
COMPILER_OPTIONS = {
    "no combined kernels": {"combo_kernels": False},
    "norms apart from sums": {"triton.mix_order_reduction": False},
    "norms of four rows": {"triton.mix_order_reduction_initial_xblock": 4},
}
"""What could be faster; the last two concern the backward pass of LayerNorm with the sums of gains and biases."""
ROWS_OF_PEER = ("training-b22", "eval10", "eval1", "token1600", "wt103-training-b60")
TOY_ROWS_OF_PEER = ("training", "eval1")
GOALS = {
    "training enwik8": ("tokens_per_s", 500_000),
    "training wt103-nvidia": ("tokens_per_s", 300_000),
    "training ptb": ("ms_per_step", 3.0),
    "training wt103": ("tokens_per_s", 300_000),
    "training ptb-memory": ("ms_per_step", 3.0),
    "evaluation enwik8, B 10": ("tokens_per_s", 500_000),
    "evaluation enwik8, B 1": ("tokens_per_s", 120_000),
    "evaluation wt103-nvidia, B 16": ("tokens_per_s", 400_000),
    "single tokens enwik8, M 1600": ("ms_per_token", 0.40),
    "peer wt103-training-b60, bf16": ("ratio", 1.0),
}
"""Figures to reach on one H100 in bf16, by row."""


def run_smoke(stage, options):
    """Two layers of enwik8."""
    from tests.gpu import rows

    stage.run("smoke", rows.smoke, at_most_s=SMOKE_S, device=options.device, toy=options.toy)


def time_enwik8(stage, options):
    _time_training(stage, options, "enwik8", ())


def run_tests(stage, options):
    """The tests; on a GPU, other recipes are compiled at the same time."""
    from tests.gpu import parallel_tests

    files = [DIRECTORY / "test_cuda_steps.py"] if options.toy else sorted(DIRECTORY.glob("test_cuda_*.py"))
    warms = options.device == "cuda" and not options.toy
    also = [[sys.executable, "-m", "tests.gpu.warm", *recipes] for recipes in WARMED if warms]
    seconds = min(TESTS_S, max(1.0, stage.seconds_left - TO_END_TESTS_S))
    arguments = {"files": files, "seconds": seconds, "also": also}
    stage.run("tests", parallel_tests.run, at_most_s=TESTS_S + TO_END_TESTS_S, fresh=True, **arguments)


def time_training(stage, options):
    """The other recipes as users train them, in bf16."""
    for name, changes in TRAINED.items():
        _time_training(stage, options, name, changes)


def _time_training(stage, options, name, changes):
    from tests.gpu import rows

    row = f"training {name}"
    given = {"name": name, "changes": changes, "device": options.device, "toy": options.toy}
    stage.run(row, rows.training, at_most_s=ROW_S, goal=_goal(row, options), **given)


def _goal(row, options):
    """Return the figure that a row is to reach; None for toys and CPUs, whose times mean nothing."""
    return GOALS.get(row) if options.device == "cuda" and not options.toy else None


def time_reading(stage, options):
    """Evaluation as of a long text, once without compiling, and single tokens."""
    from tests.gpu import rows

    given = {"device": options.device, "toy": options.toy}
    for name, batch_size in EVALUATED:
        row = f"evaluation {name}, B {batch_size}"
        here = {"name": name, "batch_size": batch_size, **given}
        stage.run(row, rows.evaluation, at_most_s=ROW_S, goal=_goal(row, options), **here)
    for mem_len in MEMORIES:
        row = f"single tokens enwik8, M {mem_len}"
        here = {"name": "enwik8", "mem_len": mem_len // 100 if options.toy else mem_len, **given}
        stage.run(row, rows.single_tokens, at_most_s=ROW_S, goal=_goal(row, options), **here)
    if options.device == "cuda":
        here = {"name": "enwik8", "batch_size": 10, "compiles": False, **given}
        stage.run("evaluation enwik8, B 10, not compiled", rows.evaluation, at_most_s=ROW_S, **here)


def compare_precisions(stage, options):
    """Losses of bf16 by the default path."""
    from tests.gpu import rows

    stage.run("losses in bf16", rows.bf16_steps, at_most_s=ROW_S, device=options.device, toy=options.toy)


def time_compiler_options(stage, options):
    """Training with single options of the compiler changed."""
    from tests.gpu import rows

    for name, changed in itertools.product(("enwik8", "ptb"), COMPILER_OPTIONS):
        given = {"name": name, "changes": (), "device": options.device, "toy": options.toy}
        given["compiler_options"] = COMPILER_OPTIONS[changed]
        stage.run(f"training {name}, {changed}", rows.training, at_most_s=ROW_S, fresh=True, **given)


def compare_with_peer(stage, options):
    """The rows of `tests.benchmarks.peer`, in bf16 first: time may end before the others."""
    from tests.benchmarks.comparisons import COMPARISONS
    from tests.gpu import rows

    for comparison in reversed(COMPARISONS[options.device]):
        for name in TOY_ROWS_OF_PEER if options.toy else ROWS_OF_PEER:
            row = f"peer {name}, {comparison.peer}"
            given = {"name": name, "comparison": comparison, "device": options.device, "toy": options.toy}
            stage.run(row, rows.with_peer, at_most_s=ROW_S, goal=_goal(row, options), **given)


def measure_rates(stage, options):
    """The ceilings of the device."""
    from tests.gpu import rows

    device = options.device
    stage.run("copy", rows.copy_rate, at_most_s=ROW_S, device=device)
    for precision in PRECISIONS[device]:
        stage.run(f"product, {precision}", rows.product_rate, at_most_s=ROW_S, precision=precision, device=device)


def train_ptb(stage, options):
    from tests.gpu import ptb

    ptb.run(
        stage,
        options.device,
        toy=options.toy,
        data_dir=options.data_dir,
        keep=options.keep,
        total_minutes=options.total_minutes,
    )


PARTS = {
    "smoke": run_smoke,
    "enwik8": time_enwik8,
    "tests": run_tests,
    "training": time_training,
    "reading": time_reading,
    "bf16": compare_precisions,
    "compiler": time_compiler_options,
    "peer": compare_with_peer,
    "rates": measure_rates,
    "ptb": train_ptb,
}


def parse(arguments):
    """Return the options; end with a line if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Check and measure txl on a device.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or wheels; all by default")
    parser.add_argument(
        "--json", type=Path, default=Path("gpu.json"), help="file of the results, written after every row"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--toy", action="store_true", help="small sizes, which show that everything runs")
    parser.add_argument("--only", help="part of the names of the rows to compute")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all rows; others are not run")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of compiled kernels, for a later call")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the token stores")
    parser.add_argument("--keep", type=Path, help="folder of the run of ptb; a later call continues it")
    parser.add_argument("--total-minutes", type=float, help="time of the run of ptb in all calls with --keep")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - {*PARTS, "wheels"}:
        parser.error(f"no part {min(unknown)!r}; there are {', '.join(PARTS)}, wheels")
    if not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    if options.keep is not None and options.keep.exists() and not (options.keep / "plan.json").exists():
        parser.error(f"--keep {options.keep} exists; give a new folder, or that of an earlier call")
    if options.total_minutes is not None and options.keep is None:
        parser.error("--total-minutes needs --keep, so that a later call continues")
    return options


def cache_variables(folder):
    """Return environment variables that let the compilers keep their results in a folder, apart for each release."""
    names = [f"{package}-{release}" for package, release in releases("torch", "triton").items()]
    own = folder.resolve() / "-".join(names)
    return {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "TRITON_CACHE_DIR": str(own / "triton")}


def main(arguments=None) -> int:
    """Compute the rows of the parts; return the exit code."""
    options = parse(arguments)
    if "wheels" in options.parts:
        wheels.show()
        return 0
    if options.device == "cuda":
        os.environ |= cache_variables(options.cache)
    facts = {"device": options.device, "toy": options.toy, "command": sys.argv[1:]}
    stage = Stage(facts=facts, json_file=options.json, minutes=options.minutes, only=options.only)
    if stage.run("machine", describe_machine, at_most_s=ROW_S, device=options.device) is None:
        return 1
    for part in options.parts or PARTS:
        PARTS[part](stage, options)
    return stage.end()


if __name__ == "__main__":
    sys.exit(main())
