"""The loss of tokens given exactly the c tokens before them, -log P(x_t | x_(t-1) ... x_(t-c)) (Appendix C).

A model with memory starts with its first memory and reads the c tokens in segments; a model with a recurrent state
starts with zeros; a model without memory reads one window, up to the number of its positions.

Axes: W texts side by side, C context length, T tokens of a stream, P positions.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.registry import make_reader, make_window_reader, sized_for
from txlcli.core.reading.scoring import Stream


def sample_positions(count: int, *, longest: int, sample_size: int, seed: int) -> NDArray[np.int64]:
    """Sample distinct positions of T predicted tokens that have `longest` tokens before them, in order.

    A larger sample contains the smaller one of the same seed, and a longer context changes as few positions as
    possible, so that computed losses can be reused.
    """
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[order >= longest - 1][:sample_size])


def read_length(model: LanguageModel, settings: EvalSettings, context_len: int) -> int:
    """Return how many of the last c tokens a model reads: all, or at most the positions that a window has."""
    longest = model.settings.longest_window if settings.mem_len == 0 else None
    return context_len if longest is None else min(context_len, longest)


def context_losses(
    stream: Stream, positions: NDArray[np.integer], *, context_len: int
) -> Iterator[tuple[NDArray[np.integer], NDArray[np.float32]]]:
    """Yield positions and the losses of their targets in nats, each from the last c inputs only, W at most at once.

    W is the batch size of the settings, and M = 0 a model without memory. Positions (P,) are at least c - 1; c is a
    result of `read_length`.
    """
    model, settings, precision = stream.model, stream.settings, stream.precision
    batches = np.array_split(positions, -(-len(positions) // settings.batch_size))  # nearly equal, the largest first
    size = len(batches[0])
    if settings.mem_len == 0 and not model.settings.recurrent_state:
        window = dataclasses.replace(settings, seg_len=context_len)
        reader = make_window_reader(model, window, batch_size=size, precision=precision)
    else:  # nothing comes before the c tokens
        reader = make_reader(model, sized_for(model, settings, context_len), batch_size=size, precision=precision)
    before = np.arange(1 - context_len, 1)  # (C,)
    for batch in batches:
        padded = np.resize(batch, size)  # fills the reader's batch; the repeated positions are dropped
        read = torch.from_numpy(stream.inputs[padded[:, None] + before].astype(np.int64)).to(reader.device)  # (W, C)
        targets = torch.from_numpy(stream.targets[padded, None].astype(np.int64)).to(reader.model.targets_device)
        reader.reset()
        losses = reader.losses(reader.read_last(read), targets)[: len(batch), 0]
        yield batch, losses.float().cpu().numpy()
