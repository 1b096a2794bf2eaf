"""The runs whose context lengths `txl recl` compares: which may stand in one group, how each reads."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import txlcli
from txlcli.errors import RunError, UsageError, VocabularyError
from txlcli.runs import history, run_folder
from txlcli.runs.run_folder import Run
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.texts import ScoredText

if TYPE_CHECKING:
    from txlcli.config.settings import EvalSettings
    from txlcli.core.model.base import LanguageModel


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of the group, with its weights."""

    run: Run
    model: "LanguageModel"
    how: "EvalSettings"
    """L, M and limits on distance; M = 0 is a model without memory."""
    step: int
    precision: str
    weights_digest: str

    def reading(self) -> dict[str, Any]:
        """How it comes to its context: by a memory, by a state, or by one window."""
        if self.run.settings.model.recurrent_state:
            return {"context": "state"}
        if self.how.mem_len == 0:
            longest = self.run.settings.model.longest_window
            return {"context": "window", "longest_window_tokens": longest, "max_distance": self.how.max_distance}
        keys = ("seg_len", "mem_len", "same_length", "max_distance")
        return {"context": "memory", **{key: getattr(self.how, key) for key in keys}}

    def facts(self, text_digest: str) -> dict[str, Any]:
        """All that a loss at a context length depends on."""
        return {
            "txl": txlcli.__version__,
            "weights": self.weights_digest,
            "model": dataclasses.asdict(self.run.settings.model),
            "reading": self.reading(),
            "precision": self.precision,
            "text": text_digest,
        }


def open_group(
    run_names: Sequence[str],
    *,
    split: str,
    device: str,
    precision: str | None,
    data_dir: Path,
    runs_dir: Path,
    unfinished: bool,
) -> tuple[list[Member], ScoredText]:
    """The runs with their weights, and the text that all of them are scored on.

    Raises:
        UsageError: a run is named twice, or runs of two corpora stand together.
        VocabularyError: runs of two vocabularies stand together.
        RunError: a run is not finished, unless that is allowed.
        RunError, UnknownNameError, StoreError: see `loading.open_run`, `OpenRun.store`.
    """
    from txlcli.runs import loading

    group = run_folder.find_each(run_names, runs_dir)
    _check_together(group)
    for run in () if unfinished else group:
        history.check_finished(run)
    members: list[Member] = []
    text = None
    for one in run_names:
        opened = loading.open_run(one, runs_dir, device=device, precision=precision)
        if text is None:
            text = texts.of_split(opened, split, None, data_dir)
        how = opened.run.settings.evaluation_settings()
        if opened.run.settings.train.mem_len == 0:
            how = dataclasses.replace(how, mem_len=0)
        digest = opened.checkpoint.weights_digest()
        step = opened.checkpoint.state["step"]
        members.append(Member(opened.run, opened.model, how, step, opened.precision, digest))
    assert text is not None
    return members, text


def _check_together(group: Sequence[Run]) -> None:
    """Refuse runs that cannot be compared, before any weights are read."""
    first, *others = group
    for run in group:
        if not run.best_or_last.is_file():
            raise RunError(f"{run.folder} has saved no weights yet; train it first, or leave it out")
    for run in others:
        mine, its = first.settings.corpus.store, run.settings.corpus.store
        if mine != its:
            raise UsageError(
                f"{first.folder} was trained on {mine}, {run.folder} on {its}; "
                "a group is compared on one corpus, leave one of them out"
            )
        if run.vocab_fingerprint != first.vocab_fingerprint:
            raise VocabularyError(
                f"{first.folder} and {run.folder} have different vocabularies; "
                "their losses per token cannot be compared, leave one of them out"
            )
