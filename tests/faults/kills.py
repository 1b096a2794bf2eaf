"""Kills: SIGKILL and SIGTERM at random moments, and just before each change of a file."""

import random
import signal
from dataclasses import dataclass

from tests.faults import process
from tests.faults.jobs import Rehearsal, rehearse
from tests.faults.process import Kill
from tests.faults.table import SIGNAL, TRACEBACK

TERMINATED = 128 + signal.SIGTERM
LAST_LINES = ("error: ", "terminated", "stopped; ")
LATEST = 1.05  # random moments, as a share of the duration of an uninterrupted command


@dataclass(frozen=True)
class KillOf:
    """A kill of one command, and the commands that must work afterwards."""

    rehearsal: Rehearsal
    sample: object
    kill: Kill
    number: int

    fault = "kills"

    @property
    def target(self):
        return self.rehearsal.job.name

    @property
    def name(self):
        return f"#{self.number} {self.kill}"

    def act(self, directory, outcome):
        job = self.rehearsal.job
        self.sample.copy(job.needs, directory)
        ended = outcome.examine(process.run(*job.words, directory=directory, kill=self.kill))
        if self.kill.number == signal.SIGTERM:
            _check_terminated(ended, outcome)
        job.check(self.rehearsal.state(directory, outcome))


def _check_terminated(ended, outcome):
    """Check that SIGTERM ended the process with one line and its exit code, if it came in time."""
    if ended.code not in (0, TERMINATED) and not ended.signal:
        outcome.add(SIGNAL, f"{ended.command}: exit code {ended.code} after SIGTERM; {ended.last_line}")
    elif ended.code == TERMINATED and sum(line.startswith(LAST_LINES) for line in ended.stderr.splitlines()) > 1:
        outcome.add(TRACEBACK, f"{ended.command}: {ended.stderr!r}")


def injections(sample, amounts):
    """Return kills of every command: half of them at random moments, half of them before changes of files in turn."""
    rehearsals = rehearse(sample)
    return [
        _kill_of(rehearsals[number % len(rehearsals)], sample, number // len(rehearsals), amounts)
        for number in range(amounts.kills)
    ]


def _kill_of(rehearsal, sample, number, amounts):
    chance = random.Random(f"{amounts.seed} {rehearsal.job.name} {number}")
    sent = signal.SIGTERM if number % 4 == 3 else signal.SIGKILL
    if number % 2:
        return KillOf(rehearsal, sample, Kill(sent, after_s=chance.uniform(0, LATEST * rehearsal.seconds)), number)
    per_job = max(1, amounts.kills // 20)  # kills before changes, spread over all of them
    change = 1 + (number // 2 * max(1, rehearsal.changes // per_job) + chance.randrange(3)) % max(1, rehearsal.changes)
    return KillOf(rehearsal, sample, Kill(sent, before_change=change), number)
