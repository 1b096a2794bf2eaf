"""txl eval --processes: several processes divide the lanes, or the windows, of one evaluation."""

import json
import os
import signal
from pathlib import Path

import h5py
import pytest

from tests.cards import read_log
from tests.commands.novel import done, json_of, start, wait_for
from tests.commands.processes import ended, on_linux, processes_in

ENDLESS = ["eval", "byte", "--text", "endless.txt", "--mem-len", "0,5", "--batch-size", 2, "--device", "cpu"]
TIMES = {
    *("ms_per_token", "one_lane_ms_per_token", "vanilla_ms_per_token", "slowdown"),
    *("processor_share", "times_trusted"),
}


def write_endless(name="endless.txt"):
    Path(name).write_text("the fox and the owl " * 200_000)


def in_processes(*arguments, processes=2):
    """Return the JSON object of an evaluation in several processes, which must print no more than with one process."""
    stdout, stderr = ended(start("eval", *arguments, "--processes", processes, "--json", "--device", "cpu"), 0)
    assert stdout.count("\n") == 1
    assert len([line for line in stderr if line.startswith("evaluating ")]) == 1
    return json.loads(stdout)


def alone(*arguments):
    return json_of("eval", *arguments, "--device", "cpu")


def assert_same(result, expected):
    """Compare all but the times; the total of the losses must be the same to 1e-6 nats per token."""
    assert {**result, "rows": None, "processes": 1, "search": None} == {**expected, "rows": None, "search": None}
    for row, of_one in zip(result["rows"], expected["rows"], strict=True):
        assert row.keys() == of_one.keys()
        for key in row.keys() - TIMES:
            if isinstance(row[key], float):
                assert row[key] == pytest.approx(of_one[key], abs=1e-6, rel=1e-6)
            else:
                assert row[key] == of_one[key]
        assert row["ms_per_token"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["word", "--split", "valid", "--batch-size", 5], marks=pytest.mark.slow),
        pytest.param(["byte", "--text", "novel/test.txt", "--batch-size", 4], marks=pytest.mark.slow),
        pytest.param(["byte", "--protocols", "disjoint,recurrence", "--batch-size", 2], marks=pytest.mark.slow),
        ["byte", "--attn-len", "3,7", "--stride", 2, "--positions", 301, "--batch-size", 4],
    ],
)
def test_processes_find_the_losses_of_one_process(here, arguments):
    assert_same(in_processes(*arguments), alone(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize("protocols", [[], ["--protocols", "disjoint,recurrence"]], ids=len)
def test_fewer_lanes_than_processes_are_rejected_once(here, protocols):
    stdout, stderr = ended(start("eval", "byte", "--batch-size", 1, *protocols, "--processes", 2), 2)
    assert stdout == ""
    (error,) = (line for line in stderr if line.startswith("error: "))
    assert "--batch-size 2 or more" in error


@on_linux
def test_all_processes_end_with_their_launcher(here):
    write_endless()
    process = start(*ENDLESS, "--processes", 2)
    process.stderr.readline()  # evaluating
    os.kill(process.pid, signal.SIGKILL)
    ended(process, -signal.SIGKILL)
    wait_for(lambda: not processes_in(here))


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_is_killed_ends_all_with_one_line(here, rank):
    write_endless()
    process = start(*ENDLESS, "--processes", 2)
    process.stderr.readline()  # evaluating
    os.kill(processes_in(here)[rank], signal.SIGKILL)
    _, stderr = ended(process, 1)
    (error,) = (line for line in stderr if line.startswith("error: "))
    assert f"process {rank} was killed by signal 9" in error
    wait_for(lambda: not processes_in(here))


@pytest.mark.slow
def test_the_losses_of_processes_are_written_and_recorded_once(here):
    log = Path("runs/byte/evals.jsonl")
    _, stderr = ended(start("eval", "byte", "--processes", 2, "--losses", "two.h5"), 0)
    assert sum(line.endswith(" written to two.h5") for line in stderr) == 1
    assert [row["processes"] for row in read_log(log)] == [2]
    done("eval", "byte", "--losses", "one.h5", "--device", "cpu")
    with h5py.File("one.h5") as one, h5py.File("two.h5") as two:
        for name in one:
            assert two[name][()] == pytest.approx(one[name][()], abs=1e-5)
