"""Keys and values kept as they were projected, for reading with weights that do not change.

`SlidingBuffer` keeps the last positions of a text; `FixedSlots` writes single tokens into the same buffer in a way that
a CUDA graph can repeat. The memory that training carries is `core.model.layer.HiddenMemory`.

Axes: B batch, C capacity of the buffer, H heads, L segment, D head width, d model width, N layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from txlcli.core.backend import Attend
from txlcli.core.kernels.device import row_multiple
from txlcli.core.model.layer import Layer, Past

MOVED_AT_ONCE = 256
"""Positions that a sliding buffer moves in one copy on a CPU: few enough to stay in a cache until written."""


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
        padded = -(-width // row_multiple(device)) * row_multiple(device)
        self.keys, self.values = (torch.zeros(*outer, padded, dtype=dtype, device=device) for _ in range(2))
        self._range = buffer_range

    def extend(self, keys: Tensor, values: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, H, L, D) behind those that are remembered; return all of them as views."""
        self.write(keys, values, self._range.end)
        seen = slice(self._range.start, self._range.end + keys.shape[2])
        return self.keys[:, :, seen], self.values[:, :, seen]

    def write(self, keys: Tensor, values: Tensor, at: int) -> None:
        """Put keys and values, (B or 1, H, x, D), into the slots from `at` on."""
        slots, width = slice(at, at + keys.shape[2]), keys.shape[3]
        self.keys[:, :, slots, :width] = keys
        self.values[:, :, slots, :width] = values

    def slide(self, at_once: int = MOVED_AT_ONCE) -> None:
        """Move the remembered positions to the beginning; on a CPU `at_once` positions per copy."""
        first, end = self._range.start, self._range.end
        at_once = at_once if self.keys.device.type == "cpu" else max(1, end - first)
        for buffer in (self.keys, self.values):
            for at in range(0, end - first, at_once):
                count = min(at_once, end - first - at)
                # Source and target may overlap. A copy of a few positions is still in a cache when it is written.
                buffer[:, :, at : at + count] = buffer[:, :, first + at : first + at + count].clone()


class FixedSlots(Past):
    """The whole buffer of a layer, into which each call writes one token at a slot given on the device.

    Args:
        buffer: of the layer; its tensors must stay the same.
        at: (1,) slot of the token.
        attend: computes the attention over all slots.
    """

    def __init__(self, buffer: SlidingBuffer, at: Tensor, attend: Attend) -> None:
        self._buffer, self._at, self.attend = buffer, at, attend

    def extend(self, keys: Tensor, values: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, H, 1, D) of the token; return the whole buffers (B, H, C, D)."""
        for buffer, new in ((self._buffer.keys, keys), (self._buffer.values, values)):
            buffer[..., : new.shape[3]].index_copy_(2, self._at, new.to(buffer.dtype))
        return self._buffer.keys, self._buffer.values
