"""Milliseconds per token: with reused memory, and recomputed as the vanilla model must (section 4.5, Table 9).

Axes: B lanes or windows, L segment, M memory.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.kernels.device import DTYPES
from txlcli.core.kernels.linear import linear
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.sampling import reader_of_one_text
from txlcli.core.reading.windows import window_decoder
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.system.memory import is_out_of_memory

PEAK_SIZE = {"cpu": 2048, "cuda": 8192}  # a product of this size reaches the machine's rate
PEAK_PRODUCTS = {"cpu": 1, "cuda": 20}  # in a row, so that the wait for the last one does not count
LEAST_SEARCHED = 4  # windows at once that are tried even where two gain nothing


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of the same work."""

    ms_per_token: tuple[float, ...]
    """One entry per repetition."""

    @property
    def median(self) -> float:
        """The middle one: what to quote."""
        return statistics.median(self.ms_per_token)

    @property
    def low(self) -> float:
        """The fastest."""
        return min(self.ms_per_token)

    @property
    def high(self) -> float:
        """The slowest."""
        return max(self.ms_per_token)


def measure(
    work: Callable[[], object], device: torch.device, *, tokens: int, repeat: int, warm_up: bool = True
) -> Timing:
    """Time work that handles `tokens` tokens; the warm-up call is not counted."""
    if warm_up:
        work()
    times = []
    for _ in range(repeat):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        times.append(1e3 * (time.perf_counter() - started) / tokens)
    return Timing(tuple(times))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_flops_per_s(device: torch.device, precision: str, repeat: int = 5) -> float:
    """The rate of a large product by the library that the layers use: the machine's limit, measured on the spot."""
    size, products = PEAK_SIZE[device.type], PEAK_PRODUCTS[device.type]
    left, right = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))

    def multiply() -> None:
        for _ in range(products):
            linear(left, right)

    timing = measure(multiply, device, tokens=products, repeat=repeat)
    return 2.0 * size**3 / (timing.low / 1e3)


def time_evaluation(model: LanguageModel, how: EvalSettings, *, precision: str, repeat: int) -> Timing:
    """Scoring segments with a full memory."""
    reader = make_reader(model, how, lanes=how.batch_size, precision=precision)
    tokens = _draw_tokens(model, (how.batch_size, how.seg_len))
    if how.mem_len:
        reader.read_last(_draw_tokens(model, (how.batch_size, how.mem_len)))
    # The buffer slides now and then; a repetition covers a whole period, so that the slide is paid for.
    segments = -(-reader.housekeeping_interval // how.seg_len)

    def score_segments() -> None:
        for _ in range(segments):
            reader.losses(reader.read(tokens), tokens)

    return measure(score_segments, reader.device, tokens=segments * tokens.numel(), repeat=repeat)


def time_single_tokens(model: LanguageModel, how: EvalSettings, *, precision: str, repeat: int) -> Timing:
    """Scoring one token after the other, read as `txl generate` reads what it has drawn, with a full memory.

    Here, too, a repetition covers a whole period; the memory is filled in segments, which takes less time than tokens.
    """
    reader = reader_of_one_text(model, how, precision=precision)
    token = _draw_tokens(model, (1, 1))

    def score(tokens: int) -> None:
        for _ in range(tokens):
            reader.losses(reader.read(token), token)

    reader.read_last(_draw_tokens(model, (1, how.mem_len or how.seg_len)))
    score(1)  # to warm up
    period = reader.housekeeping_interval
    return measure(lambda: score(period), reader.device, tokens=period, repeat=repeat, warm_up=False)


def time_vanilla(
    model: LanguageModel,
    attn_len: int,
    *,
    windows: int,
    max_distance: int | None,
    precision: str,
    repeat: int,
    warm_up: bool = True,
) -> Timing:
    """One prediction per window of `attn_len` tokens, each window computed from its first token on.

    The opponent of Table 9, as well made as the rest: keys and values are kept within a window, and of the last layer
    only the last position is computed in full.
    """
    assert isinstance(model, TransformerXL)
    decoder = window_decoder(model, attn_len, windows=windows, precision=precision, max_distance=max_distance)
    tokens = _draw_tokens(model, (windows, attn_len))

    def predict() -> object:
        decoder.reset()
        return decoder.losses(decoder.read_last(tokens), tokens[:, -1:])

    return measure(predict, decoder.device, tokens=windows, repeat=repeat, warm_up=warm_up)


def time_training(model: LanguageModel, settings: TrainSettings, *, repeat: int) -> Timing:
    """Optimizer steps with a full memory; the model's weights change."""
    steps = -(-settings.mem_len // settings.seg_len) + repeat + 1
    length = settings.batch_size * settings.seg_len * (steps + 1) + 1
    ids = _draw_tokens(model, (length,)).cpu().numpy()
    segments = TrainingSegments(ids, batch_size=settings.batch_size, seg_len=settings.seg_len)
    training = Training(model, settings, segments, valid=None, folder=Path(), identity={})
    for _ in range(-(-settings.mem_len // settings.seg_len)):
        training.update()
    return measure(
        training.update,
        training.device,
        tokens=settings.batch_size * settings.seg_len,
        repeat=repeat,
    )


def _draw_tokens(model: LanguageModel, shape: tuple[int, ...]) -> torch.Tensor:
    """Tokens of this shape that follow Zipf's law, as `cost` counts them: an id's share falls with its rank."""
    rank = (model.vocab_size + 1) ** torch.rand(shape, dtype=torch.float64, device=model.device)  # from 1 to V + 1
    return (rank.long() - 1).clamp(max=model.vocab_size - 1)


def best_windows(
    model: LanguageModel, attn_len: int, one: Timing, *, max_distance: int | None, precision: str, repeat: int
) -> tuple[int, Timing]:
    """As many windows at once as the device gains from, with their time per prediction.

    Two and four are tried in any case, more as long as twice as many save a twentieth and memory lasts. The search
    times each once (on CUDA a second time: the first sets libraries and memory up); the winner is then timed like
    everything that it is compared with.

    Args:
        model: the weights.
        attn_len: tokens in a window.
        one: the time of one window at a time.
        max_distance: distances beyond it share one encoding.
        precision: number format of matrix products.
        repeat: repetitions for the winner.
    """

    def times(windows: int, repeat: int) -> Timing:
        return time_vanilla(
            model,
            attn_len,
            windows=windows,
            max_distance=max_distance,
            precision=precision,
            repeat=repeat,
            warm_up=model.device.type == "cuda",
        )

    best, best_ms, windows = 1, one.median, 2
    while True:
        try:
            tried = times(windows, repeat=1)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if model.device.type == "cuda":
                torch.cuda.empty_cache()
            break
        gained = tried.median < 0.95 * best_ms
        if gained:
            best, best_ms = windows, tried.median
        if not gained and windows >= LEAST_SEARCHED:
            break
        windows *= 2
    if best == 1:
        return 1, one
    winner = times(best, repeat)
    return (best, winner) if winner.median < one.median else (1, one)  # a single measurement may have flattered it


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """A list that holds, after the block, the most bytes that were in use during it; empty where nothing can tell.

    On CUDA what tensors took; on a CPU what the whole process held (Linux only, where the mark can be set back).
    """
    peak_bytes: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak_bytes
        peak_bytes.append(torch.cuda.max_memory_allocated(device))
        return
    can_tell = _reset_high_water_mark()
    yield peak_bytes
    if can_tell:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        peak_bytes += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]


def _reset_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
