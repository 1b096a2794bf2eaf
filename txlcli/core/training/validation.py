"""Validation during training: each process scores some of the lanes.

Axes: T tokens.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.reading.scoring import Lanes, Preceded, Tokens, Total, score_total
from txlcli.core.training.data_parallel import World, even_parts
from txlcli.core.training.parallel_ddp import DataParallel


@dataclass(frozen=True)
class ValidSplit:
    """Inputs and targets of the validation split, (T,) each, as they are stored."""

    inputs: Tokens | Preceded
    targets: Tokens

    @classmethod
    def of(cls, ids: Tokens, boundary: int | None, count: int | None = None) -> "ValidSplit":
        """Return what `scored_stream` does, without a copy of the ids."""
        head = ids if count is None else ids[: count + (boundary is None)]
        return cls(head[:-1], head[1:]) if boundary is None else cls(Preceded(head, boundary), head)


class _Stopped(Exception):  # noqa: N818 - ends a validation early
    pass


class _StopFlag:
    """A request of any process to stop, exchanged while the next segment is read, so that no process waits for it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: Callable[[], bool] = lambda: False

    def check(self, *, flag: bool) -> None:
        """Send the flag of this process, and raise _Stopped if a process sent True at the call before."""
        if self._world.size == 1:
            self._pending = lambda: flag
        self.check_last()
        if self._world.size > 1:
            self._pending = self._world.begin_any_of(flag)

    def check_last(self) -> None:
        """Raise _Stopped if a process sent True at the last call of `check`."""
        if self._pending():
            raise _Stopped


def validation_settings(settings: TrainSettings) -> EvalSettings:
    """Return segments of valid_seg_len, with as much memory as gives the number of keys of a training segment.

    Without recurrence a segment is all the context there is, so validation uses the segments of training.
    """
    seg_len = (settings.valid_seg_len or settings.seg_len) if settings.mem_len else settings.seg_len
    mem_len = settings.mem_len + settings.seg_len - seg_len
    return EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=settings.valid_batch_size, same_length="off")


def validate(
    parallel: DataParallel,
    split: ValidSplit,
    *,
    should_stop: Callable[[], bool],
    on_tokens: Callable[[int], None] | None,
) -> Total | None:
    """Score the validation split; return None if stopped before its end. All processes must call this.

    Each process scores a contiguous part of the lanes; one without lanes only takes part in the exchanges. All of them
    return the same sum.

    Args:
        parallel: the model in training, and its processes.
        split: to score.
        should_stop: called between segments; True in one process stops all of them after the next segment.
        on_tokens: called with the number of tokens that all processes have scored so far.
    """
    world, stop = parallel.world, _StopFlag(parallel.world)

    def between_segments(tokens: int) -> None:
        if on_tokens:
            on_tokens(tokens)
        stop.check(flag=should_stop())

    started = time.perf_counter()
    try:
        own = _score_own_lanes(parallel, split, between_segments)
        stop.check_last()
    except _Stopped:
        return None
    sums = torch.tensor([own.nats, own.tokens], dtype=torch.float64, device=parallel.model.device)
    world.all_reduce(sums)
    nats, tokens = sums.tolist()
    return Total(nats, int(tokens), time.perf_counter() - started)


def _score_own_lanes(parallel: DataParallel, split: ValidSplit, between_segments: Callable[[int], None]) -> Total:
    """Score the lanes of this process; without any, help the others to read each segment."""
    settings, world = validation_settings(parallel.settings), parallel.world
    lanes = Lanes.of(len(split.targets), settings)
    numbers = even_parts(lanes.number, world.size)[world.rank]
    if numbers:
        return score_total(
            parallel.model,
            split.inputs,
            split.targets,
            settings,
            precision=parallel.settings.precision,
            numbers=numbers,
            on_tokens=between_segments,
            new_reader=parallel.make_reader,
        )
    for part in lanes.parts(settings.seg_len):
        parallel.objective.help_reading()
        between_segments(min(part.stop * lanes.number, lanes.count))
    return Total(0.0, 0, 0.0)
