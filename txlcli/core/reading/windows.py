"""Evaluation without recurrence: every prediction from a window of the text, computed anew (section 4.5).

This is how models without memory are evaluated: the window slides over the text, and only its last positions count.
The first window counts whole, since none of its positions could have seen more; so windows grow up to their length.

Axes: W windows side by side, N window length (attention length), S stride, T tokens scored.
"""

import dataclasses
import time
from collections.abc import Iterator
from itertools import groupby, islice, pairwise

import numpy as np
import torch
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.scoring import Scores, Stream

TOKENS_AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 15}  # the keys of 285M parameters: 1.3 and 5 GB in fp32


def windows_at_once(device: torch.device, length: int) -> int:
    """Return the default number of windows of a length that are read side by side."""
    return max(1, TOKENS_AT_ONCE[device.type] // length)


def score_windows(stream: Stream, *, stride: int, share: tuple[int, int] = (0, 1)) -> Scores:
    """Score every target from the last N tokens before it.

    A stride S of 1 predicts one token per window, exactly. With more, the first predictions of a window see N - S + 1.
    A share of (r, n) scores every n-th batch of windows, from batch r on; the losses of all others are 0.
    """
    model, device, count, started = stream.model, stream.model.device, len(stream.targets), time.perf_counter()
    inputs, targets = (
        torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(device) for ids in (stream.inputs, stream.targets)
    )
    losses = torch.zeros(count, device=device)
    sized = dataclasses.replace(stream.settings, seg_len=min(stream.settings.seg_len, count))
    reader: Reader | None = None
    tokens = count * sized.seg_len // stride
    for firsts, counted in islice(_batches(count, sized, stride), share[0], None, share[1]):
        if reader is None or reader.settings.batch_size != len(firsts):  # some batches may have fewer
            reader = make_reader(model, dataclasses.replace(sized, batch_size=len(firsts)), tokens=tokens)
            model = reader.model  # further readers need no copy of their own
        reader.reset()
        positions = torch.tensor(firsts, device=device)[:, None] + torch.arange(sized.seg_len, device=device)  # (W, N)
        hidden = reader.read_last(inputs[positions], count=counted)
        scored = positions[:, sized.seg_len - counted :]
        losses[scored] = reader.losses(hidden, targets[scored]).float()
        stream.on_tokens(firsts[-1] + sized.seg_len)
    return Scores(losses.cpu().numpy(), time.perf_counter() - started, lanes=1)


def _batches(count: int, settings: EvalSettings, stride: int) -> Iterator[tuple[list[int], int]]:
    """Yield the first positions of windows that are read together, and how many of their last positions count."""
    attn_len, windows = settings.seg_len, settings.batch_size
    edges = [0, *range(attn_len, count, stride), count]
    for counted, parts in groupby(pairwise(edges), key=lambda part: part[1] - part[0]):
        firsts = [end - attn_len for _, end in parts]
        for start in range(0, len(firsts), windows):
            yield firsts[start : start + windows], counted


class WindowReader(Reader):
    """Reads one text token by token with a model that has no memory: the window is computed anew for every token."""

    def __init__(self, model: LanguageModel, settings: EvalSettings) -> None:
        super().__init__(model, settings)
        self._reader = make_reader(self.model, settings, by_tokens=True)
        self._window = torch.empty(1, 0, dtype=torch.int64, device=self.device)

    def reset(self) -> None:
        self._reader.reset()
        self._window = self._window[:, :0]

    def read_last(self, tokens: Tensor, count: int = 1) -> Tensor:
        first = tokens.shape[1] - count + 1  # tokens up to the first position that counts
        hidden = [self._run(tokens[:, :first], count=1)]
        hidden += [self._run(tokens[:, at : at + 1], count=1) for at in range(first, tokens.shape[1])]
        return torch.cat(hidden, dim=1)

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        """Read (1, T) and return the last hidden state of the last position, (1, 1, d); `count` is 1."""
        window_len = self._window.shape[1]
        self._window = torch.cat([self._window, tokens], dim=1)[:, -self.seg_len :]
        if window_len + tokens.shape[1] <= self.seg_len:  # the window still grows: what was read stays valid
            return self._reader.read_last(tokens)
        self._reader.reset()
        return self._reader.read_last(self._window)
