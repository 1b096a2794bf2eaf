"""Kills: SIGKILL and SIGTERM at random moments, and just before each change of a file."""

import math
import random
import signal
from functools import partial

from tests.faults import process
from tests.faults.jobs import rehearse
from tests.faults.process import Kill
from tests.faults.table import SIGNAL, TRACEBACK, Injection

TERMINATED = 128 + signal.SIGTERM
LAST_LINES = ("error: ", "terminated", "stopped; ")
LATEST = 1.05  # random moments, as a share of the duration of an uninterrupted command


def _kill(rehearsal, sample, kill, directory, outcome):
    """Kill one command, and run those that must work afterwards."""
    job = rehearsal.job
    sample.copy(job.needs, directory)
    ended = outcome.examine(process.run(*job.words, directory=directory, kill=kill))
    if kill.number == signal.SIGTERM:
        _check_terminated(ended, outcome)
    job.check(rehearsal.state(directory, outcome))


def _check_terminated(ended, outcome):
    """Check that SIGTERM ended the process with one line and its exit code, if it came in time."""
    if ended.code not in (0, TERMINATED) and not ended.signal:
        outcome.add(SIGNAL, f"{ended.command}: exit code {ended.code} after SIGTERM; {ended.last_line}")
    elif ended.code == TERMINATED and sum(line.startswith(LAST_LINES) for line in ended.stderr.splitlines()) > 1:
        outcome.add(TRACEBACK, f"{ended.command}: {ended.stderr!r}")


def injections(sample, amounts):
    """Return kills of every command: half of them at random moments, half of them before changes of files in turn."""
    rehearsals = rehearse(sample)
    turns = math.ceil(amounts.kills / len(rehearsals))
    found = []
    for number in range(amounts.kills):
        turn, job = divmod(number, len(rehearsals))
        rehearsal = rehearsals[job]
        sent = signal.SIGTERM if (turn + job) % 4 == 3 else signal.SIGKILL
        chance = random.Random(f"{amounts.seed} {rehearsal.job.name} {turn}")
        kill = _kill_of(rehearsal, sent, turn, turns, chance)
        act = partial(_kill, rehearsal, sample, kill)
        found.append(Injection("kills", rehearsal.job.name, f"#{turn} {kill}", act))
    return found


def _kill_of(rehearsal, sent, turn, turns, chance):
    """Return a kill at a random moment in odd turns; in even ones before a change of a file, spread over all."""
    if turn % 2:
        return Kill(sent, after_s=chance.uniform(0, LATEST * rehearsal.seconds))
    share = (turn // 2 + chance.random()) / math.ceil(turns / 2)
    return Kill(sent, before_change=1 + int(share * rehearsal.changes))
