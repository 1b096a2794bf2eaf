"""Compares results: what a command prints without its times, weights, stores and files of losses."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
from safetensors.numpy import load_file

from tests.cards import read_log
from tests.commands.novel import Saved

TIMES = re.compile(
    r"saved|.*seconds|.*_per_s|.*ms_per_.*|.*_ms|slowdown|hardware|peak.*|forecast.*|processor_share|times_trusted"
)
"""Names of values that differ from run to run."""
BUSY = "other programs used the processors"
"""Beginning of a note about the times."""


def stable(stdout):
    """Return what a command printed, without values that depend on the time."""
    return [_without_times(_parsed(line)) for line in stdout.splitlines()]


def _parsed(line):
    try:
        return json.loads(line)
    except ValueError:
        return line


def _without_times(value):
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items() if not TIMES.fullmatch(key)}
    if isinstance(value, list):
        return [_without_times(inner) for inner in value if not str(inner).startswith(BUSY)]
    return repr(value) if isinstance(value, float) else value  # NaN equals itself


def same_run(directory, other):
    """Return True if two runs have the same weights and the same validation losses, bit for bit."""
    try:
        weights = all(
            Saved(directory / name) == Saved(other / name) for name in ("last.safetensors", "best.safetensors")
        )
        losses = [_validations(one / "metrics.jsonl") for one in (directory, other)]
    except Exception:  # a file is missing or damaged in any way
        return False
    return weights and losses[0] == losses[1]


def _validations(path):
    return [report for report in _without_times(read_log(path)) if report["kind"] == "valid"]


def arrays_of(path):
    """Return the arrays and attributes of an HDF5 file by name."""
    found = {}

    def add(name, part):
        found.update({f"{name}@{key}": str(value) for key, value in part.attrs.items()})
        if isinstance(part, h5py.Dataset):
            found[name] = part[()]

    with h5py.File(path, "r") as file:
        add("", file)
        file.visititems(add)
    return found


def holds(path, arrays):
    """Return True if an HDF5 file opens and has these arrays, and perhaps others."""
    try:
        found = arrays_of(path)
    except Exception:  # a damaged file can raise anything
        return False
    return all(name in found and np.array_equal(found[name], value) for name, value in arrays.items())


def content(path):
    """Return the bytes of a file; None if there is none."""
    path = Path(path)
    return path.read_bytes() if path.is_file() else None


def contents(directory):
    """Return the bytes of all files of a directory by name, without locks."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file() and not _is_lock(path)
    }


def written(path):
    """Return the bytes of a file, or the tensors of a checkpoint by name, without its run; None if there is none."""
    if path.suffix != ".safetensors" or not path.is_file():
        return content(path)
    return {name: (tensor.shape, tensor.tobytes()) for name, tensor in load_file(path).items()}


def _is_lock(path):
    return path.parent.name == ".locks" or path.name.endswith(".lock")


def hidden_files(directory):
    """Return the temporary files and directories below a directory, without locks."""
    return sorted(
        str(path.relative_to(directory))
        for path in Path(directory).rglob(".*")
        if path.name != ".locks" and not _is_lock(path)
    )
