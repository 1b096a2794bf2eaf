"""Result of an evaluation: its rows, the settings in a sentence, and the files that keep it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txlcli.data import loss_file
from txlcli.data.loss_file import TokenLosses
from txlcli.errors import RunError
from txlcli.runs import history, run_directory
from txlcli.workflows.evaluation.options import SLOWDOWN_REPETITIONS
from txlcli.workflows.evaluation.rows import EvalRow
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.search import LengthSearch

NOT_RECORDED = (
    "run",
    "notes",
    "position",
    "slowdown_windows",
    "paper",
    "search",
    "complete",
    "rows",
    "lacking",
    "best",
    "change",
)
"""Keys of the result and its rows that evals.jsonl does not have."""


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Result of an evaluation: what was scored, and one row per requested setting."""

    scoring: Scoring = field(repr=False)
    rows: tuple[EvalRow, ...]
    search: LengthSearch | None
    in_sample: bool
    """True if settings were chosen on valid, which is also the text: the result is too optimistic."""
    lacks_recurrence: str | None
    """Reason why the model lacks the protocol "recurrence", if it was requested."""
    ended_by: BaseException | None
    """Error or Ctrl-C that ended the sweep; the result then lacks the remaining rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl eval --json` prints."""
        opened = self.scoring.opened
        text = self.scoring.text
        settings = self.scoring.settings
        model = opened.model.settings
        result: dict[str, Any] = {
            **opened.facts,
            "text": text.title,
            "unit": text.unit,
            "metric": opened.metric,
            "conventions": text.conventions,
            "notes": list(text.notes),
            "split_sha256": text.digest,
            "may_be_learned": text.may_be_trained_on,
            "seg_len": settings.seg_len,
            "batch_size": settings.batch_size,
            "position": getattr(model, "position", None),
            "max_distance": settings.max_distance,
            "same_length": settings.same_length,
            "precision": opened.precision,
            "attention": opened.model.attention_backend,
            "processes": self.scoring.world.size,
            "slowdown_windows": SLOWDOWN_REPETITIONS,
            "paper": text.paper,
            "search": self.search,
            "in_sample": self.in_sample,
            "complete": self.ended_by is None,
            "rows": [row.to_json() for row in self.rows],
        }
        if all(row.in_windows for row in self.rows):  # windows have their own lengths
            result |= {"seg_len": None, "same_length": None}
        if not model.has_attention:
            result |= {"max_distance": None, "same_length": None}
        if self.compares_protocols:
            result["lacking"] = {}
            if self.lacks_recurrence:
                result["lacking"] = {"recurrence": self.lacks_recurrence}
        return result

    @property
    def compares_protocols(self) -> bool:
        """True if each row is of a protocol."""
        return self.rows[0].protocol is not None

    def describe_settings(self, row: EvalRow) -> str:
        """Return the settings of a row in one sentence, with the temperatures of all rows of a sweep."""
        settings = self.scoring.settings
        model = self.scoring.opened.model.settings
        details = []
        if model.limits_distance:
            details.append(f"max_distance = {settings.max_distance or 'none'}")
        details.append(self.scoring.opened.precision)
        temperature = self._describe_temperature(row)
        if temperature:
            details.append(temperature)
        described = ", ".join(details)
        if row.in_windows:
            predicted = f"the last {row.stride} predictions of each window"
            if row.stride == 1:
                predicted = "one prediction per window"
            documents = ""
            if row.documents:
                documents = f" Documents: {row.documents:,}; no window has tokens of two."
            return f"Without memory: each window is recomputed, {predicted}, {described}.{documents}"
        if row.documents:
            return f"Documents: {row.documents:,}, each from an empty memory. L = {settings.seg_len}, {described}."
        lanes = "one lane."
        if row.lanes > 1:
            lanes = f"{row.lanes} lanes, {row.lanes - 1} of them without context at the start."
        if row.has_state:
            return f"The recurrent state is carried along the text. L = {settings.seg_len}, {described}; {lanes}"
        mem_len = f"M = {row.mem_len}, " if row.method else ""
        same_length = ""
        if model.has_attention:
            same_length = f"same_length = {settings.same_length}, "
        return f"{mem_len}L = {settings.seg_len}, {same_length}{described}; {lanes}"

    def _describe_temperature(self, row: EvalRow) -> str:
        """Return the temperature of a row, or of each row of a sweep if they differ; empty if it is 1."""
        chosen = " (chosen on valid)" if self.scoring.settings.temperature == "auto" else ""
        temperatures = {other.temperature for other in self.rows}
        is_sweep = row.protocol is None and row.method is None
        if is_sweep and len(temperatures) > 1:
            each = [f"{other.temperature:g} with {_length(other)}" for other in self.rows]
            return f"temperature {', '.join(each)}{chosen}"
        if row.temperature == 1:
            return ""
        return f"temperature {row.temperature:g}{chosen}"

    def is_of_recipe(self, row: EvalRow) -> bool:
        """Return True if the text was read in one stream with the settings of the run's recipe, in any precision."""
        asked = self.scoring.changed(mem_len=row.mem_len).settings
        reads_stream = not row.in_windows and row.documents is None
        return reads_stream and asked == self.scoring.opened.settings.evaluation_settings()

    def raise_pending(self) -> None:
        """Raise the exception that ended the sweep; call this after the rows have been shown."""
        if self.ended_by is not None:
            raise self.ended_by


def _length(row: EvalRow) -> str:
    """Return the length that a row of a sweep is about."""
    return f"N = {row.attn_len}" if row.in_windows else f"M = {row.mem_len}"


def record(result: EvalResult) -> None:
    """Append the rows to the run's evals.jsonl; if that is not possible, say so and continue."""
    run = result.scoring.opened.as_run.run
    text = result.scoring.text
    facts = {
        **result.to_json(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "weights": run.best_or_last.name,
        "corpus": text.corpus,
        "split": text.split,
        "whole": text.whole,
    }
    if result.search is not None:
        facts["chosen_on_valid"] = True
    rows = []
    for row in result.rows:
        of_row = facts | row.to_json() | {"of_recipe": result.is_of_recipe(row)}
        rows.append({key: value for key, value in of_row.items() if key not in NOT_RECORDED})
    try:
        history.record(run, rows)
    except OSError as error:
        path = run.directory / run_directory.EVALS
        result.scoring.reporter.say(
            f"{path}: result not recorded ({error.strerror}); check that the run's folder is writable"
        )
    except RunError as error:
        result.scoring.reporter.say(f"result not recorded: {error}")


def write_losses(path: Path, result: EvalResult) -> None:
    """Write the loss of every token of the text to an HDF5 file."""
    scoring = result.scoring
    opened = scoring.opened
    shared = result.to_json()
    facts = {key: shared[key] for key in ("run", "step", "text", "precision", "max_distance")}
    facts["recurrent_state"] = opened.model.settings.recurrent_state
    facts["split"] = scoring.text.split
    facts["vocab_fingerprint"] = opened.vocab.fingerprint
    facts["store"] = None
    if scoring.text.split:
        facts["store"] = opened.settings.corpus.store
    losses = []
    for row in result.rows:
        if row.attn_len is not None:
            settings = {"stride": row.stride, "temperature": row.temperature}
            losses.append(TokenLosses("attn_len", row.attn_len, row.losses_nats, settings))
        else:
            settings = {
                "seg_len": shared["seg_len"],
                "lanes": row.lanes,
                "same_length": shared["same_length"],
                "temperature": row.temperature,
            }
            losses.append(TokenLosses("mem_len", row.mem_len, row.losses_nats, settings))
    loss_file.write(path, scoring.text.targets, losses, facts)
    scoring.reporter.say(f"the loss of {len(scoring.text.targets):,} tokens written to {path}")
