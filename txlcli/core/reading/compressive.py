"""Read tokens in order with a compressive memory, whose projected keys and values are kept.

Each token is projected once, when it is read, and each slot once, when it is made. It computes the same function as
`CompressiveTransformer.forward`. There are no CUDA graphs.

Axes: B batch, l tokens read at once, L segment, M memory, C compressed memory, H heads, D head width, d model width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from txlcli.core.backend import Rotation
from txlcli.core.kernels.device import check_free_memory, product_dtype
from txlcli.core.model.compressive import CompressiveLayer, CompressiveTransformer, leaving_count
from txlcli.core.model.layer import Layer, Past, rotated
from txlcli.core.reading.reader import Reader, Reading


@dataclass
class KeptMemory(Past):
    """Keys and values of one layer: of slots, and of the positions of memory and present segment."""

    hidden: Tensor
    """Layer inputs of the memory, (B, M, d)."""
    keys: Tensor
    """Of memory and present segment, rotated by their position in the stream, (B, H, x, D)."""
    values: Tensor
    slot_keys: Tensor
    """Of the slots, not rotated: their positions change whenever a segment ends. (B, H, C, D)."""
    slot_values: Tensor
    slot_rotation: Rotation | None = None
    """Of the slots, for the present segment."""
    segment: list[Tensor] = field(default_factory=list)
    """Layer inputs of the present segment, (B, l, d) for each call."""

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.slot_keys.shape[2]

    def extend(self, keys: Tensor, values: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
        """Keep keys and values (B, H, l, D); return all of slots, memory and present segment."""
        self.keys, self.values = _joined(self.keys, keys), _joined(self.values, values)
        slots = self.slot_keys if self.slot_rotation is None else self.slot_rotation.apply(self.slot_keys)
        return _joined(slots, self.keys), _joined(self.slot_values, self.values)

    def compress(self, layer: CompressiveLayer, *, mem_len: int, compressed_len: int) -> None:
        """Compress what leaves the memory, since the present segment has ended."""
        context = torch.cat([self.hidden.to(self.segment[0].dtype), *self.segment], dim=1)
        self.segment = []
        rate = layer.compression.rate
        count = leaving_count(context.shape[1], mem_len, rate) if mem_len else context.shape[1]
        if count and mem_len:
            keys, values = layer.project_past(layer.compression(context[:, :count]))
            self.slot_keys = _joined(self.slot_keys, keys)[:, :, -compressed_len:]
            self.slot_values = _joined(self.slot_values, values)[:, :, -compressed_len:]
        self.hidden = context[:, count:].clone()  # views would keep what has left
        self.keys, self.values = (heads[:, :, count:].clone() for heads in (self.keys, self.values))


def _joined(old: Tensor, new: Tensor) -> Tensor:
    """Join keys or values (B, H, x, D), in the dtype of the new ones."""
    return torch.cat([old.to(new.dtype), new], dim=2)


class CompressiveReader(Reader):
    """Feeds segments of up to L tokens through a model with a compressive memory."""

    model: CompressiveTransformer

    def __init__(self, model: CompressiveTransformer, reading: Reading) -> None:
        super().__init__(model, reading)
        self.housekeeping_interval = self.seg_len  # slots are made when a segment ends
        sizes, settings = model.settings, reading.settings
        self._slots = settings.compressed_len or sizes.compressed_len
        most = sizes.memory_keys(self.mem_len, self._slots) + sizes.compression_rate - 1 + self.seg_len
        heads = 2 * sizes.n_layers * reading.batch_size * sizes.n_heads * sizes.d_head
        check_free_memory(heads * most * product_dtype(reading.precision, model.dtype).itemsize, self.device)
        with torch.inference_mode(), self._autocast:
            self._terms = self.model.projected_terms(most, max_distance=settings.max_distance)
        self.reset()

    @torch.inference_mode()
    def reset(self) -> None:
        self._read_before = 0
        memory, n_layers = self._first_memory(), len(self.model.layers)
        rotation = self.model.encoding.rotation(torch.arange(-memory[0].shape[1], 0, device=self.device))
        self._pasts = []
        with self._autocast:
            for layer, recent, compressed in zip(self.model.layers, memory[:n_layers], memory[n_layers:], strict=True):
                hidden = layer.memory_input(recent)
                slots = layer.project_past(layer.memory_input(compressed[:, -self._slots :]))
                self._pasts.append(KeptMemory(hidden, *layer.project_past(hidden, rotation), *slots))

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        length = tokens.shape[1]
        stream = torch.arange(self._read_before, self._read_before + length, device=self.device)  # positions
        with self._autocast:
            self._rotate_slots()
            reach = self._pasts[0].slots + self._pasts[0].keys.shape[2] + length
            terms = rotated([added.nearest(reach) for added in self._terms], self.model.encoding.rotation(stream))
            embedded = self.model.embed(tokens, stream)
            layers = self.model.run_layers(embedded, self._pasts, terms, stream, count=count)
            for past, output in zip(self._pasts, layers, strict=True):
                past.segment.append(output.kept)
            self._read_before += length
            if self._in_segment == 0:  # the segment has ended
                for layer, past in zip(self.model.layers, self._pasts, strict=True):
                    past.compress(layer, mem_len=self.mem_len, compressed_len=self._slots)
        normed: Tensor = self.model.final_norm(output.hidden)
        return normed

    def _rotate_slots(self) -> None:
        """Place the slots before the oldest position of the memory, as the rotation of their keys sees them."""
        oldest = self._read_before - self._pasts[0].keys.shape[2]
        positions = torch.arange(oldest - self._pasts[0].slots, oldest, device=self.device)
        rotation = self.model.encoding.rotation(positions)
        for past in self._pasts:
            past.slot_rotation = rotation
