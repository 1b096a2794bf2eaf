"""What a run has recorded: the reports of its training, its evaluations, the step that is saved."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from txlcli.errors import RunError
from txlcli.runs import run_folder
from txlcli.runs.run_folder import Run

Report = dict[str, Any]
STATES = ("finished", "unfinished", "interrupted", "imported")
MODEL_ALONE = "model"  # the method of a row of `txl eval` that neither caches nor learns


@dataclass(frozen=True)
class History:
    """The recorded course of one run."""

    run: Run
    reports: tuple[Report, ...]
    """The lines of metrics.jsonl, in order."""
    evals: tuple[Report, ...]
    """The lines of evals.jsonl, in order."""
    saved: Report
    """The plain data of the checkpoint; empty where there is none."""
    evaluated_step: int | None
    """The step of the weights that `txl eval` reads now; None where there are none."""

    def of_kind(self, kind: str) -> list[Report]:
        """The reports of a kind, "train" or "valid"."""
        return [report for report in self.reports if report["kind"] == kind]

    @property
    def step(self) -> int:
        """The step that is saved; without a checkpoint, that of the last report."""
        return int(self.saved.get("step", self.last_step))

    @property
    def last_step(self) -> int:
        """The step of the last report."""
        return max((int(report["step"]) for report in self.reports), default=0)

    @property
    def state(self) -> str:
        """One of STATES; a training that is running looks like one that was killed: both are interrupted."""
        if "imported_from" in self.saved:
            return "imported"
        if not self.saved or self.last_step > self.step:
            return "interrupted"
        ended = self.step >= self.run.settings.train.max_steps
        # A stop may come between the last step and its validation, which going on makes up for.
        return "finished" if ended and self.saved.get("validated") == self.step else "unfinished"

    @cached_property
    def best_valid(self) -> Report | None:
        """The validation with the lowest loss."""
        return lowest(self.of_kind("valid"))

    @property
    def last_valid(self) -> Report | None:
        """The last validation."""
        return next(reversed(self.of_kind("valid")), None)

    @property
    def last_train(self) -> Report | None:
        """The last report of the training loss."""
        return next(reversed(self.of_kind("train")), None)

    def evals_of(self, split: str) -> list[Report]:
        """The recorded evaluations of a whole split by the model alone, with the weights that `txl eval` reads now.

        A corpus may have been prepared again: its split as read last counts, and none that may have been learned.
        """
        now = {"split": split, "whole": True, "step": self.evaluated_step, "weights": self.run.best_or_last.name}
        rows = [
            row
            for row in self.evals
            if all(row.get(key) == value for key, value in now.items())
            and row.get("method", MODEL_ALONE) == MODEL_ALONE
            and not row.get("may_be_learned")
        ]
        newest = next((row["split_sha256"] for row in reversed(rows) if row.get("split_sha256")), None)
        return [row for row in rows if row.get("split_sha256") in (None, newest)]  # earlier versions did not say it

    @cached_property
    def test_result(self) -> tuple[Report | None, int]:
        """The evaluation of test to quote, and how many readings of test it was chosen from.

        That is the reading which was best on valid, if test was read in the same way (the count is then 1), otherwise
        the one which was best on test. Of several evaluations by one reading the newest counts.
        """
        on_test = {_reading(row): row for row in self.evals_of("test") if row["loss_nats"] is not None}
        on_valid = {_reading(row): row for row in self.evals_of("valid") if row["loss_nats"] is not None}
        chosen = min(on_test.keys() & on_valid.keys(), key=lambda reading: _loss(on_valid[reading]), default=None)
        if chosen is not None:
            return on_test[chosen], 1
        return lowest(on_test.values()), len(on_test)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step predicts."""
        return self.run.settings.train.batch_size * self.run.settings.train.seg_len

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens trained per second of training, validations not counted; None where no report says it."""
        tokens = seconds = 0.0
        for report, steps in self._steps_of_reports():
            if report.get("tokens_per_s"):
                tokens += steps * self.tokens_per_step
                seconds += steps * self.tokens_per_step / report["tokens_per_s"]
        return tokens / seconds if seconds else None

    def _steps_of_reports(self) -> list[tuple[Report, int]]:
        """The reports of training, each with the steps that it is the mean of."""
        reports = self.of_kind("train")
        before = [0, *(report["step"] for report in reports)]
        return [(report, report["step"] - first) for report, first in zip(reports, before, strict=False)]

    def hours(self) -> list[float] | None:
        """Hours of training and validation up to each report; None where a report does not say how long it took."""
        steps = {id(report): count for report, count in self._steps_of_reports()}
        passed, result = 0.0, []
        for report in self.reports:
            if report["kind"] == "train":
                if not report.get("tokens_per_s"):
                    return None
                passed += steps[id(report)] * self.tokens_per_step / report["tokens_per_s"]
            elif report.get("seconds") is None:
                return None
            else:
                passed += report["seconds"]
            result.append(passed / 3600)
        return result


OF_SEGMENTS = ("mem_len", "seg_len", "same_length")  # windows have none; rows of earlier versions say some all the same
OF_BOTH = ("max_distance", "precision", "stride")


def _reading(row: Report) -> tuple[object, ...]:
    """How an evaluation read its text: what was asked for, which a text too short for it does not change."""
    both = tuple(row.get(key) for key in OF_BOTH)
    both += (row.get("batch_size", row.get("lanes")),)  # rows of earlier versions say what a short text made of it
    if row.get("stride") is None:
        return tuple(row.get(key) for key in OF_SEGMENTS) + both
    return (row.get("attn_len", row.get("attn_len_max")), *both)  # rows of earlier versions say N by the latter


def _loss(report: Report) -> float:
    return float(report["loss_nats"])


def lowest(reports: Iterable[Report]) -> Report | None:
    """The report with the lowest loss; a loss that is None was not finite."""
    finite = [report for report in reports if report["loss_nats"] is not None]
    return min(finite, key=lambda report: report["loss_nats"]) if finite else None


def read(run: Run) -> History:
    """What a run has recorded.

    Raises:
        RunError: a line of metrics.jsonl or evals.jsonl, or a checkpoint, is damaged.
    """
    reports = tuple(_lines(run.folder / run_folder.METRICS, ("kind", "step", "loss_nats")))
    evals = tuple(_lines(run.folder / run_folder.EVALS, ("loss_nats",), halves=True))
    return History(run, reports, evals, _saved(run), _plain_data(run.best_or_last).get("step"))


def check_finished(run: Run) -> None:
    """Refuse a run whose training is not finished.

    Raises:
        RunError: it has steps to take.
    """
    past = read(run)
    if past.saved and past.state in ("unfinished", "interrupted"):  # without weights, opening it says so
        raise RunError(
            f"{run.folder} is at step {past.step:,} of {run.settings.train.max_steps:,}; finish it with "
            f'"txl train --resume {run.name}", or take it as it is with --unfinished'
        )


def _lines(path: Path, keys: tuple[str, ...], *, halves: bool = False) -> list[Report]:
    """The lines of a file of JSON objects that have these keys; none where there is no file.

    With `halves` a line may be half of one, before which its writer died and after which others wrote: it is skipped.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it from a copy, or delete it") from error
    lines = text.split("\n")[:-1]  # what follows the last line end is being written, or was when the machine died
    return [_line(path, number, line, keys) for number, line in enumerate(lines, 1) if not (halves and _is_half(line))]


def _is_half(line: str) -> bool:
    """Whether a line begins as an object does, and is none."""
    try:
        json.loads(line)
    except ValueError:
        return line.startswith("{")
    return False


def _line(path: Path, number: int, line: str, keys: tuple[str, ...]) -> Report:
    try:
        report = json.loads(line)
        good = {key: report[key] for key in keys}
    except (ValueError, KeyError, TypeError, IndexError):
        good = None
    if good is None or not all(_fits(key, value) for key, value in good.items()):
        raise RunError(f"{path}: line {number} is damaged; delete that line to read the others")
    return dict(report)


def _fits(key: str, value: object) -> bool:
    if key == "kind":
        return isinstance(value, str)
    if key == "loss_nats" and value is None:
        return True
    return isinstance(value, int | float) and math.isfinite(value)


def _saved(run: Run) -> Report:
    """The plain data of the checkpoint to go on from, else of the best one."""
    return _plain_data(run.folder / run_folder.LAST) or _plain_data(run.folder / run_folder.BEST)


def _plain_data(path: Path) -> Report:
    """The plain data of a checkpoint, read without the tensors; empty where there is none."""
    if not path.exists():
        return {}
    # A safetensors file begins with the length of its JSON header; reading that by hand needs no torch.
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("the header is cut off")
            header = json.loads(file.read(length))
        state = json.loads(header["__metadata__"]["txl"])
        return {**state, "step": int(state["step"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged checkpoint ({error}); restore it from a copy or train again") from error


def record(run: Run, rows: Iterable[Report]) -> None:
    """Add rows of an evaluation to evals.jsonl.

    Raises:
        OSError: the folder cannot be written.
    """
    path = run.folder / run_folder.EVALS
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("ab") as file:  # all rows at once, so that evaluations side by side do not mix their lines
        file.write(text.encode() if _ends_a_line(path) else b"\n" + text.encode())


def _ends_a_line(path: Path) -> bool:
    """Whether a file is empty or ends with a line end, as it does unless its writer died or found the disk full."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return True
        file.seek(-1, 2)
        return file.read() == b"\n"
