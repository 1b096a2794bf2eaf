"""Validation in all processes: each scores some of the lanes, windows or documents. And what validations have shown.

Axes: B lanes, T tokens.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.reading.documents import score_spans
from txlcli.core.reading.scoring import Lanes, Scores, Stream, Tokens, score
from txlcli.core.reading.windows import score_windows, windows_at_once
from txlcli.core.training.distributed import World, even_parts
from txlcli.core.training.parallel import DataParallel
from txlcli.core.training.schedule import reduced
from txlcli.errors import UsageError


@dataclass(frozen=True)
class ValidationText:
    """The validation split."""

    inputs: Tokens
    """Tokens read, (T,)."""
    targets: Tokens
    """Tokens predicted, (T,)."""
    spans: Sequence[tuple[int, int]] = ()
    """First target of each document and the one after its last, if each is read from an empty memory."""


class Validations:
    """The validations of a training run so far."""

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self.last_step = 0
        """Step of the last one."""
        self.best_nats = math.inf
        """Lowest loss."""
        self.stale = 0
        """Number since the last improvement."""
        self.lr_scale = 1.0
        """Factor of the peak learning rate, with schedule = "plateau"."""

    def add(self, step: int, loss_nats: float) -> bool:
        """Add one; return True if its loss is the lowest."""
        self.last_step = step
        is_best = loss_nats < self.best_nats
        if is_best:
            self.best_nats = loss_nats
            self.stale = 0
        else:
            self.stale += 1
        mean_has_begun = self._settings.average == "mean" and step >= self._settings.schedule_steps
        if not mean_has_begun:  # with the mean, the schedule ends
            self.lr_scale = reduced(self._settings, self.lr_scale, self.stale)
        return is_best

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint saves."""
        best_nats = self.best_nats if math.isfinite(self.best_nats) else None
        return {"validated": self.last_step, "best_nats": best_nats, "stale": self.stale, "lr_scale": self.lr_scale}

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore them from the state of a checkpoint."""
        self.last_step = saved["validated"]
        self.best_nats = math.inf if saved["best_nats"] is None else saved["best_nats"]
        self.stale = saved["stale"]
        if self._settings.schedule == "plateau":
            self.lr_scale = saved["lr_scale"]


class _Stopped(Exception):  # noqa: N818 - ends a validation early
    pass


def validation_settings(settings: TrainSettings) -> EvalSettings:
    """Return segments of valid_seg_len, with as much memory as gives the number of keys of a segment in training.

    Tokens that training reads again are in the memory.

    Without recurrence a segment is all the context there is, so validation uses the segments of training. Windows of
    valid_attn_len have no memory.
    """
    context = settings.mem_len + settings.reread_len
    seg_len = settings.seg_len
    if context and settings.valid_seg_len:
        seg_len = settings.valid_seg_len
    mem_len = context + settings.seg_len - seg_len
    if settings.valid_attn_len is not None:
        seg_len = settings.valid_attn_len
        mem_len = 0
    return EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=settings.valid_batch_size, same_length="off")


def validate(
    parallel: DataParallel,
    text: ValidationText,
    *,
    should_stop: Callable[[], bool],
    on_tokens: Callable[[int], None] | None,
) -> Scores | None:
    """Score the validation split with the weights after the last update; return None if stopped before its end.

    All processes must call this.
    """
    world = parallel.world
    in_windows = parallel.settings.valid_attn_len is not None

    def after_segment(tokens: int) -> None:
        if on_tokens:
            on_tokens(tokens)
        # Processes read different numbers of windows or documents: several of them only stop after the last.
        may_agree = world.size == 1 or not (in_windows or text.spans)
        if may_agree and world.any_of(should_stop()):
            raise _Stopped

    settings = validation_settings(parallel.settings)
    if in_windows and not text.spans:
        windows = windows_at_once(parallel.model, min(settings.seg_len, len(text.targets)))
        settings = settings.with_batch_size(windows)
    stream = Stream(parallel.model, text.inputs, text.targets, settings, after_segment, parallel.make_reader)
    parallel.receive_updates()
    with suppress(_Stopped):
        if text.spans:
            return _score_documents(stream, text.spans, world)
        if in_windows:
            share = (world.rank, world.size)
            own = score_windows(stream, stride=parallel.settings.valid_stride, share=share)
            return add_shares(own, world)
        return score_in_processes(stream, world=world)
    return None


def _score_documents(stream: Stream, spans: Sequence[tuple[int, int]], world: World) -> Scores:
    """Score the documents between these targets, divided over the processes."""
    own_spans = spans[world.rank :: world.size]
    own = score_spans(stream, own_spans)
    losses = np.zeros(len(stream.targets), dtype=np.float32)
    done = 0
    for first, end in own_spans:
        length = end - first
        losses[first:end] = own.losses_nats[done : done + length]
        done += length
    return add_shares(Scores(losses, own.seconds, min(stream.settings.batch_size, len(spans))), world)


def check_lanes(tokens: int, settings: EvalSettings, processes: int) -> None:
    """Reject more processes than lanes."""
    lanes = Lanes.of(tokens, settings).n_lanes
    if lanes < processes:
        number = "one lane" if lanes == 1 else f"{lanes} lanes"
        raise UsageError(
            f"{processes} processes divide the lanes of the batch, and {tokens:,} tokens with a batch size of "
            f"{settings.batch_size} are {number}; give `batch_size` {processes} or more, or use fewer processes"
        )


def score_in_processes(stream: Stream, *, world: World) -> Scores:
    """Score every target once, as `scoring.score` does, with its lanes divided over the processes.

    All processes return the losses of all lanes, and the seconds of the slowest process.
    """
    n_lanes = stream.lanes().n_lanes
    selected = even_parts(n_lanes, world.size)[world.rank]
    if selected:
        own = score(stream, selected=selected)
        counted = own.losses_nats
    else:  # as many segments as the other processes, of a lane that they score
        own = score(stream, selected=range(1))
        counted = own.losses_nats[:0]
    losses = torch.cat(world.all_gather(torch.from_numpy(counted))).numpy()
    seconds = max(world.gather_objects(own.seconds))
    return Scores(losses, seconds, n_lanes)


def add_shares(own: Scores, world: World) -> Scores:
    """Return the scores of all windows, of which each process has scored its share; all other losses are 0."""
    shares = world.all_gather(torch.from_numpy(own.losses_nats))
    losses = np.sum([losses.numpy() for losses in shares], axis=0)
    seconds = max(world.gather_objects(own.seconds))
    return Scores(losses, seconds, own.lanes)
