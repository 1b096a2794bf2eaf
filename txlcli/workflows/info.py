"""Describes the installation: versions, device, threads, stores and runs."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from txlcli import __version__
from txlcli.data.token_store import stores_in
from txlcli.runs import run_directory
from txlcli.system import processors

PACKAGES = ("torch", "numpy", "h5py", "sentencepiece", "safetensors", "pyarrow", "matplotlib", "typer", "rich")


def describe(data_dir: Path, runs_dir: Path) -> dict[str, Any]:
    """Return the object that `txl info --json` prints: the installation, and the names of stores and runs."""
    return {
        "txl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "hdf5": h5py.version.hdf5_version,
        "blas": _blas(),
        "processors": processors.available(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "executable": sys.executable,
        "data_dir": str(data_dir),
        "stores": [path.stem for path in stores_in(data_dir)],
        "runs_dir": str(runs_dir),
        "runs": list(run_directory.names(runs_dir)),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("TXL_")},
    }


def _blas() -> str:
    """Return the libraries that multiply matrices: those of PyTorch and of NumPy."""
    of_torch = [name for name in ("mkl", "mkldnn") if getattr(torch.backends, name).is_available()]
    config: Any = np.show_config(mode="dicts")
    return f"PyTorch: {', '.join(of_torch) or 'default'}; NumPy: {config['Build Dependencies']['blas']['name']}"
