"""Opens the runs whose context lengths `txl recl` compares, and checks that they can be compared."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import txlcli
from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.errors import RunError, UsageError, VocabularyError
from txlcli.runs import history, run_directory
from txlcli.runs.run_directory import Run
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of the group, with its weights."""

    run: Run
    model: LanguageModel
    settings: EvalSettings
    """L, M and the limit on distances; M = 0 for a model without memory."""
    step: int
    precision: str
    weights_digest: str

    def context_settings(self) -> dict[str, Any]:
        """Return the source of the model's context, a memory, a recurrent state or one window, and its settings."""
        if self.run.settings.model.recurrent_state:
            return {"context": "state"}
        if self.settings.mem_len == 0:
            longest = self.run.settings.model.longest_window
            return {"context": "window", "longest_window_tokens": longest, "max_distance": self.settings.max_distance}
        keys = ("seg_len", "mem_len", "same_length", "max_distance")
        return {"context": "memory", **{key: getattr(self.settings, key) for key in keys}}

    def facts(self, text_digest: str) -> dict[str, Any]:
        """Return everything that a loss at a context length depends on."""
        return {
            "txl": txlcli.__version__,
            "weights": self.weights_digest,
            "model": dataclasses.asdict(self.run.settings.model),
            "reading": self.context_settings(),
            "precision": self.precision,
            "text": text_digest,
        }


def open_group(
    run_names: Sequence[str], workspace: Workspace, *, split: str, unfinished: bool
) -> tuple[list[Member], ScoredText]:
    """Open the runs, and the text that all of them are scored on.

    Raises:
        UsageError: a run is named twice, or the runs were trained on different corpora.
        VocabularyError: the runs have different vocabularies.
        RunError: a run is not finished, unless `unfinished`.
        RunError, UnknownNameError, StoreError: see `loading.open_run`, `OpenRun.store`.
    """
    group = run_directory.find_each(run_names, workspace.runs_dir)
    _check_comparable(group)
    for run in () if unfinished else group:
        history.check_finished(run)
    members: list[Member] = []
    text = None
    for name in run_names:
        opened = workspace.open_run(name)
        if text is None:
            text = texts.split_text(opened, split, None, workspace)
        settings = opened.run.settings.evaluation_settings()
        if opened.run.settings.train.mem_len == 0:
            settings = dataclasses.replace(settings, mem_len=0)
        digest = opened.checkpoint.weights_digest()
        step = opened.checkpoint.state["step"]
        members.append(Member(opened.run, opened.model, settings, step, opened.precision, digest))
    assert text is not None
    return members, text


def _check_comparable(group: Sequence[Run]) -> None:
    """Refuse runs that cannot be compared, before any weights are loaded."""
    first, *others = group
    for run in group:
        if not run.best_or_last.is_file():
            raise RunError(f"{run.directory} has no saved weights yet; train it first, or leave it out")
    for run in others:
        corpus, other_corpus = first.settings.corpus.store, run.settings.corpus.store
        if corpus != other_corpus:
            raise UsageError(
                f"{first.directory} was trained on {corpus}, {run.directory} on {other_corpus}; "
                "RECL compares runs on one corpus, leave one of them out"
            )
        if run.vocab_fingerprint != first.vocab_fingerprint:
            raise VocabularyError(
                f"{first.directory} and {run.directory} have different vocabularies; "
                "their losses per token cannot be compared, leave one of them out"
            )
