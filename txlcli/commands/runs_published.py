"""`txl runs published`: rank of a run among the systems of the paper's Tables 1 to 5."""

import dataclasses
from typing import Annotated, Any

from typer import Argument

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import RUNS_DIR, Json, RunsDir, Verbose
from txlcli.errors import UsageError
from txlcli.paper import metrics, published
from txlcli.paper.published import Result, Table
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.views import run_tables
from txlcli.workflows.ranking import PublishedRank, published_rank

CORPORA = [table.corpus for table in published.BENCHMARKS]
CORPUS_NAMES = f"{', '.join(map(str, CORPORA[:-1]))} or {CORPORA[-1]}"


def published_(
    subject: Annotated[
        str | None,
        Argument(
            metavar="RUN|CORPUS",
            help="Run, or corpus of the paper [default: most recent run].",
            autocompletion=completion.runs,
        ),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Compare a run with the paper's Tables 1 to 5.

    Shows the run among all systems on its corpus, the best first.
    With a corpus of the paper instead of a run, shows the table alone.

    Example: txl runs published ptb
    """
    if subject in CORPORA and not run_directory.is_run(str(subject), runs_dir):
        table, run_history, rank = published.benchmark(str(subject)), None, None
    else:
        run_history = history.read(run_directory.find(subject, runs_dir))
        rank = published_rank(run_history)
        table = rank.table if rank else None
    if table is None:
        assert run_history is not None
        raise UsageError(
            f"{run_history.run.directory} was trained on {run_history.run.settings.corpus.store}, not a corpus of the "
            f'paper; give a run on {CORPUS_NAMES}, or "txl runs published ptb" for a table alone'
        )
    result = _result(table, run_history, rank)
    if run_history is not None and subject is None:
        console.say(f"the most recent run: {run_history.run.directory}")
    if json:
        console.show_json(metrics.without_infinities(result))
    else:
        run_tables.show_rank(result, verbose=verbose)


def _result(table: Table[Result], run_history: History | None, rank: PublishedRank | None) -> dict[str, Any]:
    """Return the object that --json prints and the table shows, with the best row first."""
    rows: list[dict[str, Any]] = [
        {
            **dataclasses.asdict(row),
            "label": row.label,
            "run": False,
            "same_symbols": rank.same_text(row) if rank and rank.result is not None else True,
        }
        for row in table.rows
    ]
    ours = None
    if run_history is not None and rank is not None:
        ours = _own(run_history, rank)
        if rank.result is not None:
            rows.append(_own_row(run_history, rank))
    rows.sort(key=_rank_key)
    return {
        "table": table.number,
        "corpus": table.corpus,
        "title": table.title,
        "metric": table.metric,
        "rows": rows,
        "ours": ours,
    }


def _rank_key(row: dict[str, Any]) -> float:
    """Return the result on the test split, or on the validation split for a run without a test result."""
    return float(row["test"] if row["test"] is not None else row["valid"])


def _own(run_history: History, rank: PublishedRank) -> dict[str, Any]:
    numbers = {"valid": rank.valid, "test": rank.test}
    return {
        "run": str(run_history.run.directory),
        "state": run_history.state,
        "step": run_history.step,
        "comparable": rank.result is not None,
        "reasons": list(rank.reasons),
        "sources": {split: number.source if number else None for split, number in numbers.items()},
    }


def _own_row(run_history: History, rank: PublishedRank) -> dict[str, Any]:
    run = run_history.run
    return {
        "citation": None,
        "name": run.name,
        "parameters": _short(run.parameters),
        "valid": rank.valid.value if rank.valid else None,
        "test": rank.test.value if rank.test else None,
        "mark": "",
        "label": str(run.directory),
        "run": True,
        "same_symbols": True,
    }


def _short(parameters: int) -> str:
    """Format a count as the paper does: truncated, not rounded."""
    if parameters >= 10**9:
        return f"{parameters // 10**7 / 100:g}B"
    return f"{parameters // 10**6}M" if parameters >= 10**6 else f"{parameters / 1e6:.1g}M"
