"""Fault injection: kills, damaged files, full disks, hostile files, races and special files, counted in a table.

python -m tests.faults [--only kills|mutations|disk|hostile|races|special] [--kills N] [--mutations N] [--json FILE]

All of it (500 kills, 5,000 mutations of each format) takes up to two hours on two cores. Needs Linux; disks are filled
for real where a tmpfs can be mounted, also by an unprivileged user in a namespace of its own, and elsewhere by limiting
the length of files. The exit code is 1 if any count is not zero.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: forked processes cannot use its threads

from tests.faults import mutations, suite, table
from tests.faults.sample import build
from txlcli import console
from txlcli.system import processors

Fault = Literal["kills", "mutations", "disk", "hostile", "races", "special"]
Format = Literal[
    "store", "recipe", "run", "jsonl", "checkpoint", "loss-file", "vocabulary", "sentencepiece", "import", "archive"
]
FULL = suite.Amounts()


def main(
    only: Annotated[Fault | None, typer.Option(help="Fault to inject [default: all].")] = None,
    seed: Annotated[int, typer.Option(help="Seed of moments and damage.")] = FULL.seed,
    kills: Annotated[int, typer.Option(help="Kills in total.")] = FULL.kills,
    mutations_: Annotated[int, typer.Option("--mutations", help="Mutations of each format.")] = FULL.mutations,
    steps: Annotated[int | None, typer.Option(help="Sizes of disk tried per command [default: all].")] = None,
    races: Annotated[int, typer.Option(help="Repetitions of each race.")] = FULL.races,
    format_: Annotated[Format | None, typer.Option("--format", help="Format to mutate [default: all].")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes [default: one per processor].")] = None,
    work: Annotated[Path | None, typer.Option(help="Folder for temporary files [default: in memory].")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write counts and findings to this file, now and then.")
    ] = None,
) -> None:
    """Inject faults, and count what is lost."""
    amounts = suite.Amounts(seed, kills, mutations_, steps, races, (format_,) if format_ else mutations.FORMATS)
    started = time.monotonic()
    with suite.work_directory(work) as name:
        directory = Path(name)
        sample = build(directory / "sample")
        injections = [
            one for fault in ([only] if only else suite.FAULTS) for one in suite.FAULTS[fault](sample, amounts)
        ]
        console.say(f"{len(injections):,} injections")

        def save(outcomes):
            if json_file:
                json_file.write_text(json.dumps(table.as_json(outcomes), indent=1) + "\n")

        outcomes = suite.run(injections, directory, jobs or processors.available(), save)
    table.show(outcomes)
    console.say(f"{time.monotonic() - started:,.0f} s")
    save(outcomes)
    sys.exit(int(any(outcome.findings for outcome in outcomes)))


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
