"""Reading whole segments as CUDA graphs, one for each phase of the sliding buffer that recurs.

A graph repeats the same kernels on the same memory. Once the memory is full, a segment finds the keys of the past in
one of a few places of the buffer, its phases. The slack of the buffer is a multiple of the segment, so that they recur.

Axes: B batch, L segment, d model width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from txlcli.core.kernels.cuda_graph import CaptureGraph

MAX_PHASES = 16
"""Largest number of phases for which graphs are captured; each takes as long as a few segments, and some memory."""


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
