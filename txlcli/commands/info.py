"""`txl info`: versions, device, threads, stores and runs."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from txlcli import __version__, console
from txlcli.commands.options import Json
from txlcli.runs import run_directory
from txlcli.system import processors
from txlcli.workflows.workspace import Workspace

PACKAGES = ("torch", "numpy", "h5py", "sentencepiece", "safetensors", "pyarrow", "matplotlib", "typer", "rich")
VARIABLES = ("TXL_", "OMP_", "GOMP_")
"""Beginnings of the names of variables that change what txl does."""


def info(workspace: Workspace, json: Json = False) -> None:
    """Show versions, device, threads, token stores and runs.

    Add its output to a report of a problem.

    Example: txl info
    """
    console.show_result(describe(workspace.data_dir, workspace.runs_dir), _show, json=json)


def describe(data_dir: Path, runs_dir: Path) -> dict[str, object]:
    """Return the facts about the installation that a report of a problem needs, and what is in the directories."""
    import h5py
    import torch

    from txlcli.data.token_store import stores_in

    return {
        "txl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "hdf5": h5py.version.hdf5_version,
        "processors": processors.available(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "executable": sys.executable,
        "data_dir": str(data_dir),
        "stores": [path.stem for path in stores_in(data_dir)],
        "runs_dir": str(runs_dir),
        "runs": run_directory.names(runs_dir),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    }


def _show(facts: dict[str, object]) -> None:
    for name, value in facts.items():
        text = str(value or "")
        if isinstance(value, dict):
            text = ", ".join(f"{key} {of_key}" for key, of_key in value.items())
        elif isinstance(value, list):
            text = ", ".join(value)
        console.show_line(f"{name.replace('_', ' ')}: {text or 'none'}")
