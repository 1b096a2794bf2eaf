"""`txl runs published`: a run among the systems of the paper's Tables 1 to 5."""

import dataclasses
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.errors import UsageError
from txlcli.options import RUNS_DIR, Json, RunsDir
from txlcli.paper import metrics, published
from txlcli.paper.published import CONTEMPORARY, FINETUNED, Result, Table
from txlcli.runs import history, run_folder
from txlcli.runs.history import History

if TYPE_CHECKING:
    from txlcli.workflows.ranking import Standing

CORPORA = [table.corpus for table in published.BENCHMARKS]
OF_THE_PAPER = f"{', '.join(map(str, CORPORA[:-1]))} or {CORPORA[-1]}"
OTHER_SYMBOLS = "~"
MARKS = {CONTEMPORARY: "contemporary with the paper", FINETUNED: "with two-step finetuning"}


def published_(
    subject: Annotated[
        str | None, typer.Argument(metavar="[RUN|CORPUS]", help="A run, or a corpus of the paper; the newest run.")
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Set a run beside the paper's Tables 1 to 5.

    All systems of the run's corpus, the best first, with the run in its place.
    With a corpus of the paper instead of a run: its table alone.

    Example: txl runs published ptb
    """
    from txlcli.workflows.ranking import standing as standing_of

    if subject in CORPORA and not run_folder.is_run(str(subject), runs_dir):
        table, run_history, standing = published.benchmark(str(subject)), None, None
    else:
        run_history = history.read(run_folder.find(subject, runs_dir))
        standing = standing_of(run_history)
        table = standing.table if standing else None
    if table is None:
        assert run_history is not None
        raise UsageError(
            f"{run_history.run.folder} was trained on {run_history.run.settings.corpus.store}, not a corpus of the "
            f'paper; take a run of {OF_THE_PAPER}, or "txl runs published ptb" for a table alone'
        )
    result = _result(table, run_history, standing)
    if run_history is not None and subject is None:
        console.say(f"the newest run: {run_history.run.folder}")
    if json:
        console.show_json(metrics.without_infinities(result))
    else:
        _show(result)


def _result(table: Table[Result], run_history: History | None, standing: "Standing | None") -> dict[str, Any]:
    """The object that --json prints, and that the table is made of: the best row first."""
    rows: list[dict[str, Any]] = [
        {
            **dataclasses.asdict(row),
            "label": row.label,
            "run": False,
            "same_symbols": standing.same_text(row) if standing and standing.result is not None else True,
        }
        for row in table.rows
    ]
    ours = None
    if run_history is not None and standing is not None:
        ours = _own(run_history, standing)
        if standing.result is not None:
            rows.append(ours["row"])
    rows.sort(key=_sorted_by)
    return {
        "table": table.number,
        "corpus": table.corpus,
        "title": table.title,
        "metric": table.metric,
        "rows": rows,
        "ours": {key: value for key, value in ours.items() if key != "row"} if ours else None,
    }


def _sorted_by(row: dict[str, Any]) -> float:
    """The result on the test split, or for a run that has none that on the validation split."""
    return float(row["test"] if row["test"] is not None else row["valid"])


def _own(run_history: History, standing: "Standing") -> dict[str, Any]:
    run = run_history.run
    numbers = {"valid": standing.valid, "test": standing.test}
    return {
        "run": str(run.folder),
        "state": run_history.state,
        "step": run_history.step,
        "comparable": standing.result is not None,
        "reasons": list(standing.reasons),
        "sources": {split: number.source if number else None for split, number in numbers.items()},
        "row": {
            "citation": None,
            "name": run.name,
            "parameters": _short(run.parameters),
            **{split: number.value if number else None for split, number in numbers.items()},
            "mark": "",
            "label": str(run.folder),
            "run": True,
            "same_symbols": True,
        },
    }


def _short(parameters: int) -> str:
    """A count as the paper prints it, cut and not rounded."""
    if parameters >= 10**9:
        return f"{parameters // 10**7 / 100:g}B"
    return f"{parameters // 10**6}M" if parameters >= 10**6 else f"{parameters / 1e6:.1g}M"


def _show(result: dict[str, Any]) -> None:
    title = f"Table {result['table']} of the paper: {result['title']}, {result['metric']}, the best first"
    columns = ("system", "#param", "valid", "test")
    console.show_table(title, columns, [_row(row) for row in result["rows"]], _caption(result))


def _row(row: dict[str, Any]) -> list[str]:
    signs = row["mark"] + ("" if row["same_symbols"] else OTHER_SYMBOLS)
    label = f"> {row['label']}" if row["run"] else f"  {row['label']}{' ' + signs if signs else ''}"
    digits = ".2f" if row["run"] else ""
    numbers = [f"{row[split]:{digits}}" if row[split] is not None else "-" for split in ("valid", "test")]
    return [label, row["parameters"] or "-", *numbers]


def _caption(result: dict[str, Any]) -> str:
    said = []
    ours = result["ours"]
    if ours is not None and ours["comparable"]:
        for split, source in ours["sources"].items():
            said.append(f"> {split}: {source}" if source else f"> {split}: {_lacking(split, ours['run'])}")
        if not ours["sources"]["test"]:
            said.append("> placed by its validation result.")
    elif ours is not None:
        next_step = "" if ours["reasons"] else f" yet; {_evaluation('test', ours['run'])}"
        said.append(f"{ours['run']} is not in the table{next_step}")
    if ours is not None:
        said += [f"not comparable: {reason}" for reason in ours["reasons"]]
    if not all(row["same_symbols"] for row in result["rows"]):
        said.append(f"{OTHER_SYMBOLS} not comparable: the released code drops symbols that others keep.")
    said += [f"{mark} {words}" for mark, words in MARKS.items() if any(row["mark"] == mark for row in result["rows"])]
    return "\n".join(said)


def _lacking(split: str, folder: str) -> str:
    return f"none yet; {_evaluation(split, folder)}"


def _evaluation(split: str, folder: str) -> str:
    return shlex.join(["txl", "eval", folder, "--split", split])
