"""`txl info`: versions, device, threads, stores and runs."""

from collections.abc import Sequence
from typing import Any

from txlcli import console
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Json, RunsDir

SHOWN = 8
"""Largest number of stores, or of runs, that are named."""


def info(data_dir: DataDir = DATA_DIR, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Show versions, device, threads, token stores and runs.

    Add its output to a report of a problem.

    Example: txl info
    """
    from txlcli.workflows.info import describe

    console.show_result(describe(data_dir, runs_dir), _show, json=json)


def _show(facts: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    lines = {
        "txl": facts["txl"],
        "Python": f"{facts['python']} ({facts['executable']})",
        "platform": facts["platform"],
        "packages": versions,
        "HDF5": facts["hdf5"],
        "BLAS": facts["blas"],
        "processors": f"{facts['processors']} ({facts['cpu_capability']}), threads: {facts['threads']}",
        "CUDA": f"{facts['cuda'] or 'not in this build of PyTorch'}; GPUs: {', '.join(facts['gpus']) or 'none'}",
        "stores": f"{_some(facts['stores'])} (in {facts['data_dir']})",
        "runs": f"{_some(facts['runs'])} (in {facts['runs_dir']})",
        **facts["environment"],
    }
    for name, value in lines.items():
        console.show_line(f"{name + ':':<12} {value}")


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"
