"""Helpers for tests of commands that run in several processes."""

from pathlib import Path

import pytest

from tests.commands.novel import LONGEST_WAIT_S, start

on_linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
TORCHRUN = ["--standalone", "--nproc-per-node", "2", "-m", "txlcli"]


def ended(process, code):
    """Return the stdout of a process and the lines of its stderr."""
    stdout, stderr = process.communicate(timeout=LONGEST_WAIT_S)
    assert process.returncode == code, stderr
    return stdout, stderr.splitlines()


def processes_in(here):
    """Return the ids of the processes that train in this folder, by rank."""
    ids = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            current, environment = (directory / "cwd").readlink(), (directory / "environ").read_bytes()
        except OSError:
            continue  # it has ended
        rank = [word for word in environment.split(b"\0") if word.startswith(b"RANK=")]
        if current == here.resolve() and rank:
            ids[int(rank[0].removeprefix(b"RANK="))] = int(directory.name)
    return ids


def start_ranks(*of_each_rank, port, **changed):
    """Start one process per rank as a cluster does, with RANK and WORLD_SIZE; each gets its own arguments."""
    world = {"WORLD_SIZE": len(of_each_rank), "MASTER_ADDR": "localhost", "MASTER_PORT": port, **changed}
    return [
        start(*arguments, environment={name: str(value) for name, value in (world | {"RANK": rank}).items()})
        for rank, arguments in enumerate(of_each_rank)
    ]
