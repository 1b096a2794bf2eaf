"""Measures the relative effective context length (RECL) of a group of runs (section 4.3, Appendix C)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.measures.recl import Recl, context_losses, gains, read_length, recl, sample_positions
from txlcli.core.reading.scoring import Stream
from txlcli.core.reading.windows import windows_at_once
from txlcli.errors import TrainingError, UsageError
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.rows import non_finite_advice
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.recl_options import DEFAULT_RECL_POSITIONS, ReclOptions
from txlcli.workflows.reporter import Step
from txlcli.workflows.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class ReclModel:
    """RECL of one model of the group."""

    run: str
    step: int
    parameters: int
    source: dict[str, Any]
    """Source of the context: a memory, a recurrent state or one window, with the settings that matter for it."""
    precision: str
    loss_nats: list[float]
    """Mean over all positions, by context length."""
    ppl: list[float]
    recl: tuple[Recl, ...]
    """For each share r."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry of "models"."""
        return {key: value for key, value in vars(self).items() if key != "source"} | self.source


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


def run(run_names: Sequence[str], options: ReclOptions, workspace: Workspace) -> ReclResult:
    """Measure the RECL of every run of a group."""
    group = _open_group(run_names, options, workspace)
    losses = _group_losses(group, options)
    by_share = {share: gains(losses, options.contexts, share) for share in options.top_r}
    models = []
    for number, member in enumerate(group):
        loss_nats = [float(at.mean(dtype="float64")) for at in losses[number]]
        points = (recl(of_all[number], top_r=r, threshold=options.threshold) for r, of_all in by_share.items())
        opened = member.opened
        model = ReclModel(
            run=str(opened.run.directory),
            step=opened.checkpoint.state["step"],
            parameters=opened.run.parameters,
            source=_context_source(opened.run.settings.model, member.settings),
            precision=opened.precision,
            loss_nats=loss_nats,
            ppl=list(map(metrics.perplexity, loss_nats)),
            recl=tuple(points),
        )
        models.append(model)
    return ReclResult(
        text=group[0].text.title,
        unit=group[0].text.unit,
        positions=losses.shape[2],
        seed=options.seed,
        threshold=options.threshold,
        step_tokens=options.step,
        context_tokens=options.contexts,
        models=tuple(models),
    )


def _open_group(run_names: Sequence[str], options: ReclOptions, workspace: Workspace) -> list[Scoring]:
    """Open the runs, each with the text that all of them are scored on; M = 0 is a model without memory."""
    runs = run_directory.find_each(run_names, workspace.runs_dir)
    for run_ in runs:
        _check_comparable(runs[0], run_)
    all_opened = [workspace.open_run(name) for name in run_names]
    text = texts.split_text(all_opened[0], options.split, None, workspace)
    group = []
    for opened in all_opened:
        settings = opened.run.settings.evaluation_settings()
        if opened.run.settings.train.mem_len == 0:
            settings = replace(settings, mem_len=0)
        group.append(Scoring(opened, text, settings, workspace))
    return group


def _check_comparable(first: Run, other: Run) -> None:
    """Reject runs that cannot be compared, before any weights are loaded."""
    corpora = [run.settings.corpus.store for run in (first, other)]
    if corpora[0] != corpora[1] or other.vocab_fingerprint != first.vocab_fingerprint:
        raise UsageError(
            f"{first.directory} and {other.directory} have different texts ({', '.join(corpora)}) or vocabularies; "
            "RECL compares losses on one text, leave one of them out"
        )


def _context_source(model: ModelSettings, settings: EvalSettings) -> dict[str, Any]:
    """Return the source of the model's context, and the settings that matter for it."""
    if model.recurrent_state:
        return {"context": "state"}
    if settings.mem_len == 0:
        longest = model.longest_window  # learned positions; None if a window may have any length
        return {"context": "window", "longest_window_tokens": longest, "max_distance": settings.max_distance}
    names = ("seg_len", "mem_len", "same_length", "max_distance")
    return {"context": "memory", **{name: getattr(settings, name) for name in names}}


def _positions(text: ScoredText, options: ReclOptions) -> NDArray[np.int64]:
    """Sample the positions to score, which are the same for all models and context lengths."""
    count, longest = len(text.targets), options.contexts[-1]
    eligible = max(0, count - longest + 1)  # token t is predicted from inputs 0 .. t
    if eligible < (options.positions or 1):
        raise UsageError(
            f"{text.title} has {eligible:,} tokens after {longest:,} tokens of context, which are too few; give a "
            "smaller `longest`, or fewer `positions`"
        )
    sample_size = options.positions or DEFAULT_RECL_POSITIONS
    return sample_positions(count, longest=longest, sample_size=sample_size, seed=options.seed)


def _group_losses(group: Sequence[Scoring], options: ReclOptions) -> NDArray[np.float32]:
    """Return the losses l_i(c, t) of all models, (N models, C context lengths, P positions)."""
    text, contexts, reporter = group[0].text, options.contexts, group[0].reporter
    positions = _positions(text, options)
    read = [[read_length(member.opened.model, member.settings, length) for length in contexts] for member in group]
    tokens = len(positions) * sum(sum({*lengths}) for lengths in read)  # each length is read once
    reporter.say(
        f"RECL on {text.title}: {len(positions):,} positions x {len(contexts)} context lengths ({contexts[0]:,} to "
        f"{contexts[-1]:,} tokens) x {len(group)} model{'s' if len(group) > 1 else ''}, {tokens:,} tokens to read"
    )
    of_models = []
    with reporter.progress("RECL", total=tokens, unit="tokens") as bar:
        for member, lengths in zip(group, read, strict=True):
            losses = {
                length: _losses(member, positions, length, options.batch_size, bar) for length in dict.fromkeys(lengths)
            }
            of_models.append([losses[length] for length in lengths])
    return np.array(of_models)


def _losses(
    member: Scoring, positions: NDArray[np.int64], context_len: int, batch_size: int | None, bar: Step
) -> NDArray[np.float32]:
    """Return the losses of one model at a context length, (P,)."""
    opened, text = member.opened, member.text
    windows = batch_size or windows_at_once(opened.model.device, context_len)
    settings, before = replace(member.settings, batch_size=windows), bar.done

    def on_tokens(count: int) -> None:
        bar.reach(before + count, f"{opened.run.name}, context {context_len:,}")

    stream = Stream(opened.model, text.inputs, text.targets, settings, on_tokens)
    losses = context_losses(stream, positions, context_len=context_len)
    if not np.isfinite(losses).all():
        raise TrainingError(
            f"{opened.run.directory}: a loss is not finite at a context of {context_len:,} tokens; "
            f"{non_finite_advice(opened.precision, 'train it again')}"
        )
    return losses
