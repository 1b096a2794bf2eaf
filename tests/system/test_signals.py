"""Signals that end a command are raised once."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from txlcli.system import signals


@pytest.fixture
def received():
    """Return a list of the signals that arrive outside of the block that raises them."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


IMPORTING = """
from txlcli.system import signals
with signals.raising():
    import sends_a_signal
"""


def test_a_signal_during_an_import_ends_the_process_with_one_line(tmp_path):
    (tmp_path / "sends_a_signal.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTING], env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "terminated\n")


class SequenceWithSignal:
    """Sequence that receives SIGTERM while its first item is read."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGTERM)
        return index


def raise_terminated(number, frame):
    raise signals.Terminated(number)


def test_a_signal_whose_exception_c_code_replaced_by_an_error_is_raised(received):
    signal.signal(signal.SIGTERM, raise_terminated)
    with pytest.raises(ValueError, match="could not determine the shape"):
        torch.tensor(SequenceWithSignal())
    with pytest.raises(signals.Terminated), signals.raising():
        torch.tensor(SequenceWithSignal())


def warned_twice(number, done):
    with signals.raising():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            done.append("cleanup")


@pytest.mark.parametrize("number", signals.WARNINGS)
def test_the_repetition_of_a_warning_does_not_disturb_the_cleanup(number):
    done = []
    with pytest.raises(signals.Terminated) as ended:
        warned_twice(number, done)
    assert done == ["cleanup"]
    assert signals.number_of(ended.value) == number


@pytest.mark.parametrize(
    ("variables", "is_silent"),
    [({}, False), ({"RANK": "1"}, False), ({"RANK": "1", "WORLD_SIZE": "2"}, True), ({"WORLD_SIZE": "2"}, False)],
)
def test_only_a_process_that_is_not_the_first_of_several_ends_silently(received, monkeypatch, variables, is_silent):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with signals.silent():
        assert (signal.getsignal(signal.SIGTERM) == signal.SIG_DFL) is is_silent
