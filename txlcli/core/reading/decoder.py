"""Read tokens in order, with the projected keys and values of the past kept, for evaluation and generation.

The weights do not change here, so keys and values stay as they were projected, in a buffer that slides, and distances
are projected once. It computes the same function as `TransformerXL.forward` with memory.

If memory keeps layer outputs, they are projected when a segment ends, and replace the keys and values of its layer
inputs.

Axes: B batch, L segment, M memory, H heads, D head width, d model width, n distances.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from txlcli.config.settings import SameLength
from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.cuda_graph import CaptureGraph, captured_or_called, graphs_of_one_pool
from txlcli.core.kernels.device import check_free_memory, product_dtype
from txlcli.core.model.layer import rotated
from txlcli.core.model.transformer_xl import TransformerXL, last_output
from txlcli.core.reading.graphs import MAX_PHASES, GraphStep, SegmentGraphs
from txlcli.core.reading.past import BufferRange, SlidingBuffer, keep_outputs
from txlcli.core.reading.reader import Reader, Reading


def key_limit(same_length: SameLength, mem_len: int) -> int | None:
    """Return the largest number of keys a query may see, itself included; None is all of memory and segment.

    A window of the model is one more limit. A model without memory reads each segment from its first token, so there is
    no length to make the same.
    """
    if same_length == "off" or mem_len == 0:
        return None
    return mem_len + 1 if same_length == "m_plus_one" else mem_len


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """CUDA graphs that a decoder reads by; on a CPU, the functions that they would repeat are called anew."""

    replay_steps: bool
    """Read single tokens by a graph: launching kernels takes longer than running them."""
    replay_segments: bool
    """Read segments of L tokens by graphs, once the memory is full."""
    capture_graph: CaptureGraph

    @classmethod
    def of(cls, model: TransformerXL) -> "Graphs":
        """Return the graphs for the device and the attention backend of a model."""
        enabled = model.device.type == "cuda" and model.attention_backend != "reference"
        capture_graph = captured_or_called(graphs_of_one_pool())
        return cls(replay_steps=enabled, replay_segments=enabled, capture_graph=capture_graph)


class Decoder(Reader):
    """Feeds segments of up to L tokens through a model and remembers the last M positions.

    Absolute positions count in segments, or in windows of up to M tokens. `graphs` is `Graphs.of(model)` by default.
    """

    model: TransformerXL

    def __init__(self, model: TransformerXL, reading: Reading, graphs: Graphs | None = None) -> None:
        super().__init__(model, reading)
        if reading.compiles:
            self.model.compile_reading()
        settings, in_windows = reading.settings, reading.in_windows
        self.mem_len = model.memory_size(settings.mem_len)
        """Positions that are remembered: M, or W - 1 if the model has a shorter window."""
        self._limit = smallest_limit(key_limit(settings.same_length, settings.mem_len), model.settings.window)
        self._zeros = self.mem_len if model.memory_starts_full and not in_windows else 0
        self._period = settings.mem_len if in_windows else self.seg_len
        """Tokens after which absolute positions begin anew."""
        model.encoding.check_positions(self._period)
        key_len = self.mem_len + self.seg_len
        self.reach = min(key_len, self._limit or key_len)
        """The largest number of keys that a query sees."""
        self._graphs = graphs or Graphs.of(model)
        slack = max(self.seg_len, self.mem_len // 4)  # sliding moves M positions, once every `slack` positions
        phases = math.ceil(slack / self.seg_len)
        self._replay_segments = self._graphs.replay_segments and phases <= MAX_PHASES
        self.housekeeping_interval = phases * self.seg_len if self._replay_segments else slack
        self.capacity = self.mem_len + self.housekeeping_interval
        """Positions that the buffer holds before it slides."""
        self._range = BufferRange(self.capacity)
        self._allocate()
        self.observed = False
        """True while hooks observe the layers (`attention_maps`): a CUDA graph would bypass them."""
        self._graph_step: GraphStep | None = None  # made when the first single token is read
        self._segment_graphs: SegmentGraphs | None = None  # made when the first segment after a full memory is read
        self.reset()

    @torch.inference_mode()
    def _allocate(self) -> None:
        """Make buffers for keys, values and, if memory keeps them, outputs of all layers; project the distances."""
        sizes, batch_size, limit = self.model.settings, self.reading.batch_size, self.reading.settings.max_distance
        dtype = product_dtype(self.reading.precision, self.model.dtype)
        shape = (batch_size, sizes.n_heads, self.capacity, sizes.d_head)
        check_free_memory(2 * sizes.n_layers * math.prod(shape) * dtype.itemsize, self.device)
        self._buffers = [SlidingBuffer(shape, self._range, self.device, dtype) for _ in range(sizes.n_layers)]
        self._outputs: Tensor | None = None  # of the present segment, (N, B, L, d)
        if sizes.depends_on_segments and self.mem_len and not self.reading.in_windows:  # a window is one segment
            dtype = torch.promote_types(self.model.dtype, torch.float32)
            kept = (sizes.n_layers, batch_size, self.seg_len, sizes.d_model)
            self._outputs = torch.zeros(kept, dtype=dtype, device=self.device)
        with self._autocast:
            terms = self.model.projected_terms(self.reach, max_distance=limit)
            self._terms = [_contiguous(added.without_repetition(limit)) for added in terms]

    @torch.inference_mode()
    def reset(self) -> None:
        self._range.start, self._range.end, self._read_before = 0, self._zeros, 0
        if self._zeros:
            zero = torch.zeros(1, 1, self.model.settings.d_model, device=self.device, dtype=self.model.dtype)
            self._write([zero] * len(self._buffers), self._in_stream(-self._zeros, 0), at=0)

    def _write(self, remembered: Iterable[Tensor], positions: Tensor, *, at: int) -> None:
        """Write keys and values into the buffers, from slot `at` on.

        They are of hidden states of each layer, (B or 1, x or 1, d), at positions (x,) of the stream.
        """
        rotation = self.model.encoding.rotation(positions)
        for layer, buffer, hidden in zip(self.model.layers, self._buffers, remembered, strict=True):
            with self._autocast:
                keys, values = layer.attention.project_keys_values(layer.attention_input(hidden))
                keys, values = (tensor.expand(-1, -1, len(positions), -1) for tensor in (keys, values))
                buffer.write(keys if rotation is None else rotation.apply(keys), values, at)

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        length = tokens.shape[1]
        self._make_room(length)
        key_len = self._range.count + length
        reach = min(key_len, self._limit or key_len)
        with self._autocast:
            positions = self._positions(length)
            hidden = self.model.embed(tokens, positions)
            if length == 1 and self._graphs.replay_steps and not self.observed:
                hidden = self._replay_step(hidden, positions, reach)[:, 1 - count :]  # count is 0 or 1
            else:
                stream = self._in_stream(self._read_before, self._read_before + length)
                recurs = length == count == self.seg_len and self._range.count == self.mem_len  # a phase of the buffer
                if recurs and self._replay_segments and not self.observed:
                    hidden = self._replay_segment(hidden, positions, stream)
                else:  # a segment that is not complete has a length that occurs once
                    is_usual = length == self.seg_len or not self.reading.compiles
                    with contextlib.nullcontext() if is_usual else self.model.uncompiled():
                        hidden = self._through_layers(hidden, positions, stream, reach=reach, count=count)
        segment_len = self._in_segment + length  # so far
        self._read_before += length
        continues = self.reading.by_tokens and segment_len < self.seg_len
        self._range.advance(length, mem_len=self.capacity if continues else self.mem_len)
        if self._outputs is not None and not continues:  # replace the keys and values of the inputs of the layers
            kept = min(segment_len, self.mem_len)
            stream = self._in_stream(self._read_before - kept, self._read_before)
            self._write(self._outputs[:, :, segment_len - kept : segment_len], stream, at=self._range.end - kept)
        normed: Tensor = self.model.final_norm(hidden)
        return normed

    def _through_layers(self, hidden: Tensor, positions: Tensor, stream: Tensor, *, reach: int, count: int) -> Tensor:
        """Return the last layer's output (B, count, d) for embeddings (B, l, d), at positions (l,) of the stream."""
        rotation = self.model.encoding.rotation(stream)
        terms = rotated([layer_terms.nearest(reach) for layer_terms in self._terms], rotation)
        if self._outputs is None:
            return last_output(self.model.run_layers(hidden, self._buffers, terms, positions, count=count))
        layers = self.model.run_layers(hidden, self._buffers, terms, positions)
        length, first = hidden.shape[1], self._in_segment
        in_segment = torch.arange(first, first + length, device=self.device)
        return last_output(keep_outputs(layers, self._outputs, in_segment))[:, length - count :]

    def _replay_segment(self, embedded: Tensor, positions: Tensor, stream: Tensor) -> Tensor:
        if self._segment_graphs is None:
            layers = functools.partial(self._through_layers, reach=self.reach, count=self.seg_len)
            self._segment_graphs = SegmentGraphs(layers, embedded, self._graphs.capture_graph)
        return self._segment_graphs.read(embedded, positions, stream, phase=self._range.start)

    def _replay_step(self, embedded: Tensor, position: Tensor, reach: int) -> Tensor:
        if self._graph_step is None:
            self._graph_step = GraphStep(
                self.model,
                self._buffers,
                self._terms,
                batch_size=embedded.shape[0],
                dtype=embedded.dtype,
                outputs=self._outputs,
                capture_graph=self._graphs.capture_graph,
            )
        return self._graph_step.read(
            embedded,
            at=self._range.end,
            reach=reach,
            position=position,
            in_stream=self._read_before,
            in_segment=self._in_segment,
        )

    def _in_stream(self, first: int, end: int) -> Tensor:
        """Return these positions since the text began; they are negative before it."""
        return torch.arange(first, end, device=self.device)

    def _positions(self, length: int) -> Tensor:
        """Return positions (l,) in the segment of the next tokens.

        Without memory every call reads a new segment, except by tokens.
        """
        first = self._read_before % self._period if self.mem_len or self.reading.by_tokens else 0
        return torch.arange(first, first + length, device=self.device) % self._period

    def _make_room(self, length: int) -> None:
        """Slide the buffers if they have no room for `length` more positions."""
        if self._range.end + length <= self.capacity:
            return
        for buffer in self._buffers:
            buffer.slide()
        self._range.start, self._range.end = 0, self._range.end - self._range.start


def smallest_limit(*limits: int | None) -> int | None:
    """Return the smallest of the limits that are set, or None if none is."""
    return min((limit for limit in limits if limit is not None), default=None)


def _contiguous(terms: ScoreTerms) -> ScoreTerms:
    key = terms.position_key
    return terms if key is None else dataclasses.replace(terms, position_key=key.contiguous())
