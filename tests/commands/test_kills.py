"""A process that is killed at any change of a folder loses no checkpoint, and its command can be repeated."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.commands.novel import card, done, start, wait_for
from tests.commands.processes import on_linux
from txlcli.core.training import checkpoint

NEW = Path("runs/new")

KILLED = """
    import os, signal, sys

    left = int(sys.argv[1])

    def dies_before(function):
        def call(*arguments, **options):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return call

    for name in ("replace", "rename", "mkdir", "rmdir", "unlink"):
        setattr(os, name, dies_before(getattr(os, name)))
    from txlcli.__main__ import main
    sys.argv[:] = ["txl", *sys.argv[2:]]
    main()
"""


def killed(call, *words):
    """Run txl in a process that kills itself before its n-th change of a folder; return False if it had fewer."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(call), *map(str, words)]
    ended = subprocess.run(command, check=False, capture_output=True)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode == -9


def replacement_survives(call):
    """Kill a replacement; check that the earlier or the new run is intact and can be resumed and replaced."""
    done("train", "tiny.toml", "--name", "new", "--max-steps", 5, "--force")
    earlier = checkpoint.load(NEW / "last.safetensors").weights_digest()
    words = ("train", "tiny.toml", "--name", "new", "--force", "--set", "train.lr=0.002")
    was_killed = killed(call, *words)
    done("runs", "verify", "new")
    is_new = card(NEW)["settings"]["train"]["lr"] == 0.002
    assert is_new or checkpoint.load(NEW / "last.safetensors").weights_digest() == earlier
    assert not list(Path("runs").glob(".*.replaced"))
    if not is_new:
        done("train", "--resume", "new")
    done(*words)
    return was_killed


@pytest.mark.slow
def test_a_replacement_killed_at_each_change_of_a_directory_loses_no_checkpoint(here):
    call = 1
    while replacement_survives(call):
        call += 1
    assert call > 12


@on_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_sentencepiece_ends_with_the_command(here, number):
    (here / "long.txt").write_text(
        "".join(f"{n * 7919 % 1_000_003} of {n * 31_337 % 999_983}\n" for n in range(100_000))
    )
    process = start("prepare", "long.txt", "--tokenizer", "sentencepiece")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: children.exists() and children.read_text())
    (child,) = children.read_text().split()
    time.sleep(0.5)
    process.send_signal(number)
    process.communicate(timeout=5)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not Path(f"/proc/{child}").exists())
    assert not (here / "data/long.h5").exists()
