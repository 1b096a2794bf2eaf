"""Read tokens in order, with the projected keys and values of the past kept, for evaluation and generation.

The weights do not change here, so keys and values stay as they were projected, in a buffer that slides, and distances
are projected once. It computes the same function as `TransformerXL.forward` with memory.

If memory keeps layer outputs, they are projected when a segment ends, and replace the keys and values of its layer
inputs.

Axes: B batch, L segment, M memory, H heads, D head width, d model width, n distances.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Iterable

import torch
from torch import Tensor

from txlcli.config.model_settings import MemoryStart
from txlcli.config.settings import EvalSettings, SameLength
from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.cuda_graph import CaptureGraph, graphs_of_one_pool
from txlcli.core.kernels.device import check_free_memory, product_dtype
from txlcli.core.model.layer import rotated
from txlcli.core.model.transformer_xl import TransformerXL, last_output
from txlcli.core.reading.graphs import MAX_PHASES, GraphStep, SegmentGraphs
from txlcli.core.reading.past import BufferRange, SlidingBuffer, keep_outputs
from txlcli.core.reading.reader import Reader

GRAPHS_VARIABLE = "TXL_CUDA_GRAPHS"
"""Environment variable: 0 reads without CUDA graphs."""


def graphs_enabled() -> bool:
    """Return True unless the user has turned CUDA graphs off for reading."""
    return os.environ.get(GRAPHS_VARIABLE) != "0"


def key_limit(same_length: SameLength, mem_len: int) -> int | None:
    """Return the largest number of keys a query may see, itself included; None is all of memory and segment.

    A window of the model is one more limit. A model without memory reads each segment from its first token, so there is
    no length to make the same.
    """
    if same_length == "off" or mem_len == 0:
        return None
    return mem_len + 1 if same_length == "m_plus_one" else mem_len


class Decoder(Reader):
    """Feeds segments of up to L tokens through a model and remembers the last M positions.

    Absolute positions count in segments, or in windows of up to M tokens. See `Reader` for the other arguments.

    Args:
        memory_start: the memory before the first token; the model's own by default.
        replay_steps: read single tokens by a CUDA graph (on a CPU by the same function, called anew); by default on
            CUDA, where launching kernels takes longer than running them.
        replay_segments: read segments of L tokens by CUDA graphs, once the memory is full; by default on CUDA.
        capture_graph: makes the CUDA graphs.
    """

    model: TransformerXL

    def __init__(
        self,
        model: TransformerXL,
        settings: EvalSettings,
        *,
        batch_size: int,
        precision: str = "fp32",
        memory_start: MemoryStart | None = None,
        in_windows: bool = False,
        by_tokens: bool = False,
        replay_steps: bool | None = None,
        replay_segments: bool | None = None,
        capture_graph: CaptureGraph | None = None,
    ) -> None:
        super().__init__(
            model, settings, batch_size=batch_size, precision=precision, in_windows=in_windows, by_tokens=by_tokens
        )
        mem_len, seg_len, max_distance = settings.mem_len, settings.seg_len, settings.max_distance
        self.mem_len = model.memory_size(mem_len)
        """Positions that are remembered: M, or W - 1 if the model has a shorter window."""
        self._limit = smallest_limit(key_limit(settings.same_length, mem_len), model.settings.window)
        starts_full = (memory_start or model.settings.memory_start) == "zeros" and not in_windows
        self._zeros = self.mem_len if starts_full else 0
        backend, enabled = model.attention_backend, self.device.type == "cuda" and graphs_enabled()
        self._replay_steps = enabled and backend != "reference" if replay_steps is None else replay_steps
        slack = max(seg_len, self.mem_len // 4)  # sliding moves M positions, once every `slack` positions
        phases = math.ceil(slack / seg_len)
        # FlexAttention caches its masks outside a graph and may free them.
        can_replay = enabled and backend not in ("reference", "flex") if replay_segments is None else replay_segments
        self._replay_segments = can_replay and phases <= MAX_PHASES
        if self._replay_segments:
            slack = phases * seg_len
        self._range = BufferRange(self.mem_len + slack)
        self._buffers = self._empty_buffers(batch_size, product_dtype(precision, model.dtype))
        self._outputs = None if in_windows else self._empty_outputs(batch_size)  # a window is one segment
        key_len = self.mem_len + seg_len
        self.reach = min(key_len, self._limit or key_len)
        """The largest number of keys that a query sees."""
        with torch.inference_mode(), self._autocast:
            terms = self.model.score_terms(self.reach, max_distance=max_distance)
            self._terms = [_contiguous(added.without_repetition(max_distance)) for added in terms]
        self._period = mem_len if in_windows else seg_len  # tokens after which absolute positions begin anew
        model.encoding.check_positions(self._period)
        self.observed = False
        """True while hooks observe the layers (`attention_maps`): a CUDA graph would bypass them."""
        self._capture_graph = capture_graph or graphs_of_one_pool(instead=f"set {GRAPHS_VARIABLE}=0 in the environment")
        self._graph_step: GraphStep | None = None  # made when the first single token is read
        self._segment_graphs: SegmentGraphs | None = None  # made when the first segment after a full memory is read
        self.reset()

    @torch.inference_mode()
    def _empty_buffers(self, batch_size: int, dtype: torch.dtype) -> list[SlidingBuffer]:
        """Allocate the keys and values of all layers."""
        sizes = self.model.settings
        shape = (batch_size, sizes.n_heads, self._range.capacity, sizes.d_head)
        check_free_memory(2 * sizes.n_layers * math.prod(shape) * dtype.itemsize, self.device)
        return [SlidingBuffer(shape, self._range, self.device, dtype) for _ in range(sizes.n_layers)]

    @torch.inference_mode()
    def _empty_outputs(self, batch_size: int) -> Tensor | None:
        """Allocate the outputs of all layers for the present segment, (N, B, L, d), if memory keeps them."""
        sizes = self.model.settings
        if not (sizes.depends_on_segments and self.mem_len):
            return None
        dtype = torch.promote_types(self.model.dtype, torch.float32)
        return torch.zeros(sizes.n_layers, batch_size, self.seg_len, sizes.d_model, dtype=dtype, device=self.device)

    @property
    def capacity(self) -> int:
        """Positions that the buffer holds before it slides."""
        return self._range.capacity

    @property
    def housekeeping_interval(self) -> int:
        return self.capacity - self.mem_len

    @torch.inference_mode()
    def reset(self) -> None:
        self._range.start, self._range.end, self._read_before = 0, self._zeros, 0
        if self._zeros:
            self._remember_zeros(self._zeros)

    def _remember_zeros(self, count: int) -> None:
        """Write the keys and values of so many zero vectors before the text into the buffers."""
        zero = torch.zeros(1, 1, self.model.settings.d_model, device=self.device, dtype=self.model.dtype)
        self._write([zero] * len(self._buffers), torch.arange(-count, 0, device=self.device), at=0)

    def _remember_outputs(self, count: int) -> None:
        """Replace the keys and values of the segment that has ended, `count` tokens, by projected layer outputs."""
        assert self._outputs is not None
        kept = min(count, self.mem_len)
        positions = torch.arange(self._read_before - kept, self._read_before, device=self.device)
        self._write(self._outputs[:, :, count - kept : count], positions, at=self._range.end - kept)

    def _write(self, remembered: Iterable[Tensor], positions: Tensor, *, at: int) -> None:
        """Write the keys and values of hidden states into the buffers, from slot `at` on.

        Args:
            remembered: hidden states of each layer, (B or 1, x or 1, d).
            positions: (x,) of the stream.
            at: the first slot.
        """
        rotation = self.model.encoding.rotation(positions)
        for layer, buffer, hidden in zip(self.model.layers, self._buffers, remembered, strict=True):
            with self._autocast:
                keys, values = layer.attention.project_keys_values(layer.attention_input(hidden))
                keys, values = (tensor.expand(-1, -1, len(positions), -1) for tensor in (keys, values))
                buffer.write(keys if rotation is None else rotation.apply(keys), values, at)

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        self._make_room(tokens.shape[1])
        key_len = self._range.end + tokens.shape[1] - self._range.start
        reach = min(key_len, self._limit or key_len)
        with self._autocast:
            positions = self._positions(tokens.shape[1])
            hidden = self.model.embed(tokens, positions)
            if tokens.shape[1] == 1 and self._replay_steps and not self.observed:
                hidden = self._step_for(hidden).read(
                    hidden,
                    at=self._range.end,
                    reach=reach,
                    position=positions,
                    in_stream=self._read_before,
                    in_segment=self._in_segment,
                )[:, 1 - count :]  # count is 0 or 1
            elif self._can_replay(tokens.shape[1], count):
                stream, phase = self._in_stream(tokens.shape[1]), self._range.start
                hidden = self._graphs_for(hidden).read(hidden, positions, stream, phase=phase)
            else:
                stream = self._in_stream(tokens.shape[1])
                hidden = self._through_layers(hidden, positions, stream, reach=reach, count=count)
        segment_len = self._in_segment + tokens.shape[1]  # so far
        self._read_before += tokens.shape[1]
        continues = self._by_tokens and segment_len < self.seg_len
        self._range.advance(tokens.shape[1], mem_len=self.capacity if continues else self.mem_len)
        if self._outputs is not None and not continues:
            self._remember_outputs(segment_len)
        normed: Tensor = self.model.final_norm(hidden)
        return normed

    def _through_layers(
        self, hidden: Tensor, positions: Tensor, stream: Tensor, *, reach: int, count: int | None = None
    ) -> Tensor:
        """Return the last layer's output (B, count, d) for embeddings (B, l, d), at positions (l,) of the stream."""
        rotation = self.model.encoding.rotation(stream)
        terms = rotated([layer_terms.nearest(reach) for layer_terms in self._terms], rotation)
        if self._outputs is None:
            return last_output(self.model.run_layers(hidden, self._buffers, terms, positions, count=count))
        layers = self.model.run_layers(hidden, self._buffers, terms, positions)
        length, first = hidden.shape[1], self._in_segment
        in_segment = torch.arange(first, first + length, device=self.device)
        output = last_output(keep_outputs(layers, self._outputs, in_segment))
        return output if count is None else output[:, length - count :]

    def _can_replay(self, length: int, count: int) -> bool:
        """Return True if a segment finds the buffer in a phase that recurs, and all of it is computed."""
        is_whole, memory_is_full = length == count == self.seg_len, self._range.count == self.mem_len
        return self._replay_segments and not self.observed and is_whole and memory_is_full

    def _graphs_for(self, embedded: Tensor) -> SegmentGraphs:
        if self._segment_graphs is None:
            layers = functools.partial(self._through_layers, reach=self.reach)
            self._segment_graphs = SegmentGraphs(layers, embedded, self._capture_graph)
        return self._segment_graphs

    def _step_for(self, embedded: Tensor) -> GraphStep:
        if self._graph_step is None:
            batch_size, dtype = embedded.shape[0], embedded.dtype
            self._graph_step = GraphStep(
                self.model,
                self._buffers,
                self._terms,
                batch_size=batch_size,
                dtype=dtype,
                outputs=self._outputs,
                capture_graph=self._capture_graph,
            )
        return self._graph_step

    def _in_stream(self, length: int) -> Tensor:
        """Return the positions (l,) of the next tokens since the text began."""
        return torch.arange(self._read_before, self._read_before + length, device=self.device)

    def _positions(self, length: int) -> Tensor:
        """Return positions (l,) in the segment of the next tokens.

        Without memory every call reads a new segment, except by tokens.
        """
        first = self._read_before % self._period if self.mem_len or self._by_tokens else 0
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
