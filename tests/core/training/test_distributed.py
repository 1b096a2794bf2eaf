"""Processes fail together: one of them says why, with the exit code of the process that failed first."""

import signal

import pytest
from torch import distributed

from txlcli.core.training.distributed import SINGLE_PROCESS, World
from txlcli.errors import DisagreementError, ReportedError, RunError, StoreError, TrainingError, UsageError
from txlcli.system import signals

LOST, HANGING = "Connection closed by peer", "Timed out waiting 12000ms for recv operation to complete"
CLOSED = "Application timeout caused pair closure"
"""What gloo says of an exchange that began before another one timed out."""


@pytest.fixture
def worlds():
    """Return what two processes see; a process that is about to end ignores signals."""
    before = {number: signal.getsignal(number) for number in signals.ENDING}
    store = distributed.HashStore()
    yield [World(rank, 2, store=store, next_step="evaluate again") for rank in range(2)]
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("error", [StoreError("data/x.h5: no such store"), UsageError("leave out --cache")])
def test_rank_0_reports_the_error_of_another_rank_with_its_exit_code(worlds, error):
    first, second = worlds
    with pytest.raises(ReportedError) as silent, second.failing_together():
        raise error
    with pytest.raises(DisagreementError, match=rf"^rank 1 on \S+: {error}$") as reported, first.failing_together():
        raise RuntimeError(LOST)
    assert silent.value.exit_code == reported.value.exit_code == error.exit_code


def test_an_error_of_rank_0_is_reported_by_rank_0_alone(worlds):
    first, second = worlds
    with pytest.raises(RunError, match=r"^the disk is full$"), first.failing_together():
        raise RunError("the disk is full")
    with pytest.raises(ReportedError), second.failing_together():
        raise RuntimeError(LOST)


@pytest.mark.parametrize(("rank", "error"), [(0, CLOSED), (1, HANGING)])
def test_a_process_without_a_note_is_named_by_the_other(worlds, rank, error):
    named = rf"^the process of rank {1 - rank} has ended or does not answer; evaluate again$"
    with pytest.raises(TrainingError, match=named), worlds[rank].failing_together():
        raise RuntimeError(error)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), StoreError("no such store"), RuntimeError(LOST)])
def test_errors_of_a_single_process_and_bugs_are_left_alone(worlds, error):
    world = worlds[0] if str(error) == "a bug" else SINGLE_PROCESS
    with pytest.raises(type(error)) as raised, world.failing_together():
        raise error
    assert raised.value is error


def test_memory_that_runs_out_in_one_process_is_one_line(worlds):
    with pytest.raises(TrainingError, match=r"^out of memory; "), worlds[0].failing_together():
        raise MemoryError
