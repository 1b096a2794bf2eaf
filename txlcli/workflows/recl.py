"""Measures the relative effective context length (RECL) of a group of runs (section 4.3, Appendix C)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
from txlcli.workflows.evaluation.rows import non_finite_advice
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.texts import ScoredText, split_text
from txlcli.workflows.recl_options import DEFAULT_RECL_POSITIONS, ReclOptions
from txlcli.workflows.reporter import Progress
from txlcli.workflows.result import Result
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
        facts = {key: value for key, value in vars(self).items() if key != "source"}
        return facts | self.source


@dataclass(frozen=True, kw_only=True)
class ReclResult(Result):
    """RECL of a group of models."""

    text: str
    unit: str
    positions: int
    seed: int
    threshold: float
    step_tokens: int
    context_tokens: list[int]
    models: tuple[ReclModel, ...]

    @property
    def models_by_name(self) -> dict[str, ReclModel]:
        """Models by short names of their runs."""
        names = run_directory.short_names([Path(model.run) for model in self.models])
        return dict(zip(names, self.models, strict=True))

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each model and share r."""
        rows = []
        for model in self.models:
            for point in model.recl:
                facts = {"run": model.run, "parameters": model.parameters, "top_r": point.top_r}
                rows.append(facts | {"recl_tokens": point.recl_tokens, "grid_ended": point.grid_ended})
        return rows


def run(runs: Sequence[Run], options: ReclOptions, workspace: Workspace) -> ReclResult:
    """Measure the RECL of every run of a group."""
    group = _open_group(runs, options, workspace)
    losses = _group_losses(group, options)
    gains_by_share = {share: gains(losses, options.contexts, share) for share in options.top_r}
    models = []
    for number, member in enumerate(group):
        points = []
        for share, gains_of_all in gains_by_share.items():
            points.append(recl(gains_of_all[number], top_r=share, threshold=options.threshold))
        models.append(_model_result(member, losses[number], points))
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


def _model_result(member: Scoring, losses: NDArray[np.float32], points: Sequence[Recl]) -> ReclModel:
    """Return the entry of one model, with its losses, (C, P), and its RECL for each share."""
    opened = member.opened.as_run
    loss_nats = [float(at_length.mean(dtype="float64")) for at_length in losses]
    return ReclModel(
        run=str(opened.subject),
        step=opened.checkpoint.state["step"],
        parameters=opened.run.parameters,
        source=_context_source(opened.run.settings.model, member.settings),
        precision=opened.precision,
        loss_nats=loss_nats,
        ppl=[metrics.perplexity(nats) for nats in loss_nats],
        recl=tuple(points),
    )


def _open_group(runs: Sequence[Run], options: ReclOptions, workspace: Workspace) -> list[Scoring]:
    """Open the runs, each with the text that all of them are scored on; M = 0 is a model without memory."""
    run_directory.check_same_text(runs)
    all_opened = [workspace.open_run(run) for run in runs]
    text = split_text(all_opened[0], options.split, None, workspace)
    group = []
    for opened in all_opened:
        settings = opened.run.settings
        mem_len = settings.eval.mem_len
        if settings.train.mem_len == 0:
            mem_len = 0
        group.append(Scoring(opened, text, settings.evaluation_settings(mem_len=mem_len), workspace))
    return group


def _context_source(model: ModelSettings, settings: EvalSettings) -> dict[str, Any]:
    """Return the source of the model's context, and the settings that matter for it."""
    if model.recurrent_state:
        return {"context": "state"}
    if settings.mem_len == 0:
        longest = model.longest_window  # learned positions; None if a window may have any length
        return {"context": "window", "longest_window_tokens": longest, "max_distance": settings.max_distance}
    return {
        "context": "memory",
        "seg_len": settings.seg_len,
        "mem_len": settings.mem_len,
        "same_length": settings.same_length,
        "max_distance": settings.max_distance,
    }


def _positions(text: ScoredText, options: ReclOptions) -> NDArray[np.int64]:
    """Sample the positions to score, which are the same for all models and context lengths."""
    count = len(text.targets)
    longest = options.contexts[-1]
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
    text = group[0].text
    reporter = group[0].reporter
    contexts = options.contexts
    positions = _positions(text, options)
    read = []
    for member in group:
        read.append([read_length(member.opened.model, member.settings, length) for length in contexts])
    tokens = len(positions) * sum(sum(set(lengths)) for lengths in read)  # each length is read once
    models = f"{len(group)} models" if len(group) > 1 else "1 model"
    reporter.say(
        f"RECL on {text.title}: {len(positions):,} positions x {len(contexts)} context lengths ({contexts[0]:,} to "
        f"{contexts[-1]:,} tokens) x {models}, {tokens:,} tokens to read"
    )
    losses_by_model = []
    with reporter.progress("RECL", total=tokens, unit="tokens") as bar:
        for member, lengths in zip(group, read, strict=True):
            losses = {}
            for length in dict.fromkeys(lengths):
                losses[length] = _losses(member, positions, length, options.batch_size, bar)
            losses_by_model.append([losses[length] for length in lengths])
    return np.array(losses_by_model)


def _losses(
    member: Scoring, positions: NDArray[np.int64], context_len: int, batch_size: int | None, bar: Progress
) -> NDArray[np.float32]:
    """Return the losses of one model at a context length, (P,)."""
    opened = member.opened.as_run
    text = member.text
    windows = batch_size or windows_at_once(opened.model, context_len)
    settings = member.settings.with_batch_size(windows)
    before = bar.done

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
