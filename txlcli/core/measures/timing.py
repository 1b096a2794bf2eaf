"""Milliseconds per token: with reused memory, and with a window recomputed as in the vanilla model (4.5, Table 9).

Axes: B batch (lanes or windows), L segment, M memory.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.kernels.device import DTYPES, float32_products
from txlcli.core.kernels.linear import linear
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.registry import make_reader, make_window_reader
from txlcli.core.reading.sampling import reader_of_one_text
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.system.memory import is_out_of_memory

PEAK_SIZE = {"cpu": 2048, "cuda": 8192}  # a product of this size reaches the peak rate of the machine
PEAK_PRODUCTS = {"cpu": 1, "cuda": 20}  # in a row, so that synchronization takes a negligible share
MIN_STEPS = 10
"""Steps per repetition on CUDA, so that launching a kernel overlaps with the kernels before it."""
MIN_SEARCHED = 4  # windows at once that are tried even if two are not faster


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of the same work."""

    ms_per_token: tuple[float, ...]
    """One entry per repetition."""
    step_ms: tuple[float, ...] = ()
    """Time of every step of all repetitions: a training step, a segment, a token."""

    @property
    def median(self) -> float:
        """Median: the figure to report."""
        return statistics.median(self.ms_per_token)

    @property
    def low(self) -> float:
        """Fastest repetition."""
        return min(self.ms_per_token)

    @property
    def high(self) -> float:
        """Slowest repetition."""
        return max(self.ms_per_token)

    def latency_ms(self, percent: float) -> float | None:
        """Return the time within which this percentage of the steps ended, interpolated between steps.

        None above the median if fewer than MIN_STEPS were taken.
        """
        if percent > 50 and len(self.step_ms) < MIN_STEPS:
            return None
        return float(np.percentile(self.step_ms, percent))


class HostClock:
    """Times steps on the host, for devices where a call returns when its work is done.

    Args:
        seconds: the time; by default wall time.
    """

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds
        self._marks: list[float] = []

    def mark(self) -> None:
        """Note the end of a step, or the start of the first one."""
        self._marks.append(self._seconds())

    def intervals_ms(self) -> list[float]:
        """Return the time of each step."""
        return [1e3 * (end - start) for start, end in itertools.pairwise(self._marks)]


def _recorded_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class EventClock:
    """Times steps on a CUDA device by events, without waiting for it between steps, so that launches overlap.

    Args:
        device: whose current stream runs the steps.
        new_event: records an event that keeps its time in the current stream.
    """

    def __init__(self, device: torch.device, new_event: Callable[[torch.device], Any] = _recorded_event) -> None:
        self._device, self._new_event = device, new_event
        self._events: list[Any] = []

    def mark(self) -> None:
        """Note the end of the work queued so far, or the start of the first step."""
        self._events.append(self._new_event(self._device))

    def intervals_ms(self) -> list[float]:
        """Wait for the last step, and return the time of each."""
        self._events[-1].synchronize()
        return [start.elapsed_time(end) for start, end in itertools.pairwise(self._events)]


def clock_of(device: torch.device) -> HostClock | EventClock:
    """Return a new clock for steps on a device."""
    return EventClock(device) if device.type == "cuda" else HostClock()


def idle_clock_of(device: torch.device) -> HostClock | EventClock:
    """Return a new clock for steps as they would take on an idle machine.

    On a CPU it counts the processor time of the calling thread, which has its share of every operation, and not the
    time in which other processes run.
    """
    return EventClock(device) if device.type == "cuda" else HostClock(time.thread_time)


def measure(
    work: Callable[[], object],
    device: torch.device,
    *,
    tokens: int,
    repeat: int,
    steps: int = 1,
    warm_up: bool = True,
    new_clock: Callable[[torch.device], HostClock | EventClock] = clock_of,
) -> Timing:
    """Time steps; the warm-up call is not counted.

    Args:
        work: one step.
        device: that runs it. The host waits for it once per repetition.
        tokens: that a step processes.
        repeat: number of repetitions.
        steps: of a repetition.
        warm_up: take a step before.
        new_clock: makes the clock of a repetition.
    """
    # Not torch.utils.benchmark.Timer: it adds an uncounted call before each measurement, so that a repetition would no
    # longer cover whole periods of a sliding buffer, and sets its own number of threads.
    if warm_up:
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    ms_per_token, step_ms = [], []
    for _ in range(repeat):
        clock = new_clock(device)
        clock.mark()
        for _ in range(steps):
            work()
            clock.mark()
        intervals = clock.intervals_ms()
        ms_per_token.append(sum(intervals) / (steps * tokens))
        step_ms += intervals
    return Timing(tuple(ms_per_token), tuple(step_ms))


def _whole_periods(period: int, least: int) -> int:
    """Return the smallest multiple of a period that is at least `least`."""
    return -(-max(least, period) // period) * period


def peak_flops_per_s(
    device: torch.device,
    precision: str,
    repeat: int = 5,
    *,
    new_clock: Callable[[torch.device], HostClock | EventClock] = clock_of,
) -> float:
    """Measure the rate of a large product in the library that the layers use: the peak of this machine."""
    size, products = PEAK_SIZE[device.type], PEAK_PRODUCTS[device.type]
    left, right = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))

    def multiply() -> None:
        for _ in range(products):
            linear(left, right)

    with float32_products(device, precision):
        timing = measure(multiply, device, tokens=products, repeat=repeat, new_clock=new_clock)
    return 2.0 * size**3 / (timing.low / 1e3)


def time_evaluation(
    model: LanguageModel, settings: EvalSettings, *, precision: str, repeat: int, min_steps: int = 1
) -> Timing:
    """Time the scoring of segments with a full memory, at least `min_steps` per repetition."""
    reader = make_reader(model, settings, batch_size=settings.batch_size, precision=precision)
    tokens = _random_tokens(model, (settings.batch_size, settings.seg_len))
    if settings.mem_len:
        reader.read_last(_random_tokens(model, (settings.batch_size, settings.mem_len)))
    # A repetition covers a whole period of the sliding buffer, so that the slide is part of the time.
    period = -(-reader.housekeeping_interval // settings.seg_len)
    for _ in range(period):  # warm-up
        reader.losses(reader.read(tokens), tokens)
    return measure(
        lambda: reader.losses(reader.read(tokens), tokens),
        reader.device,
        tokens=tokens.numel(),
        repeat=repeat,
        steps=_whole_periods(period, min_steps),
        warm_up=False,
    )


def time_single_tokens(
    model: LanguageModel, settings: EvalSettings, *, precision: str, repeat: int, min_steps: int = 1
) -> Timing:
    """Time the scoring of single tokens, read as `txl generate` reads the tokens it samples, with a full memory.

    A repetition covers a whole period of the sliding buffer; the memory is filled in segments, which is faster.
    """
    reader = reader_of_one_text(model, settings, precision=precision)
    token = _random_tokens(model, (1, 1))
    reader.read_last(_random_tokens(model, (1, settings.mem_len or settings.seg_len)))
    return measure(
        lambda: reader.losses(reader.read(token), token),
        reader.device,
        tokens=1,
        repeat=repeat,
        steps=_whole_periods(reader.housekeeping_interval, min_steps),
    )


def time_vanilla(
    model: LanguageModel,
    attn_len: int,
    *,
    windows: int,
    max_distance: int | None,
    precision: str,
    repeat: int,
    min_steps: int = 1,
    warm_up: bool = True,
) -> Timing:
    """Time one prediction per window of `attn_len` tokens, each window computed from its first token.

    This is the vanilla model of Table 9, optimized like the other: keys and values are kept within a window, and of the
    last layer only the last position is computed in full.
    """
    reader = make_window_reader(model, attn_len, windows=windows, precision=precision, max_distance=max_distance)
    tokens = _random_tokens(model, (windows, attn_len))

    def predict() -> object:
        reader.reset()
        return reader.losses(reader.read_last(tokens), tokens[:, -1:])

    return measure(predict, reader.device, tokens=windows, repeat=repeat, steps=min_steps, warm_up=warm_up)


def time_training(
    model: LanguageModel,
    settings: TrainSettings,
    *,
    repeat: int,
    min_steps: int = 1,
    new_clock: Callable[[torch.device], HostClock | EventClock] = clock_of,
) -> Timing:
    """Time optimizer steps with a full memory, `min_steps` per repetition. The weights of the model change."""
    steps = -(-settings.mem_len // settings.seg_len) + repeat * min_steps + 1
    length = settings.batch_size * settings.seg_len * (steps + 1) + 1
    ids = _random_tokens(model, (length,)).cpu().numpy()
    segments = TrainingSegments(ids, batch_size=settings.batch_size, seg_len=settings.seg_len)
    training = Training(model, settings, segments, valid=None, directory=Path(), identity={})
    for _ in range(-(-settings.mem_len // settings.seg_len)):
        training.update()
    tokens = settings.batch_size * settings.seg_len
    return measure(training.update, training.device, tokens=tokens, repeat=repeat, steps=min_steps, new_clock=new_clock)


def _random_tokens(model: LanguageModel, shape: tuple[int, ...]) -> torch.Tensor:
    """Sample tokens of this shape by Zipf's law, which `cost` assumes: the share of an id falls with its rank."""
    rank = (model.vocab_size + 1) ** torch.rand(shape, dtype=torch.float64, device=model.device)  # from 1 to V + 1
    return (rank.long() - 1).clamp(max=model.vocab_size - 1)


def best_windows(
    model: LanguageModel, attn_len: int, single: Timing, *, max_distance: int | None, precision: str, repeat: int
) -> tuple[int, Timing]:
    """Search the number of windows computed at once that is fastest per prediction; return it with its time.

    Two and four are always tried, more as long as doubling saves a twentieth and memory suffices. The search times each
    number once (on CUDA after a warm-up call); the best one is then timed with all repetitions.

    Args:
        model: the weights.
        attn_len: tokens in a window.
        single: the time of one window at a time.
        max_distance: distances beyond it share one encoding.
        precision: of matrix products.
        repeat: repetitions for the best number.
    """
    on_cuda = model.device.type == "cuda"
    time_windows = partial(
        time_vanilla,
        model,
        attn_len,
        max_distance=max_distance,
        precision=precision,
        warm_up=on_cuda,
        min_steps=MIN_STEPS if on_cuda else 1,
    )
    best, best_ms, windows = 1, single.median, 2
    while True:
        try:
            tried = time_windows(windows=windows, repeat=1)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if on_cuda:
                torch.cuda.empty_cache()
            break
        gained = tried.median < 0.95 * best_ms
        if gained:
            best, best_ms = windows, tried.median
        if not gained and windows >= MIN_SEARCHED:
            break
        windows *= 2
    if best == 1:
        return 1, single
    timed = time_windows(windows=best, repeat=repeat)
    return (best, timed) if timed.median < single.median else (1, single)  # the search may have been lucky


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Yield a list that holds the peak memory of the block in bytes after it; it stays empty if that is unknown.

    On CUDA it is the memory of tensors; on a CPU of the whole process (Linux only, if the mark can be reset).
    """
    peak_bytes: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak_bytes
        peak_bytes.append(torch.cuda.max_memory_allocated(device))
        return
    was_reset = _reset_high_water_mark()
    yield peak_bytes
    if was_reset:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        peak_bytes += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]


def _reset_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
