"""Read tokens in order, with the projected keys and values of the past kept, for evaluation and generation.

The weights do not change here, so keys and values stay as they were projected, in a buffer that slides, and distances
are projected once. It computes the same function as `TransformerXL.forward` with memory. The memory that training
carries is `core.model.layer.HiddenMemory`.

On CUDA, graphs read single tokens and whole segments, from the embedding to the final norm, and compute their losses:
they repeat the same kernels on the same memory. For a token, its slot in the buffers and how far it sees are
on the device; it scores up to a quarter more keys. Once the memory is full, a segment finds the keys of the past at one
of a few offsets in the sliding buffer, its phases: the slack of the buffer is a multiple of the segment, so that they
recur.

Axes: B batch, C capacity of the buffers, L segment, M memory, H heads, D head width, d model width, n distances.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from txlcli.core.backend import Attend, Rotation, ScoreTerms, round_up
from txlcli.core.kernels.attention_slots import SlotAttention
from txlcli.core.kernels.compilation import compiler_problem, runs_triton
from txlcli.core.kernels.cuda_graph import CaptureGraph, GraphPool, GraphsByPhase, captured_or_called, without_owner
from txlcli.core.kernels.device import check_free_memory, product_dtype, row_multiple, send
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.layer import Layer, Past, rotated
from txlcli.core.model.softmax import fill_up, tail_capacity
from txlcli.core.model.transformer_xl import TransformerXL, last_output
from txlcli.core.reading.reader import Reader

MIN_TAIL_SHARE = 1 / 64
"""Share of the targets for which a tail of the softmax has room, at least."""
MAX_PHASES = 16
"""Largest number of phases for which graphs are captured; each takes as long as a few segments, and some memory."""
MIN_FLOPS_TO_COMPILE = 2.4e15
"""Operations of layers that take an H200 three quarters of a minute in bf16; compiling saves as long as it takes."""


@dataclass
class BufferRange:
    """The part of the buffers of all layers that is remembered."""

    start: int = 0
    """Slot of the oldest position that is remembered."""
    end: int = 0
    """Slot of the next position."""

    @property
    def count(self) -> int:
        """Number of positions that are remembered."""
        return self.end - self.start

    def advance(self, count: int, *, mem_len: int) -> None:
        """Remember `count` more positions, `mem_len` in all at most."""
        self.end += count
        self.start = max(self.start, self.end - mem_len)


class SlidingBuffer(Past):
    """Projected keys and values of one layer, (B, H, C, D) each, with zeros after them where rows are padded.

    Args:
        shape: B, H, C, D.
        buffer_range: the part that is remembered, shared by all layers; the decoder advances it after each segment.
        device: of the buffer.
        dtype: of the buffer.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], buffer_range: BufferRange, device: torch.device, dtype: torch.dtype
    ) -> None:
        *outer, width = shape
        padded_width = round_up(width, row_multiple(device))
        self.keys = torch.zeros(*outer, padded_width, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self._range = buffer_range

    def extend(self, keys: Tensor, values: Tensor, layer: Layer, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, H, L, D) behind those that are remembered; return all of them as views."""
        self.write(keys, values, self._range.end)
        seen = slice(self._range.start, self._range.end + keys.shape[2])
        return self.keys[:, :, seen], self.values[:, :, seen]

    def write(self, keys: Tensor, values: Tensor, at: int) -> None:
        """Put keys and values, (B or 1, H, x, D), into the slots from `at` on."""
        slots = slice(at, at + keys.shape[2])
        width = keys.shape[3]
        self.keys[:, :, slots, :width] = keys
        self.values[:, :, slots, :width] = values

    def slide(self) -> None:
        """Move the remembered positions to the beginning."""
        for buffer in (self.keys, self.values):
            remembered = buffer[:, :, self._range.start : self._range.end].clone()  # source and target may overlap
            buffer[:, :, : self._range.count] = remembered


class FixedSlots(Past):
    """The whole buffer of a layer, into which each call writes one token at a slot given on the device.

    Args:
        buffer: of the layer; its tensors must stay the same.
        at: (1,) slot of the token.
        attend: computes the attention over all slots.
    """

    def __init__(self, buffer: SlidingBuffer, at: Tensor, attend: Attend) -> None:
        self._buffer = buffer
        self._at = at
        self.attend = attend

    def extend(self, keys: Tensor, values: Tensor, layer: Layer, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, H, 1, D) of the token; return the whole buffers (B, H, C, D)."""
        all_keys = self._buffer.keys
        all_values = self._buffer.values
        width = keys.shape[3]
        all_keys[..., :width].index_copy_(2, self._at, keys.to(all_keys.dtype))
        all_values[..., :width].index_copy_(2, self._at, values.to(all_values.dtype))
        return all_keys, all_values


class GraphOfLosses:
    """Computes the losses of as many targets in each call by a CUDA graph.

    Args:
        model: has the softmax.
        precision: context in which it computes.
        capture_graph: see `GraphsByPhase`.
    """

    def __init__(
        self, model: LanguageModel, precision: AbstractContextManager[object], capture_graph: CaptureGraph
    ) -> None:
        self._model = model
        self._precision = precision
        self._capture_graph = capture_graph
        self._tail_sizes = [0] * (len(model.softmax.bands) - 1)
        """Rows of each tail of the softmax in the graph."""
        self._graph = self._new_graph()

    def _new_graph(self) -> GraphsByPhase:
        return GraphsByPhase(without_owner(self._losses_of), self._capture_graph)

    def __call__(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """See `Reader.losses`."""
        ids = targets.flatten()
        if self._tail_sizes:
            ids = send(torch.cat([ids, *self._rows_of_tails(ids)]), self._model.device)
        return self._graph(hidden, ids)

    def _losses_of(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Return the losses (B, L), given targets and the rows of those in each tail, one after another."""
        targets, *rows = ids.split([hidden.shape[0] * hidden.shape[1], *self._tail_sizes])
        with self._precision:
            return self._model.losses(hidden, targets.view(hidden.shape[:2]), rows)

    def _rows_of_tails(self, targets: Tensor) -> list[Tensor]:
        """Return `Objective.tail_rows` of targets (T,) on the host; where a tail has too few, it gets more."""
        count = len(targets)
        padded = []
        for number, rows in enumerate(self._model.softmax.rows_of_tails(targets)):
            if len(rows) > self._tail_sizes[number]:
                self._tail_sizes[number] = tail_capacity(max(len(rows), count * MIN_TAIL_SHARE), count)
                self._graph = self._new_graph()  # sizes of a graph do not change
            padded.append(fill_up(rows, self._tail_sizes[number], count))
        return padded


class Decoder(Reader):
    """Feeds segments of up to L tokens through a model and remembers the last M positions.

    Graphs are not made by default if attention is the definition.
    """

    model: TransformerXL

    def _prepare(self, model: LanguageModel, tokens: int) -> LanguageModel:
        return model.for_reading(compiles=should_compile(model, tokens))

    def _set_up(self, capture_graph: CaptureGraph | None) -> None:
        self.model.encoding.check_positions(self.seg_len)
        if capture_graph is None and self.device.type == "cuda" and self.model.attention_backend != "reference":
            capture_graph = captured_or_called(GraphPool())
        self._capture_graph = capture_graph
        self.replays_tokens = capture_graph is not None
        """True to read single tokens by a graph: launching kernels takes longer than running them."""
        self._set_lengths()
        self._allocate()
        self._captured = dict[Hashable, GraphsByPhase]()
        if capture_graph is not None:
            self._make_graphs(capture_graph)
        self.reset()

    def _set_lengths(self) -> None:
        """Set how many positions are remembered and seen, and for how many the buffers have room."""
        sizes = self.model.settings
        self.mem_len = sizes.visible_memory(self.settings.mem_len)
        """Positions that are remembered: M, or W - 1 if the model has a shorter window."""
        key_len = self.mem_len + self.seg_len
        self.reach = min(key_len, self.settings.key_limit or key_len, sizes.window or key_len)
        """The largest number of keys that a query sees."""
        slack = max(self.seg_len, self.mem_len // 4)  # sliding moves M positions, once every `slack` positions
        phases = math.ceil(slack / self.seg_len)
        self._replays_segments = self.replays_tokens and phases <= MAX_PHASES
        if self._replays_segments:
            slack = phases * self.seg_len
        self.housekeeping_interval = slack
        self.capacity = self.mem_len + self.housekeeping_interval
        """Positions that the buffer holds before it slides."""

    def _make_graphs(self, capture_graph: CaptureGraph) -> None:
        """Make the graphs of single tokens, whole segments, and the losses of both, which are captured when used."""
        read_segment = partial(without_owner(self._read_segment), reach=self.reach, count=self.seg_len)
        self._token = GraphsByPhase(without_owner(self._read_token), capture_graph)
        self._segment = GraphsByPhase(read_segment, capture_graph)
        self._losses = {}
        for length in (1, self.seg_len):
            self._losses[length] = GraphOfLosses(self.model, self._autocast, capture_graph)

    @property
    def has_captured(self) -> bool:
        return self.replays_tokens and (self._token.has_captured or self._segment.has_captured)

    def captured(self, function: Callable[..., Tensor], options: Hashable) -> Callable[..., Tensor]:
        if self._capture_graph is None:
            return super().captured(function, options)
        key = function, options
        if key not in self._captured:
            call = partial(without_owner(self._call), function, options)
            self._captured[key] = GraphsByPhase(call, self._capture_graph)
        return self._captured[key]

    def _call(self, function: Callable[..., Tensor], options: Hashable, *tensors: Tensor) -> Tensor:
        return super().captured(function, options)(*tensors)

    @torch.inference_mode()
    def _allocate(self) -> None:
        """Make buffers for keys and values of all layers; project the distances."""
        self._range = BufferRange()
        sizes = self.model.settings
        limit = self.settings.max_distance
        dtype = product_dtype(self.model.backend.precision, self.model.dtype)
        shape = (self.settings.batch_size, sizes.n_heads, self.capacity, sizes.d_head)
        check_free_memory(2 * sizes.n_layers * math.prod(shape) * dtype.itemsize, self.device)
        self._buffers = [SlidingBuffer(shape, self._range, self.device, dtype) for _ in range(sizes.n_layers)]
        with self._autocast:
            terms = self.model.projected_terms(self.reach, max_distance=limit)
        self._terms = [added.without_repetition(limit) for added in terms]
        if self.replays_tokens:
            self._token_terms = [added.to(dtype) for added in self._terms]
            self._slots = torch.arange(self.capacity, device=self.device)

    @torch.inference_mode()
    def reset(self) -> None:
        memory = self._first_memory()
        self._range.start = 0
        self._range.end = memory[0].shape[1]
        self._read_before = 0
        rotation = self.model.encoding.rotation(torch.arange(-self._range.end, 0, device=self.device))
        for layer, buffer, zeros in zip(self.model.layers, self._buffers, memory, strict=True):
            if self._range.end:
                with self._autocast:
                    buffer.write(*layer.project_past(zeros, rotation), at=0)

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        length = tokens.shape[1]
        self._make_room(length)
        with self._autocast:
            hidden = self._read(tokens, count)
        self._read_before += length
        mem_len = self.mem_len
        if self._in_segment:
            mem_len = self.capacity  # nothing is forgotten before the segment ends
        self._range.advance(length, mem_len=mem_len)
        return hidden

    def _read(self, tokens: Tensor, count: int) -> Tensor:
        """Return the last hidden states (B, count, d) of tokens (B, l): by a graph if one reads them."""
        length = tokens.shape[1]
        remembered = self._range.count
        before = self._read_before
        reach = min(remembered + length, self.reach)
        if length == 1 and self.replays_tokens:
            hidden = self._token(tokens, integers=(before, self._range.end, reach))
            return hidden[:, 1 - count :]  # `count` is 0 or 1
        recurs = length == count == self.seg_len and remembered == self.mem_len  # a phase of the buffer
        if recurs and self._replays_segments:
            return self._segment(tokens, integers=(before,), phase=self._range.start)
        # A segment that is not complete has a length that occurs once.
        is_usual = length == self.seg_len or not self.model.backend.compiles_reading
        compiler = contextlib.nullcontext() if is_usual else self.model.uncompiled()
        with compiler:
            return self._read_segment(tokens, before, reach=reach, count=count)

    def _read_segment(self, tokens: Tensor, before: Tensor | int, *, reach: int, count: int) -> Tensor:
        """Return the last hidden states (B, count, d) of tokens (B, l), given the number of those before, (1,)."""
        offsets = torch.arange(tokens.shape[1], device=self.device)
        stream = offsets + before
        positions = self._positions(stream, offsets)
        terms = [layer_terms.nearest(reach) for layer_terms in self._terms]
        return self._through_layers(tokens, self._buffers, terms, stream, positions, count)

    def _read_token(self, tokens: Tensor, integers: Tensor) -> Tensor:
        """Return the last hidden states (B, 1, d) of tokens (B, 1).

        `integers` (3,) are the position since the text began, the slot in the buffers, and how many distances are seen.
        """
        stream, at, reach = integers.split(1)
        attend = SlotAttention(at - self._slots, reach)
        pasts = [FixedSlots(buffer, at, attend) for buffer in self._buffers]
        positions = self._positions(stream, torch.zeros_like(stream))
        return self._through_layers(tokens, pasts, self._token_terms, stream, positions, count=1)

    def _through_layers(
        self,
        tokens: Tensor,
        pasts: Sequence[Past],
        terms: Sequence[ScoreTerms],
        stream: Tensor,
        positions: Tensor,
        count: int,
    ) -> Tensor:
        """Return the last hidden states (B, count, d) of tokens (B, l), at positions (l,) of the stream and segment."""
        terms = rotated(terms, self.model.encoding.rotation(stream))
        embedded = self.model.embed(tokens, positions)
        outputs = self.model.run_layers(embedded, pasts, terms, positions, count=count)
        return self.model.final_hidden(last_output(outputs))

    def _positions(self, stream: Tensor, offsets: Tensor) -> Tensor:
        """Return positions (l,) in the segment, given those in the stream and in this call.

        Without memory every call reads a new segment, except by tokens.
        """
        if self.mem_len or self.by_tokens:
            return stream % self.seg_len
        return offsets

    @torch.inference_mode()
    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """See `Reader.losses`; graphs compute those of whole segments and of single tokens."""
        batch_size, length = targets.shape
        if not self.replays_tokens or batch_size != self.settings.batch_size or length not in self._losses:
            return super().losses(hidden, targets)
        return self._on_fast_path(partial(self._losses[length], hidden, targets))

    def _make_room(self, length: int) -> None:
        """Slide the buffers if they have no room for `length` more positions."""
        if self._range.end + length <= self.capacity:
            return
        for buffer in self._buffers:
            buffer.slide()
        self._range.end = self._range.count
        self._range.start = 0


def should_compile(model: LanguageModel, tokens: int) -> bool:
    """Return True if `reading_compile` says so; by default, if reading so many tokens takes a GPU much longer without.

    Compiling takes up to half a minute.
    """
    choice = model.backend.reading_compile
    if choice != "auto":
        return choice == "on"
    is_fast = model.device.type == "cuda" and model.attention_backend == "auto"
    if not (is_fast and runs_triton(model.device, model.dtype)):
        return False
    weights = sum(weight.numel() for name, weight in model.named_parameters() if name.startswith("layers."))
    if 2 * weights * tokens <= MIN_FLOPS_TO_COMPILE:
        return False
    problem = compiler_problem(model.device)
    if problem is not None:
        warnings.warn(f"layers are not compiled: {problem}", stacklevel=2)
    return problem is None
