"""The loss of tokens given exactly the c tokens before them, -log P(x_t | x_(t-1) ... x_(t-c)) (Appendix C).

A model with memory starts with the memory that stands before a text and reads the c tokens in segments; a model that
carries a state starts with zeros; a model without memory reads one window, as long as it has positions for.

Axes: W texts side by side, C context length, T tokens of a stream, P positions.
"""

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader, sized_for
from txlcli.core.reading.windows import window_decoder
from txlcli.core.training.segments import Tokens


def eligible_positions(count: int, *, longest: int) -> int:
    """How many of T predicted tokens have `longest` tokens before them; position t is predicted from inputs 0 .. t."""
    return max(0, count - longest + 1)


def sample_positions(count: int, *, longest: int, sample_size: int, seed: int) -> NDArray[np.int64]:
    """Positions of a stream of T predicted tokens that have `longest` tokens before them, rising, each once.

    A larger sample holds the smaller one of the same seed, and a longer context changes no more than it must, so that
    what was computed is of use again.
    """
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[order >= longest - 1][:sample_size])


def read_length(model: LanguageModel, how: EvalSettings, context_len: int) -> int:
    """How many of the last c tokens a model reads: all, or as many as it has learned positions of a window for."""
    known = model.settings.longest_window if how.mem_len == 0 else None
    return context_len if known is None else min(context_len, known)


def context_losses(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    positions: NDArray[np.integer],
    how: EvalSettings,
    *,
    context_len: int,
    windows: int,
    precision: str = "fp32",
) -> Iterator[tuple[NDArray[np.integer], NDArray[np.float32]]]:
    """The losses of some targets, each from nothing but the last c inputs, batch by batch.

    Args:
        model: in any mode.
        inputs: (T,) tokens read.
        targets: (T,) tokens predicted; target t follows input t.
        positions: (P,) targets to score, each at least c - 1.
        how: L, M, the limits on distance; M = 0 is a model without memory.
        context_len: c, as `read_length` gives it.
        windows: W at most.
        precision: number format of matrix products.
    Yields:
        Positions and their losses in nats, in the order given.

    Raises:
        UsageError: the model has learned fewer positions than a segment or window has.
    """
    parts = np.array_split(positions, -(-len(positions) // windows))  # of nearly one size: the first is the largest
    reader = _reader(model, how, context_len, lanes=len(parts[0]), precision=precision)
    before = np.arange(1 - context_len, 1)  # (C,)
    for part in parts:
        padded = np.resize(part, len(parts[0]))  # the reader has so many lanes; what repeats is dropped
        read = torch.from_numpy(inputs[padded[:, None] + before].astype(np.int64)).to(reader.device)  # (W, C)
        next_tokens = torch.from_numpy(targets[padded, None].astype(np.int64)).to(reader.model.targets_device)  # (W, 1)
        reader.reset()
        losses = reader.losses(reader.read_last(read), next_tokens)[: len(part), 0]
        yield part, losses.float().cpu().numpy()


def _reader(model: LanguageModel, how: EvalSettings, context_len: int, *, lanes: int, precision: str) -> Reader:
    """What reads c tokens from nothing."""
    if isinstance(model, TransformerXL) and how.mem_len == 0:
        return window_decoder(model, context_len, windows=lanes, precision=precision, max_distance=how.max_distance)
    return make_reader(model, sized_for(model, how, context_len), lanes=lanes, precision=precision)


def measure_ms_per_token(
    model: LanguageModel, inputs: Tokens, how: EvalSettings, *, context_len: int, windows: int, precision: str
) -> float:
    """Time of reading c tokens from nothing, in milliseconds per token: the second of two batches of W."""
    positions = np.resize(np.arange(context_len - 1, len(inputs)), 2 * windows)
    batches = context_losses(
        model, inputs, inputs, positions, how, context_len=context_len, windows=windows, precision=precision
    )
    ended = [time.perf_counter() for _ in batches]
    return 1e3 * (ended[1] - ended[0]) / (windows * context_len)
