"""The share of a processor that a process gets, next to other programs."""

import pytest

from txlcli.system.processors import ShareClock, is_trusted


@pytest.mark.parametrize(("cpu_s", "share"), [(0.0, 0.0), (3.0, 0.3), (10.0, 1.0), (10.5, 1.0)])
def test_the_share_is_the_processor_time_of_the_thread_in_the_time_that_passed(cpu_s, share):
    times = iter([100.0, 110.0])
    cpu_times = iter([7.0, 7.0 + cpu_s])
    clock = ShareClock(lambda: next(times), lambda: next(cpu_times))
    assert clock.share() == pytest.approx(share)


def test_times_of_a_busy_machine_are_not_trusted_and_those_of_a_gpu_are():
    assert [is_trusted(share) for share in (None, 1.0, 0.9, 0.5, 0.0)] == [True, True, True, False, False]
