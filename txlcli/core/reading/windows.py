"""Evaluation without recurrence: every prediction from a window of the text, computed anew (section 4.5).

This is how models without memory are evaluated: the window slides over the text, and only its last positions count.
The first window counts whole, since none of its positions could have seen more; so windows grow up to their length.

Axes: W windows side by side, N window length (attention length), S stride, T tokens scored.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.core.kernels.cuda_graph import CaptureGraph
from txlcli.core.kernels.device import send
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.scoring import Scores, Stream, Tokens

Positions = NDArray[np.int64]
CPU_TOKENS = 1 << 13
"""Tokens that a CPU reads at once: the keys and values of 285M parameters take 1.3 GB in fp32."""
GPU_TOKENS = 1 << 15
"""Tokens that a GPU reads at once: 5 GB likewise."""
LOGITS_AT_ONCE = 1 << 28
"""Logits that are computed at once: 1 GB in fp32."""


def windows_at_once(model: LanguageModel, length: int) -> int:
    """Return the default number of windows of a length that are read side by side."""
    tokens = CPU_TOKENS if model.device.type == "cpu" else GPU_TOKENS
    if model.hidden_are_logits:
        tokens = min(tokens, LOGITS_AT_ONCE // model.vocab_size)
    return max(1, tokens // length)


def score_windows(
    stream: Stream,
    *,
    stride: int,
    share: tuple[int, int] = (0, 1),
    on_hidden: Callable[[Positions, Tensor], None] | None = None,
) -> Scores:
    """Score every target from the last N tokens before it.

    A stride S of 1 predicts one token per window, exactly. With more, the first predictions of a window see N - S + 1.
    A share of (r, n) scores every n-th batch of windows, from batch r on; the losses of all others are 0. `on_hidden`
    is called with the positions (W, c) that count in each batch, and their last hidden states (W, c, d).
    """
    started = time.perf_counter()
    count = len(stream.targets)
    length = min(stream.settings.seg_len, count)
    losses = torch.zeros(count, device=stream.model.device)
    first_batch, processes = share
    all_batches = _batches(count, length, stream.settings.batch_size, stride)
    batches = islice(all_batches, first_batch, None, processes)
    tokens = count * length // stride
    for scored, window_losses in read_windows(stream, batches, length, tokens=tokens, on_hidden=on_hidden):
        losses[scored] = window_losses
        stream.on_tokens(int(scored[-1, -1]) + 1)
    return Scores(losses.cpu().numpy(), time.perf_counter() - started, lanes=1)


def read_windows(
    stream: Stream,
    batches: Iterable[tuple[Positions, int]],
    length: int,
    *,
    tokens: int = 0,
    on_hidden: Callable[[Positions, Tensor], None] | None = None,
) -> Iterator[tuple[Positions, Tensor]]:
    """Read windows of N = `length` tokens, each from an empty memory; yield positions and their losses, (W, c) each.

    A batch has the last positions (W,) of windows that are read together, and how many of their last positions count,
    c. `tokens` are those of all windows, as far as it is known.
    """
    model = stream.model
    reader = None
    before = np.arange(1 - length, 1)
    for lasts, counted in batches:
        if reader is None or reader.settings.batch_size != len(lasts):  # some batches may have fewer
            settings = stream.settings.with_batch_size(len(lasts))
            reader = make_reader(model, settings, length=length, tokens=tokens)
            model = reader.model  # further readers need no copy of their own
        reader.reset()
        positions = lasts[:, None] + before  # (W, N)
        inputs = _sent(stream.inputs[positions], reader.device)
        hidden = reader.read_last(inputs, count=counted)
        scored = positions[:, length - counted :]
        if on_hidden:
            on_hidden(scored, hidden)
        targets = _sent(stream.targets[scored], model.targets_device)
        yield scored, reader.losses(hidden, targets).float()


def _sent(tokens: Tokens, device: torch.device) -> Tensor:
    return send(torch.from_numpy(tokens.astype(np.int64)), device)


def _batches(count: int, attn_len: int, windows: int, stride: int) -> Iterator[tuple[Positions, int]]:
    """Yield the last positions of windows that are read together, and how many of their last positions count."""
    edges = [0, *range(attn_len, count, stride), count]
    for counted, parts in groupby(pairwise(edges), key=lambda part: part[1] - part[0]):
        lasts = np.array([end - 1 for _, end in parts])
        for start in range(0, len(lasts), windows):
            yield lasts[start : start + windows], counted


class WindowReader(Reader):
    """Reads one text token by token with a model that has no memory: the window is computed anew for every token."""

    def _prepare(self, model: LanguageModel, tokens: int) -> LanguageModel:
        self._reader = make_reader(model, self.settings, by_tokens=True, tokens=tokens)
        return self._reader.model

    def _set_up(self, capture_graph: CaptureGraph | None) -> None:
        self._window = torch.empty(1, 0, dtype=torch.int64, device=self.device)

    @property
    def has_captured(self) -> bool:
        return self._reader.has_captured

    def reset(self) -> None:
        self._reader.reset()
        self._window = self._window[:, :0]

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        if count > 1:  # a window for each position that counts
            first = tokens.shape[1] - count + 1
            parts = [tokens[:, :first], *tokens[:, first:].split(1, dim=1)]
            hidden = [self._run(part, count=1) for part in parts]
            return torch.cat(hidden, dim=1)
        window_len = self._window.shape[1]
        self._window = torch.cat([self._window, tokens], dim=1)[:, -self.seg_len :]
        if window_len + tokens.shape[1] <= self.seg_len:  # the window still grows: what was read stays valid
            return self._reader.read_last(tokens, count)
        self._reader.reset()
        return self._reader.read_last(self._window, count)
