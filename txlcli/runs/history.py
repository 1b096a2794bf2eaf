"""Reads the history of a run: its reports, its evaluations, the saved step."""

import itertools
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property

from txlcli.config.saved_state import check_state
from txlcli.config.settings import EvalSettings
from txlcli.errors import RunError
from txlcli.paper import metrics
from txlcli.runs import log_file, run_directory
from txlcli.runs.log_file import Record
from txlcli.runs.run_directory import Run
from txlcli.system.checkpoint_header import read_state

MODEL_ALONE = "model"  # method of an evaluation without a cache and without dynamic evaluation


@dataclass(frozen=True)
class History:
    """The recorded course of one run."""

    run: Run
    reports: tuple[Record, ...]
    """Lines of metrics.jsonl, in order."""
    evals: tuple[Record, ...]
    """Lines of evals.jsonl, in order."""
    saved: Record
    """Metadata of the last checkpoint, or of the best one if there is no last one; empty without a checkpoint."""
    evaluated_step: int | None
    """Step of the weights that `txl eval` would read now; None if there are none."""

    def reports_of(self, kind: str) -> list[Record]:
        """Return the reports of a kind, "train" or "valid"."""
        return [report for report in self.reports if report["kind"] == kind]

    @property
    def step(self) -> int:
        """Step that is saved; without a checkpoint, the step of the last report."""
        return int(self.saved.get("step", self.last_step))

    @property
    def last_step(self) -> int:
        """Step of the last report."""
        return max((int(report["step"]) for report in self.reports), default=0)

    @property
    def state(self) -> str:
        """finished, unfinished, imported, or interrupted: there are reports after the last checkpoint, as after a kill.

        A run in progress, or one that was killed right after it was saved, is interrupted or unfinished.
        """
        if "imported_from" in self.saved:
            return "imported"
        if not self.saved or self.last_step > self.step:
            return "interrupted"
        ended = self.run.settings.train.ends_after(self.step, int(self.saved.get("stale", 0)))
        # Training can be stopped between the last step and its validation, which resuming makes up for.
        if ended and self.saved.get("validated") == self.step:
            return "finished"
        return "unfinished"

    @cached_property
    def best_valid(self) -> Record | None:
        """Validation with the lowest loss."""
        return lowest(self.reports_of("valid"))

    @cached_property
    def missing_reports(self) -> str | None:
        """Contradiction in metrics.jsonl, or with the last checkpoint, if lines were lost; None if there is none."""
        last = max((report["step"] for report in self.reports_of("train")), default=0)
        reported = self.saved.get("step", 0) - self.run.settings.log.every + 1  # for checkpoints of earlier versions
        lacks_steps = last < self.saved.get("interval", {}).get("after", reported)
        best_nats = self.saved.get("best_nats")
        lacks_best = False
        if best_nats is not None:
            lacks_best = self.best_valid is None or self.best_valid["loss_nats"] > best_nats
        if not (lacks_steps or lacks_best or self._has_gap("train") or self._has_gap("valid")):
            return None
        return f"{run_directory.METRICS} has lost reports; the checkpoint is of step {self.step:,}"

    def _has_gap(self, kind: str) -> bool:
        """True if a report of a kind continues one that is missing; those of earlier versions do not say which."""
        start = {"step": 0, "after": 0}
        reports = [start, *self.reports_of(kind)]
        return any(
            "after" in before and report.get("after", 0) > before["step"]
            for before, report in itertools.pairwise(reports)
        )

    @property
    def best_nats(self) -> float | None:
        """Lowest validation loss, of the reports or, if these are not complete, of the checkpoint."""
        losses = [self.saved.get("best_nats")]
        if self.best_valid is not None:
            losses.append(self.best_valid["loss_nats"])
        return min((loss for loss in losses if loss is not None), default=None)

    def last(self, kind: str) -> Record | None:
        """Return the last report of a kind."""
        return next(reversed(self.reports_of(kind)), None)

    def evals_of(self, split: str) -> list[Record]:
        """Return the evaluations of a whole split by the model alone, with the weights that `txl eval` would read now.

        If the corpus was prepared again, only results on the split that was evaluated last count. Results on text that
        may be training data do not count.
        """
        results = [result for result in self.evals if result.get("split") == split and self._counts(result)]
        if not results:
            return []
        text = results[-1].get("split_sha256")
        return [result for result in results if result.get("split_sha256") == text]

    def is_of_weights(self, result: Record) -> bool:
        """Return True for an evaluation of the weights that `txl eval` would read now."""
        return result.get("step") == self.evaluated_step and result.get("weights") == self.run.best_or_last.name

    def _counts(self, result: Record) -> bool:
        """Return True for an evaluation of a whole split by the model alone, with the weights to evaluate now."""
        return (
            result.get("whole") is True
            and self.is_of_weights(result)
            and result.get("method", MODEL_ALONE) == MODEL_ALONE
            and not result.get("may_be_learned")
            and not result.get("documents")  # each read from an empty memory
        )

    @cached_property
    def test_result(self) -> tuple[Record | None, int]:
        """The test result to quote, and the number of test results that it was chosen from.

        It is the newest result with a length that was searched for on valid, or the result of the settings that scored
        best on valid, if test was evaluated with the same settings, or else the result of the recipe's settings. The
        count is then 1, since none of them was chosen on test. Otherwise it is the best result on test. Of several
        results of the same settings the newest counts.
        """
        results = self.evals_of("test")
        searched = [result for result in results if result.get("chosen_on_valid")]
        if searched:
            return searched[-1], 1
        on_test = {_settings(result): result for result in results}
        on_valid = {_settings(result): result for result in self.evals_of("valid")}
        on_both = on_test.keys() & on_valid.keys()
        if on_both:
            best = min(on_both, key=lambda settings: on_valid[settings]["loss_nats"])
            return on_test[best], 1
        of_recipe = [result for result in results if result.get("of_recipe")]
        if of_recipe:
            return of_recipe[-1], 1
        return lowest(on_test.values()), len(on_test)

    @property
    def text_digest(self) -> str | None:
        """Digest of the text whose losses were reported: of valid if there is one; None for an imported run."""
        return self.saved.get("valid_sha256") or self.saved.get("train_sha256")

    def in_metric(self, report: Record | None) -> float | None:
        """Return the loss of a report in the run's metric; None without a report."""
        if report is None:
            return None
        return metrics.in_metric(report["loss_nats"], self.run.metric)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of training, without validations; None if no report has it."""
        train = self.run.settings.train
        tokens = 0
        seconds = 0.0
        before = 0  # step of the report before
        for report in self.reports_of("train"):
            if report.get("tokens_per_s"):
                averaged = (report["step"] - before) * train.batch_size * train.seg_len
                tokens += averaged
                seconds += averaged / report["tokens_per_s"]
            before = report["step"]
        if not seconds:
            return None
        return tokens / seconds


SETTINGS = (*(setting.name for setting in fields(EvalSettings)), "attn_len", "stride", "precision")
"""Settings of an evaluation, by their keys in evals.jsonl: those of [eval], of windows, and of the model.

They are as requested, even if the text was too short for them. `describe_protocol` puts them into words. A record has
no `compressed_len`, which only the recipe sets.
"""


def _settings(result: Record) -> tuple[object, ...]:
    return tuple(map(result.get, SETTINGS))


def describe_setting(result: Record) -> str:
    """Return the memory or the windows of an evaluation, and what else changes its loss: "M = 64, temperature 1.05"."""
    if result.get("attn_len"):
        described = f"N = {result['attn_len']}"
        if result.get("stride", 1) != 1:
            described += f", S = {result['stride']}"
    elif result.get("attn_len_max", 0) is None:  # no limit
        described = "recurrent state"
    else:
        described = f"M = {result.get('mem_len')}"
    temperature = result.get("temperature", 1)
    if temperature != 1:
        described += f", temperature {temperature:g}"
    if result.get("in_sample"):
        described += ", in-sample"
    return described


def describe_protocol(result: Record) -> str:
    """Return how the text of an evaluation was read, and what else its loss depends on."""
    parts = [describe_setting(result)]
    if result.get("stride"):
        documents = "no window has tokens of two documents"
    else:
        documents = "each document from an empty memory"
        parts.append(f"L = {result.get('seg_len')}")
        if result.get("same_length") is not None:  # a recurrent state has no keys to limit
            parts.append(f"same_length = {result['same_length']}")
    if result.get("documents"):
        parts.append(documents)
    elif not result.get("stride") and result.get("lanes", 1) > 1:
        parts.append(f"{result['lanes']} lanes")
    if result.get("max_distance") is not None:
        parts.append(f"max_distance = {result['max_distance']}")
    if result.get("precision"):
        parts.append(result["precision"])
    if result.get("method", MODEL_ALONE) != MODEL_ALONE:
        parts.append(result["method"])
    if not result.get("whole", True):
        parts.append("the first tokens only")
    if result.get("may_be_learned"):
        parts.append("the text may be training data")
    return ", ".join(parts)


def lowest(reports: Iterable[Record]) -> Record | None:
    """Return the report with the lowest loss; None without reports."""
    return min(reports, key=lambda report: report["loss_nats"], default=None)


def read(run: Run) -> History:
    """Read the history of a run."""
    return History(
        run,
        reports=_records(run, run_directory.METRICS),
        evals=_records(run, run_directory.EVALS, skip_truncated=True),
        saved=_metadata(run, run_directory.LAST) or _metadata(run, run_directory.BEST),
        evaluated_step=_metadata(run, run.best_or_last.name).get("step"),
    )


def _metadata(run: Run, name: str) -> Record:
    """Read the metadata of a checkpoint of a run without its tensors; empty if there is no checkpoint."""
    path = run.directory / name
    if not path.exists():
        return {}
    with log_file.reading(path):
        state = read_state(path)
        check_state(state)
    run.check_own(path, [state])
    return state


def _records(run: Run, name: str, *, skip_truncated: bool = False) -> tuple[Record, ...]:
    """Read the records of a file of a run."""
    path = run.directory / name
    records = log_file.read(path, skip_truncated=skip_truncated)
    run.check_own(path, records)
    return records


def check_results(run: Run) -> None:
    """Raise a RunError if evals.jsonl, to which results of this run are appended, is of another one."""
    path = run.directory / run_directory.EVALS
    records: tuple[Record, ...] = ()
    with suppress(RunError):  # a damaged file keeps its lines and those that are appended
        records = log_file.read(path, skip_truncated=True)
    run.check_own(path, records)


def record(run: Run, results: Iterable[Record]) -> None:
    """Append results of an evaluation to evals.jsonl.

    Raises:
        RunError: another run has replaced the one that was evaluated.
        OSError: the file cannot be written.
    """
    if run_directory.read_run(run.directory).id != run.id:
        raise RunError(f"{run.directory} was replaced by another run meanwhile")
    log_file.append(run.directory / run_directory.EVALS, map(run.signed, results))
