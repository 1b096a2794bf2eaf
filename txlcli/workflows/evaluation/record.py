"""Results of an evaluation: one row per setting, the object that --json prints, the record in the run's evals.jsonl."""

from datetime import UTC, datetime
from typing import Any

from txlcli.config.encodings import limits_distance
from txlcli.config.model_settings import TransformerSettings
from txlcli.core.reading.scoring import Scores, attention_span_in
from txlcli.errors import TrainingError
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.workflows.evaluation.texts import Scoring

Row = dict[str, Any]
"""Result for one setting, as in "rows" of --json."""

SLOWDOWN_WINDOWS = 3
NO_SLOWDOWN = {"one_lane_ms_per_token": None, "vanilla_ms_per_token": None, "slowdown": None}
RECORDED = (
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
    "processes",
)
"""Keys of the result that evals.jsonl repeats in every row."""


def make_row(scoring: Scoring, scores: Scores, *, next_step: str = "train it again") -> Row:
    """Return the result for one setting, without the slowdown; a recurrent state has no attention length.

    Args:
        scoring: the run, the text that was scored, and the settings.
        scores: the losses.
        next_step: advice for the error message if not even fp32 gives a finite loss.

    Raises:
        TrainingError: the loss is not finite.
    """
    opened, text, settings = scoring.opened, scoring.text, scoring.settings
    if metrics.finite(scores.total_nats) is None:
        advice = non_finite_advice(opened.precision, next_step)
        raise TrainingError(f"{opened.run.directory}: the loss of {text.title} is not finite; {advice}")
    fewest, most = None, None
    if not opened.run.settings.model.recurrent_state:
        fewest, most = attention_span_in(opened.model, settings, len(text.targets))
    return {
        "mem_len": settings.mem_len,
        "attn_len_min": fewest,
        "attn_len_max": most,
        "tokens": len(scores.losses_nats),
        "lanes": scores.lanes,
        "loss_nats": scores.total_nats / len(scores.losses_nats),
        **{name: metrics.finite(value) for name, value in metrics.measures(scores.total_nats, text.scored).items()},
        "ms_per_token": scores.ms_per_token,
    }


def non_finite_advice(precision: str, next_step: str) -> str:
    """Return the next step after a non-finite loss; fp32 can help only if 16 bits were used."""
    return next_step if precision in ("fp32", "tf32") else f"evaluate with --precision fp32, or {next_step}"


def make_result(scoring: Scoring, rows: list[Row], search: dict[str, Any] | None, *, complete: bool) -> dict[str, Any]:
    """Return the object that --json prints and the table shows; the row with the lowest loss is marked as best."""
    opened, text, settings = scoring.opened, scoring.text, scoring.settings
    model = opened.run.settings.model
    has_attention = model.has_attention
    in_segments = not all("stride" in row for row in rows)  # otherwise in windows, each of its own length
    best = min(rows, key=lambda row: row["loss_nats"])
    return {
        "run": str(opened.run.directory),
        "step": opened.checkpoint.state["step"],
        "text": text.title,
        "unit": text.unit,
        "metric": opened.run.metric,
        "conventions": text.conventions,
        "split_sha256": text.digest,
        "may_be_learned": text.may_be_trained_on,
        "seg_len": settings.seg_len if in_segments else None,
        "batch_size": settings.batch_size,
        "position": model.position if isinstance(model, TransformerSettings) else None,
        "max_distance": settings.max_distance if has_attention else None,
        "same_length": settings.same_length if has_attention and in_segments else None,
        "precision": opened.precision,
        "attention": opened.model.attention_backend if has_attention else None,
        "processes": scoring.world.size,
        "slowdown_windows": SLOWDOWN_WINDOWS,
        "paper": text.paper,
        "search": search,
        "complete": complete,
        "rows": [{**row, "best": row is best} for row in rows],
    }


def describe_settings(result: dict[str, Any]) -> str:
    """Return the settings of an evaluation in one sentence."""
    first, precision = result["rows"][0], result["precision"]
    limit = f"max_distance = {result['max_distance'] or 'none'}, " if limits_distance(result["position"]) else ""
    if "stride" in first:
        stride = first["stride"]
        predicted = "one prediction per window" if stride == 1 else f"the last {stride} predictions of each window"
        return f"Without memory: each window is recomputed, {predicted}, {limit}{precision}."
    lanes = _describe_lanes(first["lanes"])
    if first["attn_len_max"] is None:
        return f"The recurrent state is carried along the text. L = {result['seg_len']}, {precision}; {lanes}"
    mem_len = f"M = {first['mem_len']}, " if "method" in first else ""
    same_length = f"same_length = {result['same_length']}, " if result["same_length"] else ""
    return f"{mem_len}L = {result['seg_len']}, {same_length}{limit}{precision}; {lanes}"


def _describe_lanes(lanes: int) -> str:
    return f"{lanes} lanes, {lanes - 1} of them start without context." if lanes > 1 else "one lane."


def record(scoring: Scoring, result: dict[str, Any]) -> None:
    """Append the rows of a result to the run's evals.jsonl; if that cannot be written, say so and continue."""
    opened, text = scoring.opened, scoring.text
    shared = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "weights": opened.run.best_or_last.name,
        "corpus": text.corpus,
        "split": text.split,
        "whole": text.whole,
        **{key: result[key] for key in RECORDED},
    }
    # "best" and "change" hold within one sweep only.
    rows = [{**shared, **{key: row[key] for key in row if key not in ("best", "change")}} for row in result["rows"]]
    try:
        history.record(opened.run, rows)
    except OSError as error:
        path = opened.run.directory / run_directory.EVALS
        scoring.reporter.say(f"{path}: result not recorded ({error.strerror}); check that the run's folder is writable")
