"""The peak memory of training runs next to the forecast of `txl train --dry-run`.

python -m tests.benchmarks.training_memory [ROW ...] [--json]

Each training run is a process of its own, with one thread: the recipe of a benchmark with other sizes, a generated text
whose tokens follow Zipf's law, and steps until the memory is full and two more. What is measured is the most resident
memory of the process, less that after a few steps of a tiny model of the same kind. Memory that is freed returns to the
system at once (MALLOC_MMAP_THRESHOLD_): by default the C library keeps gaps, so that a process takes more. Needs Linux.
"""

import dataclasses
import json as json_format
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from txlcli import console
from txlcli.system.memory import format_size

CHILD = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
SMALL_ENWIK8 = ["model.n_layers=6", "model.d_model=256", "model.n_heads=4", "model.d_inner=1024"]
SMALL_ENWIK8 += ["train.seg_len=256", "train.mem_len=256", "train.valid_seg_len=64"]
SMALL_WT103 = ["model.n_layers=6", "model.cutoffs=[4_000,8_000,30_000]"]
SMALL_LM1B = ["model.n_layers=4", "model.d_model=512", "model.d_head=64", "model.d_inner=2048"]
LONG_MEMORY = ["train.seg_len=128", "train.mem_len=384", "train.valid_seg_len=64"]
ADAMW_BF16 = ["train.precision=bf16", "train.optimizer=adamw"]


@dataclass(frozen=True)
class Row:
    recipe: str
    vocab_size: int
    changes: list[str]


ROWS = {
    "enwik8": Row("enwik8", 204, [*SMALL_ENWIK8, "train.batch_size=11"]),
    "enwik8 bf16": Row("enwik8", 204, [*SMALL_ENWIK8, "train.precision=bf16", "train.batch_size=17"]),
    "text8 muon": Row("text8", 27, [*SMALL_ENWIK8, *LONG_MEMORY, "train.optimizer=muon", "train.batch_size=13"]),
    "wt103": Row("wt103", 50_000, [*SMALL_WT103, "train.batch_size=10"]),
    "wt103 adamw bf16": Row(
        "wt103", 50_000, [*SMALL_WT103, *ADAMW_BF16, "train.batch_size=22", "train.seg_len=100", "train.mem_len=200"]
    ),
    "lm1b": Row("lm1b", 100_000, [*SMALL_LM1B, "model.cutoffs=[8_000,20_000,60_000]", "train.batch_size=48"]),
    "ptb": Row("ptb-memory", 10_000, ["model.n_layers=8"]),
    "ptb accumulate": Row("ptb-memory", 10_000, ["model.n_layers=8", "train.accumulate=2", "train.batch_size=26"]),
    "stdlib": Row("stdlib", 256, ["train.batch_size=64"]),
    "lstm-ptb": Row("lstm-ptb", 10_000, ["train.batch_size=50", "train.seg_len=70"]),
    "qrnn-ptb": Row("qrnn-ptb", 10_000, []),
}


def measure(name: str) -> tuple[int, int]:
    """Return the bytes that are forecast for a row, and those of a training in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.training_memory", "--child", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **CHILD})
    result = json_format.loads(done.stdout)
    return result["forecast_bytes"], result["peak_bytes"]


def main(
    rows: Annotated[list[str] | None, typer.Argument(help="Rows to measure; all by default.")] = None,
    child: Annotated[bool, typer.Option(help="Measure one row in this process.")] = False,
    json: Annotated[bool, typer.Option(help="Print a JSON object per row.")] = False,
) -> None:
    """Print the forecast and the measured peak of each training."""
    if child:
        (name,) = rows or []
        console.show_json(_measure_here(ROWS[name]))
        return
    results = {name: measure(name) for name in rows or ROWS}
    if json:
        for name, (forecast, peak) in results.items():
            console.show_json({"row": name, "forecast_bytes": forecast, "peak_bytes": peak})
        return
    lines = [
        [name, format_size(forecast), format_size(peak), f"{forecast / peak:.2f}"]
        for name, (forecast, peak) in results.items()
    ]
    console.show_table("peak memory of a training", ["training", "forecast", "measured", "ratio"], lines)


def _measure_here(row: Row) -> dict[str, int]:
    import torch

    from tests.benchmarks.memory import held_bytes, peak_memory
    from txlcli.config import recipe
    from txlcli.core.measures.forecast import step_bytes, with_plain_softmax

    device = torch.device("cpu")
    settings = recipe.load(row.recipe, row.changes)
    train = settings.train
    tiny = {"batch_size": 2, "accumulate": 1, "seg_len": 8, "mem_len": min(8, train.mem_len), "valid_seg_len": None}
    small = dataclasses.replace(with_plain_softmax(settings.model), n_layers=2)
    _train(small, 50, dataclasses.replace(train, **tiny))  # loads what the first steps of a process load
    before = held_bytes(device)
    with peak_memory(device) as peak:
        _train(settings.model, row.vocab_size, train)
    if not peak:
        sys.exit("this system does not tell the peak of a process's memory")
    forecast = step_bytes(settings.model, row.vocab_size, train, device=device).total
    return {"forecast_bytes": forecast, "peak_bytes": peak[0] - before}


def _train(model, vocab_size, train):  # type: ignore[no-untyped-def]
    """Take steps until the memory is full, and two more."""
    import torch

    from tests.gpu.small_runs import zipf_ids
    from txlcli.core.architectures.registry import new_model
    from txlcli.core.training.loop import Training
    from txlcli.core.training.saving import Saver
    from txlcli.core.training.segments import TrainingSegments

    steps = -(-train.mem_len // train.seg_len) + 2
    ids = zipf_ids(vocab_size, train.batch_size * train.seg_len * steps + 1)
    segments = TrainingSegments(ids, train)
    network = new_model(model, vocab_size, seed=1, device=torch.device("cpu"))
    with tempfile.TemporaryDirectory() as directory:
        training = Training(network, train, segments, saver=Saver(Path(directory)))
        for _ in range(steps):
            training.update()


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
