"""`txl info`: versions, device, threads, stores and runs."""

from typing import Any

from txlcli import console
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Json, RunsDir

SAFE_HDF5 = 2
"""First major release of HDF5 without the faults of 2025 that read and write beyond the ends of damaged parts."""
SHOWN = 8
"""Largest number of stores, or of runs, that are named."""


def info(data_dir: DataDir = DATA_DIR, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Show versions, device, threads, token stores and runs.

    Add its output to a report of a problem.

    Example: txl info
    """
    from txlcli.workflows.info import describe
    from txlcli.workflows.workspace import Workspace

    console.show_result(describe(Workspace(data_dir=data_dir, runs_dir=runs_dir)), _show, json=json)


def _show(facts: dict[str, Any]) -> None:
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    gpus = ", ".join(facts["gpus"]) or "none"
    lines = {
        "txl": facts["txl"],
        "Python": f"{facts['python']} ({facts['executable']})",
        "platform": facts["platform"],
        "packages": packages,
        "HDF5": describe_hdf5(facts["hdf5"]),
        "BLAS": facts["blas"],
        "processors": f"{facts['processors']} ({facts['cpu_capability']}), threads: {facts['threads']}",
        "CUDA": f"{facts['cuda'] or 'not in this build of PyTorch'}; GPUs: {gpus}",
        "stores": f"{_some(facts['stores'])} (in {facts['data_dir']})",
        "runs": f"{_some(facts['runs'])} (in {facts['runs_dir']})",
    }
    for name, value in facts["environment"].items():
        lines[name] = value
    for name, value in lines.items():
        console.show_line(f"{name + ':':<12} {value}")


def describe_hdf5(version: str) -> str:
    """Return a release of HDF5, with the next step if it has known faults that damaged files can use."""
    major = int(version.split(".", maxsplit=1)[0])
    return version if major >= SAFE_HDF5 else f"{version}; damaged files can crash releases before 2.0, update h5py"


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"
