"""A process that is killed at any change of a folder loses no checkpoint, and its command can be repeated."""

import signal
import time
from pathlib import Path

import pytest

from tests.commands.novel import start, wait_for
from tests.commands.processes import on_linux


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
