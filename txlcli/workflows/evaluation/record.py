"""Keeps what `txl eval` found with the run, in evals.jsonl."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.runs import history, run_folder
from txlcli.workflows.evaluation.texts import ScoredText

if TYPE_CHECKING:
    from txlcli.runs.loading import OpenRun

CIRCUMSTANCES = (
    "step",
    "text",
    "unit",
    "metric",
    "conventions",
    "split_sha256",
    "may_be_learned",
    "seg_len",
    "batch_size",
    "max_distance",
    "same_length",
    "precision",
    "attention",
)


def keep(opened: "OpenRun", source: ScoredText, result: dict[str, Any]) -> None:
    """Add the rows of a result to the run's evals.jsonl; a run that cannot be written is said, and left as it is."""
    circumstances = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "weights": opened.run.best_or_last.name,
        "corpus": source.corpus,
        "split": source.split,
        "whole": source.whole,
        **{key: result[key] for key in CIRCUMSTANCES},
    }
    # The mark of the best is of this sweep only.
    rows = [{**circumstances, **{key: row[key] for key in row if key != "best"}} for row in result["rows"]]
    try:
        history.record(opened.run, rows)
    except OSError as error:
        path = opened.run.folder / run_folder.EVALS
        console.say(f"{path}: not recorded there ({error.strerror}); the run's folder cannot be written")
