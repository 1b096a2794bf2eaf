"""Findings of the injections, their counts and the printed table."""

from collections import Counter
from dataclasses import asdict, dataclass, field

from txlcli import console

LOST, SILENT, TRACEBACK, HANG, SIGNAL, LEFTOVER, MEMORY = KINDS = (
    "lost",  # an earlier file is gone or damaged, or no command brings its run to an end
    "silent",  # exit code 0 and another result than without the damage; code of a file was run; a raw terminal escape
    "traceback",  # a traceback, or a failure that is not explained by one line
    "hang",  # more than HANG_S seconds, without the time in which other processes had all processors
    "signal",  # ended by a signal that the suite did not send
    "leftover",  # a temporary file that the next command did not remove
    "memory",  # more than MAX_BYTES
)
HANG_S = 20.0
MAX_BYTES = 2 << 30
CONTROLS = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))}
COLUMNS = ("fault", "target", "injections", "lost", "silent", "tracebacks", "hangs", "signals", "leftovers", "peak MB")
STACK = 2000  # characters of the end of stderr, where a process that hangs writes its stack
EXAMPLES = 2  # findings of each kind that are printed below the table


@dataclass(frozen=True)
class Finding:
    kind: str
    detail: str


@dataclass
class Outcome:
    """What one injection showed."""

    fault: str
    target: str
    name: str
    """Describes the injection; unique together with the seed."""
    findings: list[Finding] = field(default_factory=list)
    peak_bytes: int = 0

    def add(self, kind, detail):
        self.findings.append(Finding(kind, detail))

    def examine(self, ended):
        """Add what is wrong with the end of a process, whatever it was asked to do."""
        said = f"{ended.command}: {ended.last_line}"
        self.peak_bytes = max(self.peak_bytes, ended.peak_bytes)
        if ended.peak_bytes > MAX_BYTES:
            self.add(MEMORY, f"{ended.command}: {ended.peak_bytes >> 20:,} MB")
        if "\x1b" in ended.stdout + ended.stderr:
            self.add(SILENT, f"{ended.command}: terminal escapes are printed")
        if ended.hung:
            self.add(HANG, f"{ended.command}: {ended.cpu_seconds:.2f} s of CPU time; {ended.stderr[-STACK:]!r}")
        elif ended.signal and not ended.was_sent:
            self.add(SIGNAL, f"{ended.command}: signal {ended.signal}; {ended.last_line}")
        elif "Traceback (most recent call last)" in ended.stderr or "Exception ignored" in ended.stderr:
            self.add(TRACEBACK, said)
        elif ended.code and not ended.last_line.startswith("error: "):
            self.add(TRACEBACK, f"{ended.command}: exit code {ended.code} without an error line; {ended.last_line}")
        return ended


@dataclass
class Row:
    """Counts of the injections of one fault into one target."""

    fault: str
    target: str
    injections: int = 0
    counts: Counter = field(default_factory=Counter)
    """Injections with a finding, by its kind."""
    peak_bytes: int = 0

    def add(self, outcome):
        self.injections += 1
        self.peak_bytes = max(self.peak_bytes, outcome.peak_bytes)
        self.counts.update({finding.kind for finding in outcome.findings})


def rows_of(outcomes):
    rows = {}
    for outcome in outcomes:
        rows.setdefault((outcome.fault, outcome.target), Row(outcome.fault, outcome.target)).add(outcome)
    return list(rows.values())


def show(outcomes):
    """Print the table, and examples of the findings below it."""
    rows = rows_of(outcomes)
    cells = [
        [row.fault, row.target, row.injections, *(row.counts[kind] for kind in KINDS[:-1]), row.peak_bytes >> 20]
        for row in rows
    ]
    total = [sum(column) for column in list(zip(*cells, strict=True))[2:-1]]
    cells.append(["all", "", *total, max(row.peak_bytes for row in rows) >> 20])
    console.show_table("", COLUMNS, [[str(cell) for cell in line] for line in cells])
    for row in rows:
        for kind in KINDS:
            found = [
                f"{outcome.name}: {finding.detail}"
                for outcome in outcomes
                for finding in outcome.findings
                if (outcome.fault, outcome.target, finding.kind) == (row.fault, row.target, kind)
            ]
            for text in found[:EXAMPLES]:
                print(f"{row.fault} {row.target}, {kind}: {text.translate(CONTROLS)}")


def as_json(outcomes):
    return {
        "rows": [{**asdict(row), "counts": {kind: row.counts[kind] for kind in KINDS}} for row in rows_of(outcomes)],
        "findings": [asdict(outcome) for outcome in outcomes if outcome.findings],
    }
