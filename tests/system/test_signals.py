"""Signals that end a command are raised once."""

import importlib
import signal
import sys
import time

import pytest

from txlcli.errors import UsageError
from txlcli.system import signals


@pytest.fixture
def received():
    """Return a list of the signals that arrive outside of the block that raises them."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def module_with_signal(tmp_path, monkeypatch):
    """Return the name of a module whose import sends SIGTERM to this process."""
    (tmp_path / "sends_a_signal.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "sends_a_signal"
    sys.modules.pop("sends_a_signal", None)


def import_and_wait(module, seconds):
    importlib.import_module(module)
    time.sleep(seconds)


def import_and_fail(module):
    importlib.import_module(module)
    raise UsageError("no such recipe")


def test_a_signal_during_the_last_import_of_a_command_arrives_once(received, module_with_signal):
    with pytest.raises(signals.Terminated), signals.raising():
        importlib.import_module(module_with_signal)
    time.sleep(3 * signals.SECONDS_OF_IMPORT)
    assert received == []


def test_a_signal_during_the_last_import_before_an_error_is_raised(received, module_with_signal):
    with pytest.raises(signals.Terminated) as ended, signals.raising():
        import_and_fail(module_with_signal)
    assert isinstance(ended.value.__context__, UsageError)
    time.sleep(3 * signals.SECONDS_OF_IMPORT)
    assert received == []


def test_a_signal_during_an_import_is_raised_soon_after_it(received, module_with_signal):
    begin = time.monotonic()
    with pytest.raises(signals.Terminated), signals.raising():
        import_and_wait(module_with_signal, seconds=30)
    assert time.monotonic() - begin < 30
    assert received == []
