"""Reproduces tables and figures one after the other, and keeps the report in its directory up to date."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from txlcli.paper import published
from txlcli.workflows.options import ReproduceOptions
from txlcli.workflows.reproduction import figures, frontier, scales, state, tables
from txlcli.workflows.reproduction.runner import Report, Runner
from txlcli.workflows.reproduction.scales import Scale
from txlcli.workflows.reproduction.section import TABLES, Section, parts
from txlcli.workflows.reproduction.state import ReportState
from txlcli.workflows.workspace import Workspace

ITEMS: dict[str, tuple[tuple[str, ...], Callable[[Runner], Section]]] = {
    **{f"table{n}": (parts(f"table{n}"), partial(tables.benchmark, number=n)) for n in range(1, 6)},
    "table6": (parts("table6"), tables.table6),
    "table7": (parts("table7"), tables.table7),
    "table8": (figures.RECL_PARTS, figures.table8),
    "table9": ((), figures.table9),
    "table10": (parts("table10"), tables.table10),
    **{f"figure{n}": (figures.RECL_PARTS, partial(figures.recl_figure, number=n)) for n in (3, 4)},
    **{f"figure{n}": ((figures.STANDARD,), partial(figures.attention_figure, number=n)) for n in (5, 6, 7)},
    "appendix-e": ((figures.STANDARD,), figures.appendix_e),
    "frontier": (frontier.PARTS, frontier.frontier),
}
"""Models that each table or figure needs, by their part in the paper, and the function that makes it."""
TITLES = {f"table{n}": f"Table {n}: {table.title}" for n, table in published.TABLES.items()} | TABLES["titles"]


@dataclass(frozen=True, kw_only=True)
class ReproduceResult:
    """Tables and figures reproduced by one call."""

    report: list[str]
    """Files of the report, which has the sections of earlier calls, too."""
    sections: list[Section]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl reproduce --json` prints."""
        return {"report": self.report, "sections": {section.name: asdict(section) for section in self.sections}}


def scale_of(options: ReproduceOptions, workspace: Workspace) -> Scale:
    """Return the selected scale; tiny uses Penn Treebank if it has been prepared."""
    return scales.get(options.scale, has_ptb=workspace.store_path("ptb").is_file())


def run(names: Sequence[str], options: ReproduceOptions, workspace: Workspace, report: Report) -> ReproduceResult:
    """Reproduce items, in the paper's order, into a report, which keeps the sections of earlier calls."""
    scale = scale_of(options, workspace)
    with state.opened(options) as stored:
        files = _write(stored, report)
        for number, name in enumerate(names, 1):
            workspace.reporter.say(f"{name} ({number} of {len(names)}), {scale.name} scale")
            runner = Runner(options=options, scale=scale, workspace=workspace, state=stored, report=report)
            stored.sections[name] = _make(name, runner)
            _write(stored, report)  # after each item: an interruption loses only one
        return ReproduceResult(report=files, sections=[stored.sections[name] for name in names])


def _make(name: str, runner: Runner) -> Section:
    """Make an item, and describe how it was made."""
    started = time.monotonic()
    _, make = ITEMS[name]
    section = make(runner)
    return replace(
        section,
        name=name,
        title=TITLES[name],
        commands=runner.commands,
        readings=runner.readings,
        seconds=runner.reused_seconds + time.monotonic() - started,
        scale=runner.scale.name,
        hardware=runner.machine,
    )


def _write(stored: ReportState, report: Report) -> list[str]:
    """Write the state and the report; return the paths of the latter."""
    stored.write()
    sections = [stored.sections[name] for name in ITEMS if name in stored.sections]
    return report.write(sections, stored.scale, stored.directory)
