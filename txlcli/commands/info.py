"""`txl info`: versions, device, threads, stores and runs."""

from typing import TYPE_CHECKING

from txlcli import console
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Json, RunsDir

if TYPE_CHECKING:
    from txlcli.workflows.info import Installation


def info(data_dir: DataDir = DATA_DIR, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Show versions, device, threads, token stores and runs.

    Add its output to a report of a problem.

    Example: txl info
    """
    from txlcli.workflows.info import describe

    console.show_result(describe(data_dir, runs_dir), _show, json=json)


def _show(installed: "Installation") -> None:
    lines = {
        "txl": installed.txl,
        "Python": f"{installed.python} ({installed.executable})",
        "platform": installed.platform,
        "packages": ", ".join(f"{name} {version}" for name, version in installed.packages.items()),
        "HDF5": installed.hdf5,
        "BLAS": installed.blas,
        "processors": f"{installed.processors} ({installed.cpu_capability}), threads: {installed.threads}",
        "CUDA": f"{installed.cuda or 'not in this build of PyTorch'}; GPUs: {', '.join(installed.gpus) or 'none'}",
        "stores": f"{len(installed.stores)} in {installed.data_dir}",
        "runs": f"{len(installed.runs)} in {installed.runs_dir}",
        **installed.environment,
    }
    for name, value in lines.items():
        console.show_line(f"{name + ':':<12} {value}")
