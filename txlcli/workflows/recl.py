"""Measures the relative effective context length (RECL) of a group of runs (section 4.3, Appendix C)."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import txlcli
from txlcli.config.settings import EvalSettings
from txlcli.core.measures.contexts import context_losses, eligible_positions, read_length, sample_positions
from txlcli.core.measures.recl import Gain, Recl, gains, recl
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.windows import windows_at_once
from txlcli.data.context_file import ContextFile, Facts
from txlcli.errors import RunError, TrainingError, UsageError, VocabularyError
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.system import locks
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.sweep import non_finite_advice
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.options import DEFAULT_RECL_POSITIONS, RECL_LOSSES, ReclOptions
from txlcli.workflows.reporter import Reporter, Step
from txlcli.workflows.workspace import Workspace

CONTEXT_SETTINGS = {
    "memory": ("seg_len", "mem_len", "same_length", "max_distance"),
    "state": (),
    "window": ("longest_window_tokens", "max_distance"),
}
"""Settings that matter, by the source of a model's context: a memory, a recurrent state, or one window."""


@dataclass(frozen=True, kw_only=True)
class ContextSource:
    """Source of a model's context, with its settings."""

    context: Literal["memory", "state", "window"]
    seg_len: int
    mem_len: int
    same_length: str
    max_distance: int | None
    longest_window_tokens: int | None
    """Learned positions; None if a window may have any length."""

    def to_json(self) -> dict[str, Any]:
        """Return the source and the settings that matter for it."""
        return {"context": self.context, **{key: getattr(self, key) for key in CONTEXT_SETTINGS[self.context]}}


@dataclass(frozen=True, kw_only=True)
class ReclModel:
    """RECL of one model of the group."""

    run: str
    step: int
    parameters: int
    source: ContextSource
    precision: str
    loss_nats: list[float]
    """Mean over all positions, by context length."""
    recl: tuple[Recl, ...]
    """For each share r."""

    @property
    def ppl(self) -> list[float]:
        """Perplexity by context length."""
        return [metrics.perplexity(nats) for nats in self.loss_nats]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of "models"."""
        return {
            "run": self.run,
            "step": self.step,
            "parameters": self.parameters,
            **self.source.to_json(),
            "precision": self.precision,
            "loss_nats": self.loss_nats,
            "ppl": [metrics.finite(ppl) for ppl in self.ppl],
            "recl": [{**vars(point), "gains": [_gain_to_json(gain) for gain in point.gains]} for point in self.recl],
        }


def _gain_to_json(gain: Gain) -> dict[str, Any]:
    derived = {"relative_gain": gain.relative_gain, "ppl_gain": metrics.finite(gain.ppl_gain)}
    return dataclasses.asdict(gain) | derived


@dataclass(frozen=True, kw_only=True)
class ReclResult:
    """RECL of a group of models."""

    text: str
    unit: str
    positions: int
    seed: int
    threshold: float
    step_tokens: int
    context_tokens: list[int]
    models: tuple[ReclModel, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl recl --json` prints."""
        return {**vars(self), "models": [model.to_json() for model in self.models]}


@dataclass(frozen=True, eq=False)
class _Member:
    """One run of the group, with its weights."""

    run: Run
    model: LanguageModel
    settings: EvalSettings
    """L, M and the limit on distances; M = 0 for a model without memory."""
    step: int
    precision: str
    facts: Facts
    """Everything that a loss at a context length depends on."""


def run(run_names: Sequence[str], options: ReclOptions, workspace: Workspace) -> ReclResult:
    """Measure the RECL of every run of a group."""
    path = options.losses or workspace.runs_dir / RECL_LOSSES
    busy = f"another txl recl writes to {path}; wait for it, or give another `losses`"
    with locks.exclusive(path.with_name(f".{path.name}.lock"), busy):
        group, text = _open_group(run_names, options, workspace)
        losses = _group_losses(group, text, options, ContextFile(path), workspace.reporter)
    by_share = {share: gains(losses, options.contexts, share) for share in options.top_r}
    models = [
        ReclModel(
            run=str(member.run.directory),
            step=member.step,
            parameters=member.run.parameters,
            source=_context_source(member.run, member.settings),
            precision=member.precision,
            loss_nats=[float(at.mean(dtype="float64")) for at in losses[number]],
            recl=tuple(
                recl(by_share[share][number], top_r=share, threshold=options.threshold) for share in options.top_r
            ),
        )
        for number, member in enumerate(group)
    ]
    return ReclResult(
        text=text.title,
        unit=text.unit,
        positions=losses.shape[2],
        seed=options.seed,
        threshold=options.threshold,
        step_tokens=options.step,
        context_tokens=options.contexts,
        models=tuple(models),
    )


def _open_group(
    run_names: Sequence[str], options: ReclOptions, workspace: Workspace
) -> tuple[list[_Member], ScoredText]:
    """Open the runs, and the text that all of them are scored on."""
    group = run_directory.find_each(run_names, workspace.runs_dir)
    for member in group:
        _check_comparable(group[0], member)
    for member in () if options.unfinished else group:
        history.check_finished(member)
    all_opened = [workspace.open_run(name) for name in run_names]
    text = texts.split_text(all_opened[0], options.split, None, workspace)
    return [_member(opened, text) for opened in all_opened], text


def _member(opened: OpenRun, text: ScoredText) -> _Member:
    settings = opened.run.settings.evaluation_settings()
    if opened.run.settings.train.mem_len == 0:
        settings = dataclasses.replace(settings, mem_len=0)
    facts = {
        "txl": txlcli.__version__,
        "weights": opened.checkpoint.weights_digest(),
        "model": dataclasses.asdict(opened.run.settings.model),
        "reading": _context_source(opened.run, settings).to_json(),
        "precision": opened.precision,
        "text": hashlib.sha256(text.inputs[:1].tobytes() + text.targets.tobytes()).hexdigest(),
    }
    step = opened.checkpoint.state["step"]
    return _Member(opened.run, opened.model, settings, step, opened.precision, facts)


def _check_comparable(first: Run, other: Run) -> None:
    """Reject runs that cannot be compared, before any weights are loaded."""
    if not other.best_or_last.is_file():
        raise RunError(f"{other.directory} has no saved weights yet; train it first, or leave it out")
    corpus, other_corpus = first.settings.corpus.store, other.settings.corpus.store
    if corpus != other_corpus:
        raise UsageError(
            f"{first.directory} was trained on {corpus}, {other.directory} on {other_corpus}; "
            "RECL compares runs on one corpus, leave one of them out"
        )
    if other.vocab_fingerprint != first.vocab_fingerprint:
        raise VocabularyError(
            f"{first.directory} and {other.directory} have different vocabularies; "
            "their losses per token cannot be compared, leave one of them out"
        )


def _context_source(run: Run, settings: EvalSettings) -> ContextSource:
    model = run.settings.model
    return ContextSource(
        context="state" if model.recurrent_state else "window" if settings.mem_len == 0 else "memory",
        seg_len=settings.seg_len,
        mem_len=settings.mem_len,
        same_length=settings.same_length,
        max_distance=settings.max_distance,
        longest_window_tokens=model.longest_window,
    )


def _positions(text: ScoredText, options: ReclOptions) -> NDArray[np.int64]:
    """Sample the positions to score, which are the same for all models and context lengths."""
    count, longest = len(text.targets), options.contexts[-1]
    eligible = eligible_positions(count, longest=longest)
    if not eligible:
        raise UsageError(
            f"{text.title} has {count:,} tokens to predict, none of them after {longest:,} tokens of context; "
            f"give at most `longest` {count}, and a `start` and `step` that fit"
        )
    if options.positions is not None and options.positions > eligible:
        raise UsageError(
            f"`positions` {options.positions}: {text.title} has {eligible:,} tokens after {longest:,} tokens of "
            "context; give at most that"
        )
    sample_size = options.positions or DEFAULT_RECL_POSITIONS
    return sample_positions(count, longest=longest, sample_size=sample_size, seed=options.seed)


def _group_losses(
    group: Sequence[_Member], text: ScoredText, options: ReclOptions, file: ContextFile, reporter: Reporter
) -> NDArray[np.float32]:
    """Return the losses l_i(c, t) of all models, (N models, C context lengths, P positions).

    Losses that the file does not have are computed and added to it, also if the computation is interrupted.
    """
    contexts, positions = options.contexts, _positions(text, options)
    reporter.say(
        f"RECL on {text.title}: {len(positions):,} positions x {len(contexts)} context lengths ({contexts[0]:,} to "
        f"{contexts[-1]:,} tokens) x {len(group)} model{'s' if len(group) > 1 else ''}"
    )
    missing: dict[_Member, dict[int, NDArray[np.int64]]] = {}  # positions to score, by context length
    lengths = {}
    for member in group:
        lengths[member] = [read_length(member.model, member.settings, length) for length in contexts]
        parts = {length: file.missing(member.facts, length, positions) for length in lengths[member]}
        missing[member] = {length: part for length, part in parts.items() if len(part)}
    tokens = sum(_tokens_to_read(parts) for parts in missing.values())
    if tokens:
        file.save(anyway=True)  # fails before any loss is computed
        count = sum(len(part) for parts in missing.values() for part in parts.values())
        reporter.say(f"{count:,} losses to compute, {tokens:,} tokens to read; saved in {file.path}")
    else:
        reporter.say(f"nothing to compute: {file.path} has every loss")
    for member, parts in missing.items():
        with reporter.progress(str(member.run.directory), total=_tokens_to_read(parts), unit="tokens") as bar:
            for context_len, part in parts.items():
                _compute(member, text, part, context_len, options.batch_size, file, bar)
    return np.array([[file.losses(member.facts, length, positions) for length in lengths[member]] for member in group])


def _tokens_to_read(parts: Mapping[int, NDArray[np.int64]]) -> int:
    return sum(context_len * len(part) for context_len, part in parts.items())


def _compute(
    member: _Member,
    text: ScoredText,
    positions: NDArray[np.int64],
    context_len: int,
    batch_size: int | None,
    file: ContextFile,
    bar: Step,
) -> None:
    """Compute the losses of one model at a context length, and save them."""
    batches = context_losses(
        member.model,
        text.inputs,
        text.targets,
        positions,
        member.settings,
        context_len=context_len,
        windows=batch_size or windows_at_once(member.model.device, context_len),
        precision=member.precision,
    )
    try:
        for part, losses in batches:
            _check_finite(losses, member, context_len)
            file.add(member.facts, context_len, part, losses)
            bar.advance(context_len * len(part), f"context {context_len:,}")
    finally:  # an exception loses nothing, a killed process at most one context length
        file.save()


def _check_finite(losses: NDArray[np.float32], member: _Member, context_len: int) -> None:
    if not np.isfinite(losses).all():
        advice = non_finite_advice(member.precision, "train it again")
        raise TrainingError(
            f"{member.run.directory}: a loss is not finite at a context of {context_len:,} tokens; {advice}"
        )
