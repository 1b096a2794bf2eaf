"""Fault injection: kills, damaged files, full disks and races, counted in a table.

python -m tests.faults [--only kills|mutations|disk|races] [--kills N] [--mutations N] [--disks N] [--races N]

Needs Linux; disks are filled where a tmpfs can be mounted, also by an unprivileged user in a namespace of its own. The
exit code is 1 if any count is not zero.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: forked processes cannot use its threads

from tests.faults import suite, table
from tests.faults.sample import build
from txlcli import console
from txlcli.system import processors

FULL = suite.Amounts()


def main(
    only: Annotated[
        Literal["kills", "mutations", "disk", "races"] | None, typer.Option(help="Fault to inject [default: all].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of moments and damage.")] = FULL.seed,
    kills: Annotated[int, typer.Option(help="Kills in total.")] = FULL.kills,
    mutations: Annotated[int, typer.Option(help="Mutations of each file.")] = FULL.mutations,
    disks: Annotated[int, typer.Option(help="Sizes of disk tried per command.")] = FULL.disks,
    races: Annotated[int, typer.Option(help="Repetitions of each race.")] = FULL.races,
) -> None:
    """Inject faults, and count what is lost."""
    amounts = suite.Amounts(seed, kills, mutations, disks, races)
    with suite.work_directory() as name:
        sample = build(Path(name) / "sample")
        chosen = [only] if only else suite.FAULTS
        injections = [injection for fault in chosen for injection in suite.FAULTS[fault](sample, amounts)]
        console.say(f"{len(injections):,} injections")
        outcomes = list(suite.run(injections, Path(name), processors.available()))
    console.show_table("", table.COLUMNS, [[str(cell) for cell in row] for row in table.rows(outcomes)])
    found = [(outcome, finding) for outcome in outcomes for finding in outcome.findings]
    for outcome, finding in found:
        console.complain(f"{outcome.fault} {outcome.target} {outcome.name}, {finding.kind}: {finding.detail}")
    sys.exit(int(bool(found)))


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
