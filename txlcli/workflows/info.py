"""Describes the installation: versions, device, threads, stores and runs."""

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import h5py
import torch

from txlcli import __version__
from txlcli.data.token_store import stores_in
from txlcli.runs import run_directory
from txlcli.system import processors

PACKAGES = ("torch", "numpy", "h5py", "sentencepiece", "safetensors", "pyarrow", "matplotlib", "typer", "rich")


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Facts that a report of a problem needs."""

    txl: str
    python: str
    platform: str
    packages: dict[str, str]
    hdf5: str
    processors: int
    threads: int
    cpu_capability: str
    cuda: str | None
    """Release of CUDA; None if this build of PyTorch has none."""
    gpus: tuple[str, ...]
    executable: str
    data_dir: str
    stores: tuple[str, ...]
    runs_dir: str
    runs: tuple[str, ...]
    environment: dict[str, str]


def describe(data_dir: Path, runs_dir: Path) -> Installation:
    """Describe the installation, and what is in the directories of stores and runs."""
    return Installation(
        txl=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: metadata.version(name) for name in PACKAGES},
        hdf5=h5py.version.hdf5_version,
        processors=processors.available(),
        threads=torch.get_num_threads(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cuda=torch.version.cuda,
        gpus=tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())),
        executable=sys.executable,
        data_dir=str(data_dir),
        stores=tuple(path.stem for path in stores_in(data_dir)),
        runs_dir=str(runs_dir),
        runs=tuple(run_directory.names(runs_dir)),
        environment={
            name: value for name, value in sorted(os.environ.items()) if name.startswith(("TXL_", "OMP_", "GOMP_"))
        },
    )
