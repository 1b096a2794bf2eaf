"""How long a checkpoint takes to load, with and without its checksums, and until the model is ready.

python -m tests.benchmarks.loading [--repeat 15] [--uncached] [--quick] [--json]

Both files hold the same weights; the one without checksums is read as a file to import. They are loaded in turns, from
the page cache or from the disk, each time in a new process, as a command loads a model: a second load in the same
process would use memory again that the first one has freed. Times are the smallest of all repetitions; processor times
are those of all threads.
"""

import multiprocessing
import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file

from txlcli import console
from txlcli.config import recipe
from txlcli.core.model.registry import make_model
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint, grouped

RECIPES = ("enwik8", "wt103")
TARGET = 0.05


def write_both(directory, settings, vocab_size):
    """Write the weights of a new model with and without checksums; return their number and both paths."""
    torch.manual_seed(7)
    tensors = grouped("model", make_model(settings, vocab_size).state_dict())
    with_checksums, without = directory / "best.safetensors", directory / "without.safetensors"
    checkpoint.save(with_checksums, Checkpoint(tensors, {"step": 1}))
    save_file(tensors, without)
    for path in (with_checksums, without):  # written alike, so that the system caches them alike
        path.write_bytes(path.read_bytes())
    return sum(tensor.numel() for tensor in tensors.values()), with_checksums, without


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def forget(path):
    """Remove a file from the system's page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(path, name, vocab_size):
    """Load a checkpoint of a recipe: seconds to its tensors, to the model, and of the processor to the model."""
    settings = recipe.load(name).model
    before, started = processor_seconds(), time.perf_counter()
    if path.stem == "without":
        saved = Checkpoint({name: tensor.clone() for name, tensor in load_file(path).items()})
    else:
        saved = checkpoint.load(path, to_evaluate=True)
    read = time.perf_counter() - started
    checkpoint.build_model(settings, vocab_size, saved, path)
    return read, time.perf_counter() - started, processor_seconds() - before


def measure(name, repeat, *, quick, uncached=False):
    """Return the times of a recipe's checkpoint, with and without checksums."""
    loaded = recipe.load(name)
    vocab_size = 97 if quick else loaded.published.vocab_size
    fork_server = multiprocessing.get_context("forkserver")
    fork_server.set_forkserver_preload(["tests.benchmarks.loading"])
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessPoolExecutor(1, mp_context=fork_server, max_tasks_per_child=1) as new_process,
    ):
        parameters, *paths = write_both(Path(directory), loaded.model, vocab_size)
        times = {path: [] for path in paths}
        for _ in range(repeat):
            for path in paths:
                if uncached:
                    forget(path)
                times[path].append(new_process.submit(load, path, name, vocab_size).result())
    verified, unverified = ([min(column) for column in zip(*times[path], strict=True)] for path in paths)
    keys = ("tensors_seconds", "model_seconds", "processor_seconds")
    return {
        "recipe": name,
        "parameters": parameters,
        "verified": dict(zip(keys, verified, strict=True)),
        "unverified": dict(zip(keys, unverified, strict=True)),
        "share": {key: 1 - b / a for key, a, b in zip(keys, verified, unverified, strict=True)},
    }


def show(results):
    lines = []
    for result in results:
        for key in ("tensors_seconds", "model_seconds", "processor_seconds"):
            verified, unverified = result["verified"][key], result["unverified"][key]
            numbers = (
                f"{1000 * verified:.1f} ms",
                f"{1000 * unverified:.1f} ms",
                f"{100 * result['share'][key]:.1f} %",
            )
            lines.append([result["recipe"], f"{result['parameters']:,}", key.removesuffix("_seconds"), *numbers])
    headings = ("recipe", "parameters", "time until", "with checksums", "without", "share")
    console.show_table(f"loading a checkpoint; target: share < {100 * TARGET:.0f} %", headings, lines, [])


def main(
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions of each load.")] = 15,
    uncached: Annotated[bool, typer.Option("--uncached", help="Read from the disk, not from the page cache.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small vocabulary, one recipe: shows whether it runs.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Measure what the checksums of a checkpoint cost."""
    names, count = (RECIPES[:1], 2) if quick else (RECIPES, repeat)
    results = [measure(name, count, quick=quick, uncached=uncached) for name in names]
    if json:
        console.show_json(
            {"quick": quick, "uncached": uncached, "threads": torch.get_num_threads(), "recipes": results}
        )
    else:
        show(results)


if __name__ == "__main__":
    typer.run(main)
