"""Faults of a training run in several processes: what each costs, counted in a table.

python -m tests.faults.ranks [--repeat N]

Each fault strikes a new training run on this machine at a random moment after its first save; it saves each second. For
faults of a torchrun, each process has one of its own, as on two machines. Needs Linux.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from txlcli import console
from txlcli.core.training import checkpoint

TRAIN = ["-m", "txlcli", "train", "stdlib", "--name", "r", "--device", "cpu"]
SMALL = {"model.n_layers": 2, "model.d_model": 32, "model.d_inner": 64, "train.batch_size": 6, "train.seg_len": 16}
ENDLESS = {"train.mem_len": 16, "train.max_steps": 1_000_000, "train.valid_every": 500_000, "log.every": 5}
SAVES = {"train.save_minutes": 1 / 60}
LONGEST_S = 300.0


@dataclass(frozen=True)
class Fault:
    """A signal to one process, and the exit code that the training run then ends with."""

    name: str
    number: int
    target: str
    """ "rank 0", "rank 1" or "agent 1", the torchrun of rank 1."""
    exit_code: int
    agents: bool = False
    """True for two torchruns instead of `txl train --processes 2`."""
    in_validation: bool = False
    """True if a validation follows each step, which takes almost all of the time."""


FAULTS = (
    Fault("SIGKILL of rank 1", signal.SIGKILL, "rank 1", 1),
    Fault("SIGKILL of rank 0", signal.SIGKILL, "rank 0", 1),
    Fault("SIGTERM to rank 1", signal.SIGTERM, "rank 1", 143),
    Fault("SIGINT to rank 0", signal.SIGINT, "rank 0", 130),
    Fault("SIGTERM to the torchrun of rank 1", signal.SIGTERM, "agent 1", 1, agents=True),
    Fault("SIGKILL of the torchrun of rank 1", signal.SIGKILL, "agent 1", 1, agents=True),
    Fault("SIGKILL of rank 1 in a validation", signal.SIGKILL, "rank 1", 1, in_validation=True),
    Fault("SIGKILL of rank 0 in a validation", signal.SIGKILL, "rank 0", 1, in_validation=True),
    Fault("SIGTERM to rank 1 in a validation", signal.SIGTERM, "rank 1", 143, in_validation=True),
    Fault("SIGINT to rank 0 in a validation", signal.SIGINT, "rank 0", 130, in_validation=True),
)


@dataclass(frozen=True)
class Outcome:
    """How one training run ended."""

    exit_code: int
    steps_lost: int
    """Steps in the report that the checkpoint lacks."""
    seconds: float
    """From the signal until all processes had ended."""
    orphans: int


def main(
    repeat: Annotated[int, typer.Option(help="Repetitions of each fault.")] = 20,
    only: Annotated[str, typer.Option(help="Inject only faults whose name contains this.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of the moments.")] = 11,
) -> None:
    """Inject faults into training runs of two processes, and count what they cost."""
    moments = random.Random(seed)
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        _run([*TRAIN[:2], "prepare", "stdlib"])
        for fault in (fault for fault in FAULTS if only in fault.name):
            outcomes[fault.name] = [_inject(fault, moments.random()) for _ in range(repeat)]
            console.say(f"{fault.name}: {repeat} done")
    columns = ["fault", "repetitions", "exit codes", "steps lost, most", "seconds, most", "orphans"]
    console.show_table("two processes", columns, [_row(name, of_fault) for name, of_fault in outcomes.items()])
    wrong = [
        fault.name
        for fault in FAULTS
        for outcome in outcomes.get(fault.name, [])
        if outcome.exit_code != fault.exit_code or outcome.orphans
    ]
    sys.exit(int(bool(wrong)))


def _row(name: str, outcomes: list[Outcome]) -> list[str]:
    codes = sorted({outcome.exit_code for outcome in outcomes})
    return [
        name,
        str(len(outcomes)),
        ", ".join(map(str, codes)),
        str(max(outcome.steps_lost for outcome in outcomes)),
        f"{max(outcome.seconds for outcome in outcomes):.1f}",
        str(sum(outcome.orphans for outcome in outcomes)),
    ]


def _inject(fault: Fault, moment: float) -> Outcome:
    """Start a training run, strike it, and see how it ends."""
    shutil.rmtree("runs", ignore_errors=True)
    settings = [*_settings(), *(["--set", "train.valid_every=1"] if fault.in_validation else [])]
    started = _start_agents() if fault.agents else [_start([*TRAIN, *settings, "--processes", "2"])]
    path = Path("runs/r/last.safetensors")
    _wait_for(path.exists)
    time.sleep(2 * moment)
    rank = int(fault.target.rpartition(" ")[2])
    target = _parent_of(_ranks()[rank]) if fault.target.startswith("agent") else _ranks()[rank]
    begun = time.monotonic()
    os.kill(target, fault.number)
    for process in started:
        process.wait(LONGEST_S)
    with contextlib.suppress(TimeoutError):
        _wait_for(lambda: not _ranks(), seconds=30.0)
    seconds = time.monotonic() - begun
    codes = {process.returncode for process in started if process.returncode >= 0}
    orphans = _ranks()
    for orphan in orphans.values():
        os.kill(orphan, signal.SIGKILL)
    reported = [json.loads(line)["step"] for line in Path("runs/r/metrics.jsonl").read_text().splitlines()]
    lost = max(0, reported[-1] - checkpoint.load(path).state["step"])
    return Outcome(max(codes), lost, seconds, len(orphans))


def _settings() -> Iterator[str]:
    for name, value in {**SMALL, **ENDLESS, **SAVES}.items():
        yield from ("--set", f"{name}={value}")


def _start_agents() -> list["subprocess.Popen[bytes]"]:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    shared = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "r"]
    shared += ["--rdzv-endpoint", f"localhost:{port}"]
    return [
        _start(["-m", "torch.distributed.run", *shared, "--node-rank", str(rank), *TRAIN, *_settings()])
        for rank in range(2)
    ]


def _start(arguments: list[str]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )


def _run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def _wait_for(condition: Callable[[], object], seconds: float = LONGEST_S) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.05)


def _ranks() -> dict[int, int]:
    """Return the processes that train in this directory, by rank."""
    here, ranks = Path.cwd(), {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (directory / "cwd").readlink() == here:
                environment = (directory / "environ").read_bytes().split(b"\0")
                ranks |= {int(word[5:]): int(directory.name) for word in environment if word.startswith(b"RANK=")}
    return ranks


def _parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
