"""Fuzzes one reader in a process of its own."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["txlcli"], enable_loader_override=False):
    from tests.fuzz import targets

# Every reader gets a copy of this process, which has PyTorch and the instrumented readers imported.
_fork = multiprocessing.get_context("fork")


def fuzz(name: str, sample: Path, options: list[str], log: Path) -> int:
    """Fuzz a reader until libFuzzer ends, which ends its process; return the exit code.

    The options are those of libFuzzer, and its output is written to the log.
    """
    with targets.working_directory() as work:
        process = _fork.Process(target=_fuzz_here, args=(targets.named(name).reader, sample, work, options, log))
        process.start()
        process.join()
    return process.exitcode


def _fuzz_here(reader: Callable, sample: Path, work: Path, options: list[str], log: Path) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    function = reader(sample, work)

    def read(data: bytes) -> None:
        function(data)  # libFuzzer would take a result for a code of its own

    atheris.Setup(["fuzz", *options], read)
    atheris.Fuzz()
