"""Reading tokens in order with projected keys and values kept, for evaluation and generation.

The weights do not change here, so keys and values of the past are kept as they were projected, in a buffer that
slides, and the distances are projected once. It is the same function as `TransformerXL.forward` with memory.

Axes: B lanes, L segment, M memory, H heads, D head width, d model width, n distances.
"""

import dataclasses
import math

import torch
from torch import Tensor

from txlcli.config.model_settings import MemoryStart
from txlcli.config.settings import SameLength
from txlcli.core.kernels.device import DTYPES, check_free_memory, row_multiple
from txlcli.core.model.attention import ScoreTerms
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.graph_step import FixedStep
from txlcli.core.reading.reader import Reader

MOVED_AT_ONCE = 256
"""Positions of a sliding buffer, on a CPU."""


def key_limit(same_length: SameLength, mem_len: int) -> int | None:
    """Keys that every query may see at most, itself included; None is all of memory and segment.

    A model without memory reads each segment from its first token on, so there is nothing to make the same.
    """
    if same_length == "off" or mem_len == 0:
        return None
    return mem_len + 1 if same_length == "m_plus_one" else mem_len


def records_steps(device: torch.device) -> bool:
    """Whether single tokens are read by repeating a recording: where launching kernels takes longer than they do."""
    return device.type == "cuda"


class _KeyBuffer:
    """Projected keys and values of one layer, (B, H, capacity, D) each, with zeros after them where rows are wider."""

    def __init__(self, shape: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype) -> None:
        *outer, width = shape
        wide = -(-width // row_multiple(device)) * row_multiple(device)
        self.keys, self.values = (torch.zeros(*outer, wide, dtype=dtype, device=device) for _ in range(2))

    def write(self, keys: tuple[Tensor, Tensor], at: int, *, copies: int = 1) -> None:
        """Put keys and values (B, H, x, D) at a place; of a single position as many copies as are asked for."""
        count, width = keys[0].shape[2] * copies, keys[0].shape[3]
        self.keys[:, :, at : at + count, :width] = keys[0]
        self.values[:, :, at : at + count, :width] = keys[1]

    def slide(self, first: int, end: int) -> None:
        """Move the positions `first` .. `end` - 1 to the beginning."""
        at_once = MOVED_AT_ONCE if self.keys.device.type == "cpu" else max(1, end - first)
        for buffer in (self.keys, self.values):
            for at in range(0, end - first, at_once):
                count = min(at_once, end - first - at)
                # The two places may overlap. A copy of a few positions is still in a cache when it is written.
                buffer[:, :, at : at + count] = buffer[:, :, first + at : first + at + count].clone()


class Decoder(Reader):
    """Feeds segments of up to L tokens through the model and remembers the last M positions.

    Args:
        model: its weights must not change while the decoder is used, which copies some now and reads others later.
        lanes: B.
        mem_len: M.
        seg_len: the longest segment that will be read.
        same_length: which keys a query sees, see `key_limit`.
        max_distance: distances beyond it share one encoding.
        precision: number format of matrix products and of the buffer.
        memory_start: what stands before the first token; the model's own by default.
        period: tokens after which absolute positions begin anew; `seg_len` by default, as segments have them.

    Raises:
        UsageError: the model has learned fewer positions than that.
        MemoryError: the buffer is larger than what a CPU has free.
    """

    model: TransformerXL

    def __init__(
        self,
        model: TransformerXL,
        *,
        lanes: int,
        mem_len: int,
        seg_len: int,
        same_length: SameLength = "off",
        max_distance: int | None = None,
        precision: str = "fp32",
        memory_start: MemoryStart | None = None,
        period: int | None = None,
    ) -> None:
        super().__init__(model, seg_len=seg_len, precision=precision)
        self.mem_len = mem_len
        self._limit = key_limit(same_length, mem_len)
        settings = model.settings
        self._zeros = mem_len if (memory_start or settings.memory_start) == "zeros" else 0
        slack = max(seg_len, mem_len // 4)  # sliding moves M positions, once every `slack` positions
        shape = (lanes, settings.n_heads, mem_len + slack, settings.d_head)
        dtype = model.dtype if precision == "fp32" else DTYPES[precision]
        check_free_memory(2 * len(model.layers) * math.prod(shape) * dtype.itemsize, model.device)  # keys and values
        with torch.inference_mode():
            self._buffers = [_KeyBuffer(shape, model.device, dtype) for _ in model.layers]
            self.reach = min(mem_len + seg_len, self._limit or mem_len + seg_len)
            """Keys that a query sees at most."""
            with self._autocast:
                terms = self.model.score_terms(self.reach, max_distance=max_distance)
            self._terms = [_contiguous(one.without_repetition(max_distance, seg_len)) for one in terms]
        self._period = period or seg_len
        model.encoding.check_positions(self._period)
        self.watched = False
        """Whether hooks observe the layers (`maps`), which a recording would pass by."""
        self._fixed_step: FixedStep | None = None  # made when the first single token is read
        self._start = self._end = 0  # the remembered part of the buffers
        self._position = 0  # of the next token in its segment
        self.reset()

    @property
    def capacity(self) -> int:
        """Positions that the buffer holds before it slides."""
        return self._buffers[0].keys.shape[2]

    @property
    def housekeeping_interval(self) -> int:
        """Tokens from one slide of the buffer to the next."""
        return self.capacity - self.mem_len

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget everything that was read."""
        self._start, self._end, self._position = 0, self._zeros, 0
        if self._zeros:
            zero = torch.zeros(1, 1, self.model.settings.d_model, device=self.device, dtype=self.model.dtype)
            for layer, buffer in zip(self.model.layers, self._buffers, strict=True):
                with self._autocast:
                    keys = layer.attention.project_keys(layer.attention_input(zero))
                buffer.write((keys[0], keys[1]), 0, copies=self._zeros)

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> Tensor:
        """Read a segment (B, l), l <= L, and give its last hidden states (B, l, d)."""
        return self._run(tokens, count=tokens.shape[1])

    @torch.inference_mode()
    def read_last(self, tokens: Tensor, count: int = 1) -> Tensor:
        """Read (B, T), T any length, and give the last hidden states of the last `count` positions, (B, count, d).

        The last layer projects keys for all positions but attends from those `count` alone.
        """
        hidden, before = [], tokens.shape[1] - count
        for part in tokens.split(self.seg_len, dim=1):
            hidden.append(self._run(part, count=min(part.shape[1], max(0, part.shape[1] - before))))
            before -= part.shape[1]
        return torch.cat(hidden, dim=1)

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        """Read a segment (B, l); gives the last hidden states of its last `count` positions."""
        self._make_room(tokens.shape[1])
        keys = range(self._start, self._end + tokens.shape[1])  # places in the buffers
        reach = min(len(keys), self._limit or len(keys))
        with self._autocast:
            positions = self._next_positions(tokens.shape[1])
            hidden = self.model.embed(tokens, positions)
            if tokens.shape[1] == 1 and records_steps(self.device) and not self.watched:
                hidden = self._step_for(hidden).read(hidden, at=self._end, reach=reach, position=positions)
                hidden = hidden[:, 1 - count :]
            else:
                hidden = self._through_layers(hidden, positions, keys, reach=reach, count=count)
        self._end = keys.stop
        self._start = max(self._start, self._end - self.mem_len)
        normed: Tensor = self.model.final_norm(hidden)
        return normed

    def _through_layers(self, hidden: Tensor, positions: Tensor, keys: range, *, reach: int, count: int) -> Tensor:
        """The last layer's output (B, count, d) for embeddings (B, l, d), which are the last of the keys."""
        last, length = len(self._buffers) - 1, hidden.shape[1]
        for number, (layer, buffer) in enumerate(zip(self.model.layers, self._buffers, strict=True)):
            hidden = self.model.encoding.add(hidden, number, positions)
            attention_input = layer.attention_input(hidden)
            if number < last or count == length:
                query, new = layer.attention.project(attention_input)
            else:
                query, new = (
                    layer.attention.project_queries(attention_input[:, length - count :]),
                    layer.attention.project_keys(attention_input),
                )
                hidden = hidden[:, length - count :]
            buffer.write(new, self._end)
            if not query.shape[2]:
                break  # nothing of the last layer's output is asked for
            seen = (buffer.keys[:, :, keys.start : keys.stop], buffer.values[:, :, keys.start : keys.stop])
            hidden = layer.finish(hidden, layer.attention(query, seen, self._terms[number].nearest(reach)))
        return hidden

    def _step_for(self, embedded: Tensor) -> FixedStep:
        if self._fixed_step is None:
            buffers = [(buffer.keys, buffer.values) for buffer in self._buffers]
            lanes, dtype = embedded.shape[0], embedded.dtype
            self._fixed_step = FixedStep(self.model, buffers, self._terms, lanes=lanes, dtype=dtype)
        return self._fixed_step

    def _next_positions(self, length: int) -> Tensor:
        """Absolute positions of the next tokens (l,); without memory every reading is a segment of its own."""
        first = self._position if self.mem_len else 0
        self._position = (first + length) % self._period
        return torch.arange(first, first + length, device=self.device) % self._period

    def _make_room(self, length: int) -> None:
        """Let the buffers slide where they have no room for so many positions more."""
        if self._end + length <= self.capacity:
            return
        for buffer in self._buffers:
            buffer.slide(self._start, self._end)
        self._start, self._end = 0, self._end - self._start


def _contiguous(terms: ScoreTerms) -> ScoreTerms:
    key = terms.position_key
    return terms if key is None else dataclasses.replace(terms, position_key=key.contiguous())
