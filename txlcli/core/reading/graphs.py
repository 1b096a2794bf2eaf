"""Reading by CUDA graphs, which repeat the same kernels on the same memory: single tokens, and whole segments.

For a token, its slot in the buffers and how far it sees are numbers on the device. It scores up to a quarter more keys
than the decoder without a graph. A segment finds the keys of the past in one of a few places of the sliding buffer, its
phases, once the memory is full: the slack of the buffer is a multiple of the segment, so that they recur.

Axes: B batch, L segment, C capacity of the buffers, d model width.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from txlcli.core.backend import ScoreTerms, nearest_rows
from txlcli.core.kernels.attention_slots import SlotAttention
from txlcli.core.kernels.cuda_graph import CaptureGraph
from txlcli.core.model.layer import rotated
from txlcli.core.model.transformer_xl import TransformerXL, last_output
from txlcli.core.reading.past import FixedSlots, SlidingBuffer, keep_outputs

MAX_PHASES = 16
"""Largest number of phases for which graphs are captured; each takes as long as a few segments, and some memory."""


class GraphStep:
    """Reads one token of each sequence per call.

    Args:
        model: to read with.
        buffers: keys and values of each layer; their tensors must stay the same.
        terms: what each layer adds to the score, for all distances.
        batch_size: B.
        dtype: of the embeddings.
        outputs: of each layer for the present segment, (N, B, L, d), if memory keeps them.
        capture_graph: makes the CUDA graph.
    """

    def __init__(
        self,
        model: TransformerXL,
        buffers: Sequence[SlidingBuffer],
        terms: Sequence[ScoreTerms],
        *,
        batch_size: int,
        dtype: torch.dtype,
        outputs: Tensor | None,
        capture_graph: CaptureGraph,
    ) -> None:
        self._model, self._buffers, self._outputs = model, buffers, outputs
        self._terms = [_cast(added, buffers[0].keys.dtype) for added in terms]
        self._capture_graph = capture_graph
        device = model.device
        self._embedded = torch.zeros(batch_size, 1, model.settings.d_model, dtype=dtype, device=device)
        self._at, self._reach, self._position, self._in_stream, self._in_segment = (
            torch.zeros(1, dtype=torch.long, device=device) for _ in range(5)
        )
        self._slots = torch.arange(buffers[0].keys.shape[2], device=device)  # (C,)
        self._run: Callable[[], Tensor] | None = None

    def read(
        self, embedded: Tensor, *, at: int, reach: int, position: Tensor, in_stream: int, in_segment: int
    ) -> Tensor:
        """Return the last layer's output (B, 1, d) for embeddings (B, 1, d).

        Args:
            embedded: of the tokens.
            at: their slot in the buffers.
            reach: distances that they see, themselves included.
            position: in their segment, (1,).
            in_stream: their position since the text began.
            in_segment: their position in the present segment, where `outputs` keeps theirs.
        """
        self._embedded.copy_(embedded)
        self._at.fill_(at)
        self._reach.fill_(reach)
        self._position.copy_(position)
        self._in_stream.fill_(in_stream)
        if self._outputs is not None:
            self._in_segment.fill_(in_segment)
        if self._run is None:
            self._run = self._capture_graph(self._layers, self._embedded.device)
        return self._run().clone()

    def _layers(self) -> Tensor:
        attend = SlotAttention(self._at - self._slots, self._reach)
        rotation = self._model.encoding.rotation(self._in_stream)
        terms = rotated(self._terms, rotation)
        pasts = (FixedSlots(buffer, self._at, attend) for buffer in self._buffers)
        layers = self._model.run_layers(self._embedded, pasts, terms, self._position)
        if self._outputs is not None:
            layers = keep_outputs(layers, self._outputs, self._in_segment)
        return last_output(layers)


def _cast(terms: ScoreTerms, dtype: torch.dtype) -> ScoreTerms:
    """Return score terms as products read them, so that no token casts or repeats them."""
    key = terms.position_key
    if key is None:
        return terms.to(dtype)
    key = key if terms.distance_bias is None else nearest_rows(key, terms.reach)
    return dataclasses.replace(terms, position_key=key.contiguous()).to(dtype)


class SegmentGraphs:
    """Reads segments of L tokens after a full memory, by one graph for each phase.

    Args:
        layers: returns the output (B, L, d) of the last layer for embeddings (B, L, d), positions in the segment (L,)
            and positions in the stream (L,); it writes keys and values at the end of the buffer's range.
        embedded: embeddings of a segment, only for their shape, dtype and device.
        capture_graph: makes a CUDA graph.
    """

    def __init__(
        self, layers: Callable[[Tensor, Tensor, Tensor], Tensor], embedded: Tensor, capture_graph: CaptureGraph
    ) -> None:
        self._layers, self._capture_graph = layers, capture_graph
        self._embedded = torch.zeros_like(embedded)
        self._positions, self._stream = (
            torch.zeros(embedded.shape[1], dtype=torch.long, device=embedded.device) for _ in range(2)
        )
        self._seen: set[int] = set()
        self._replays: dict[int, Callable[[], Tensor]] = {}

    def read(self, embedded: Tensor, positions: Tensor, stream: Tensor, *, phase: int) -> Tensor:
        """Return the last layer's output (B, L, d).

        Args:
            embedded: (B, L, d).
            positions: (L,) in the segment.
            stream: (L,) since the text began.
            phase: first slot of the memory in the buffer. A phase is captured when it occurs for the second time.
        """
        if phase not in self._seen:
            self._seen.add(phase)
            return self._layers(embedded, positions, stream)
        for own, given in ((self._embedded, embedded), (self._positions, positions), (self._stream, stream)):
            own.copy_(given)
        if phase not in self._replays:
            self._replays[phase] = self._capture_graph(self._run, embedded.device)
        return self._replays[phase]().clone()

    def _run(self) -> Tensor:
        return self._layers(self._embedded, self._positions, self._stream)
