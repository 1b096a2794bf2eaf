"""Milliseconds per token: with reused memory, and with a window recomputed as in the vanilla model (4.5, Table 9).

Axes: B batch (lanes or windows), L segment, M memory.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.kernels.device import float64_device, send, synchronize
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.modes import DTYPES, float32_products
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.sampling import reader_of_one_text
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.system.memory import is_out_of_memory

PEAK_SIZE = 2048
"""Rows and columns of matrices whose product reaches the peak rate of a CPU."""
CUDA_PEAK_SIZE = 8192
"""Rows and columns for the peak rate of a CUDA device."""
CUDA_PRODUCTS = 20
"""Products in a row on a CUDA device, so that synchronization takes a negligible share; one on others."""
MIN_STEPS = 10
"""Steps per repetition on CUDA, so that launching a kernel overlaps with the kernels before it."""
MIN_SEARCHED = 4  # windows at once that are tried even if two are not faster


class Repetitions(NamedTuple):
    """How often work is timed."""

    repeat: int
    min_steps: int = 1
    """Steps of a repetition, at least."""


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of the same work."""

    ms_per_token: tuple[float, ...]
    """One entry per repetition."""
    tokens: int = 1
    """Of a step."""
    path: str = ""
    """How it was computed; see `path_in_words`."""

    @property
    def median(self) -> float:
        """Median: the figure to report."""
        return statistics.median(self.ms_per_token)

    @property
    def low_high(self) -> tuple[float, float]:
        """Fastest and slowest repetition."""
        return min(self.ms_per_token), max(self.ms_per_token)


def measure(
    work: Callable[[], object],
    device: torch.device,
    *,
    tokens: int,
    repeat: int,
    steps: int = 1,
    warm_up: int = 1,
    seconds: Callable[[], float] = time.perf_counter,
    path: Callable[[], str] = lambda: "",
) -> Timing:
    """Time steps of `tokens` tokens, `steps` per repetition; `warm_up` calls before them are not counted.

    On a CPU, `seconds` tells the time. On a GPU, the host waits once per repetition, so that launches overlap. After
    the last repetition, `path` tells how the work was computed.
    """
    # Not torch.utils.benchmark.Timer: it adds an uncounted call before each measurement, so that a repetition would no
    # longer cover whole periods of a sliding buffer, and sets its own number of threads.

    def now() -> float:
        if device.type == "cpu":
            return seconds()
        synchronize(device)
        return time.perf_counter()

    for _ in range(warm_up):
        work()
    ms_per_token = []
    for _ in range(repeat):
        started = now()
        for _ in range(steps):
            work()
        ms_per_token.append(1e3 * (now() - started) / (steps * tokens))
    return Timing(tuple(ms_per_token), tokens, path())


def peak_flops_per_s(
    device: torch.device,
    precision: str,
    repeat: int = 5,
    *,
    seconds: Callable[[], float] = time.perf_counter,
    size: int | None = None,
) -> float:
    """Measure the rate of a large product in the library that the layers use: the peak of this machine.

    A smaller `size` takes less time, and reaches less of it.
    """
    on_cuda = device.type == "cuda"
    if size is None:
        size = CUDA_PEAK_SIZE if on_cuda else PEAK_SIZE
    products = CUDA_PRODUCTS if on_cuda else 1
    left = torch.randn(size, size, device=device, dtype=DTYPES[precision])
    right = torch.randn(size, size, device=device, dtype=DTYPES[precision])

    def multiply() -> None:
        for _ in range(products):
            linear(left, right)

    with float32_products(device, precision):
        timing = measure(multiply, device, tokens=products, repeat=repeat, seconds=seconds)
    return 2.0 * size**3 / (timing.low_high[0] / 1e3)


def _time_reader(
    reader: Reader, seg_len: int, times: Repetitions, *, filled: int, warm_up: int | None = None
) -> Timing:
    """Time the scoring of `seg_len` tokens of each lane after `filled` tokens, which are read in segments.

    A repetition covers whole periods of the sliding buffer, so that the slide is part of the time. By default, the
    warm-up is one period, and on CUDA two, since graphs are captured in the second. Targets are where scoring has them.
    """
    model = reader.model
    batch_size = reader.settings.batch_size
    tokens = _random_tokens(model, (batch_size, seg_len))
    targets = tokens.to(model.targets_device)
    if filled:
        reader.read_last(_random_tokens(model, (batch_size, filled)))
    period = max(1, reader.housekeeping_interval // seg_len)
    periods = math.ceil(times.min_steps / period)
    if warm_up is None:
        warm_up = 2 * period if reader.device.type == "cuda" else period
    return measure(
        lambda: reader.losses(reader.read(tokens), targets),
        reader.device,
        tokens=tokens.numel(),
        repeat=times.repeat,
        steps=periods * period,
        warm_up=warm_up,
        path=lambda: reader.path,
    )


def time_evaluation(model: LanguageModel, settings: EvalSettings, times: Repetitions) -> Timing:
    """Time the scoring of segments with a full memory."""
    return _time_reader(make_reader(model, settings), settings.seg_len, times, filled=settings.mem_len)


def time_single_tokens(model: LanguageModel, settings: EvalSettings, times: Repetitions) -> Timing:
    """Time the scoring of single tokens, read as `txl generate` reads the tokens it samples, with a full memory."""
    reader = reader_of_one_text(model, settings)
    filled = settings.mem_len or settings.seg_len
    warm_up = 2 if reader.device.type == "cuda" else 1  # the second token is captured
    return _time_reader(reader, 1, times, filled=filled, warm_up=warm_up)


def time_vanilla(model: LanguageModel, settings: EvalSettings, times: Repetitions, *, warm_up: int = 1) -> Timing:
    """Time one prediction per window of `seg_len` tokens; `batch_size` windows are computed at once, from the start.

    This is the vanilla model of Table 9, optimized like the other: keys and values are kept within a window, and of the
    last layer only the last position is computed in full.
    """
    reader = make_reader(model, settings)
    tokens = _random_tokens(model, (settings.batch_size, settings.seg_len))
    targets = tokens[:, -1:].to(model.targets_device)

    def predict() -> object:
        reader.reset()
        return reader.losses(reader.read_last(tokens), targets)

    return measure(
        predict, reader.device, tokens=len(tokens), repeat=times.repeat, steps=times.min_steps, warm_up=warm_up
    )


def time_training(
    model: LanguageModel,
    settings: TrainSettings,
    times: Repetitions,
    *,
    seconds: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time optimizer steps with a full memory. The weights of the model change."""
    filling = math.ceil((settings.mem_len + settings.reread_len) / settings.seg_len)
    captures = 2 if model.device.type == "cuda" else 0  # of the gradients in one step, of the update in the next
    warm_up = filling + captures + 1
    tokens = settings.batch_size * settings.seg_len
    steps = warm_up + times.repeat * times.min_steps
    ids = _random_tokens(model, (tokens * (steps + 1) + 1,)).cpu().numpy()
    starts = np.arange(0, len(ids), settings.mem_len + settings.seg_len)  # of documents
    segments = TrainingSegments(ids, settings, starts, shuffles=False)
    training = Training(model, settings, segments)
    return measure(
        training.update,
        training.device,
        tokens=tokens,
        repeat=times.repeat,
        steps=times.min_steps,
        warm_up=warm_up,
        seconds=seconds,
        path=lambda: training.path,
    )


def _random_tokens(model: LanguageModel, shape: tuple[int, ...]) -> torch.Tensor:
    """Sample tokens of this shape by Zipf's law, which `cost` assumes: the share of an id falls with its rank."""
    exponents = torch.rand(shape, dtype=torch.float64, device=float64_device(model.device))
    rank = (model.vocab_size + 1) ** exponents  # from 1 to V + 1
    return send((rank.long() - 1).clamp(max=model.vocab_size - 1), model.device)


def best_windows(
    model: LanguageModel, settings: EvalSettings, single: Timing, times: Repetitions
) -> tuple[int, Timing]:
    """Search the number of windows computed at once that is fastest per prediction; return it with its time.

    `single` is the time of one window. Two and four are always tried, more as long as doubling saves a twentieth and
    memory suffices. The search times each number once (on CUDA after a warm-up call); the best one is then timed with
    all repetitions.
    """
    on_cuda = model.device.type == "cuda"

    def time_windows(windows: int, times: Repetitions) -> Timing:
        return time_vanilla(model, settings.with_batch_size(windows), times, warm_up=int(on_cuda))

    best = 1
    best_ms = single.median
    windows = 2
    while True:
        try:
            ms = time_windows(windows, Repetitions(1, times.min_steps)).median
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if on_cuda:
                torch.cuda.empty_cache()
            break
        if ms < 0.95 * best_ms:
            best = windows
            best_ms = ms
        elif windows >= MIN_SEARCHED:
            break
        windows *= 2
    if best > 1:
        timed = time_windows(best, times)
        if timed.median < single.median:  # else the search was lucky
            return best, timed
    return 1, single
