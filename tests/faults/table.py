"""Findings of the injections, and their counts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

LOST, SILENT, TRACEBACK, HANG, SIGNAL, LEFTOVER = KINDS = (
    "lost",  # an earlier file is gone or damaged, or no command brings its run to an end
    "silent",  # exit code 0 and another result than without the damage
    "traceback",  # a traceback, or a failure that is not explained by one line
    "hang",  # more than HANG_S seconds
    "signal",  # ended by a signal that the suite did not send
    "leftover",  # a temporary file that the next command did not remove
)
HANG_S = 120.0  # far less on an idle machine
COLUMNS = ("fault", "target", "injections", *KINDS)
INTERRUPTED = 128  # exit codes above it are those of signals, whose line is not an error
STACK = 2000  # characters of the end of stderr, where a process that hangs writes its stack


@dataclass(frozen=True)
class Injection:
    """A fault of a kind, into a target."""

    fault: str
    target: str
    name: str
    """Describes the injection; unique together with the seed."""
    act: Callable
    """Called with a directory and the outcome."""


@dataclass(frozen=True)
class Finding:
    kind: str
    detail: str


@dataclass
class Outcome:
    fault: str
    target: str
    name: str
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind, detail):
        self.findings.append(Finding(kind, detail))

    def examine(self, ended):
        """Add what is wrong with the end of a process, whatever it was asked to do."""
        if ended.hung:
            self.add(HANG, f"{ended.command}: {ended.stderr[-STACK:]!r}")
        elif ended.signal and not ended.was_sent:
            self.add(SIGNAL, f"{ended.command}: signal {ended.signal}; {ended.last_line}")
        elif "Traceback (most recent call last)" in ended.stderr or "Exception ignored" in ended.stderr:
            self.add(TRACEBACK, f"{ended.command}: {ended.last_line}")
        elif ended.code and ended.code < INTERRUPTED and not ended.last_line.startswith("error: "):
            self.add(TRACEBACK, f"{ended.command}: exit code {ended.code} without an error line; {ended.last_line}")
        return ended


def rows(outcomes):
    """Return a row of the table for each fault and target: injections, and those with a finding of each kind."""
    counts = {}
    for outcome in outcomes:
        count = counts.setdefault((outcome.fault, outcome.target), Counter())
        count.update({"injections", *(finding.kind for finding in outcome.findings)})
    return [[*key, *(count[name] for name in COLUMNS[2:])] for key, count in counts.items()]
