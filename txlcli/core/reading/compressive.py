"""Read tokens in order with a compressive memory, whose projected keys and values are kept.

Each token is projected once, when it is read, and each slot once, when it is made. It computes the same function as
`CompressiveTransformer.forward`. There are no CUDA graphs.

Axes: B batch, l tokens read at once, L segment, M memory, C compressed memory, H heads, D head width, d model width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.backend import Rotation
from txlcli.core.kernels.device import check_free_memory, product_dtype
from txlcli.core.model.compressive import CompressiveLayer, CompressiveTransformer, leaving_count
from txlcli.core.model.layer import LayerOutput, Past, rotated
from txlcli.core.model.transformer_xl import last_output
from txlcli.core.reading.reader import Reader


@dataclass
class KeptMemory(Past):
    """Keys and values of one layer: of slots, and of the positions of memory and present segment."""

    layer: CompressiveLayer
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

    @classmethod
    def of(cls, layer: CompressiveLayer, hidden: Tensor, slots: Tensor, rotation: Rotation | None) -> "KeptMemory":
        """Project the first memory, whose positions have this rotation."""
        keys, values = layer.attention.project_keys_values(layer.attention_input(hidden))
        slot_keys, slot_values = layer.attention.project_keys_values(layer.attention_input(slots))
        keys = keys if rotation is None else rotation.apply(keys)
        return cls(layer, hidden, keys, values, slot_keys, slot_values)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.slot_keys.shape[2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep keys and values (B, H, l, D); return all of slots, memory and present segment."""
        self.keys = torch.cat([self.keys.to(keys.dtype), keys], dim=2)
        self.values = torch.cat([self.values.to(values.dtype), values], dim=2)
        slots = self.slot_keys if self.slot_rotation is None else self.slot_rotation.apply(self.slot_keys)
        return torch.cat([slots.to(keys.dtype), self.keys], dim=2), torch.cat([self.slot_values, self.values], dim=2)

    def compress(self, *, mem_len: int, compressed_len: int) -> None:
        """Compress what leaves the memory, since the present segment has ended."""
        context = torch.cat([self.hidden.to(self.segment[0].dtype), *self.segment], dim=1)
        self.segment = []
        rate = self.layer.compression.rate
        count = leaving_count(context.shape[1], mem_len, rate) if mem_len else context.shape[1]
        if count and mem_len:
            slots = self.layer.attention_input(self.layer.compression(context[:, :count]))
            made = self.layer.attention.project_keys_values(slots)
            self.slot_keys, self.slot_values = (
                _last(old, new, compressed_len)
                for old, new in zip((self.slot_keys, self.slot_values), made, strict=True)
            )
        self.hidden = context[:, count:].clone()  # views would keep what has left
        self.keys, self.values = (heads[:, :, count:].clone() for heads in (self.keys, self.values))


def _last(old: Tensor, new: Tensor, count: int) -> Tensor:
    """Return the last `count` of old and new slots, (B, H, x, D)."""
    return torch.cat([old.to(new.dtype), new], dim=2)[:, :, -count:]


class CompressiveReader(Reader):
    """Feeds segments of up to L tokens through a model with a compressive memory."""

    model: CompressiveTransformer

    def __init__(
        self,
        model: CompressiveTransformer,
        settings: EvalSettings,
        *,
        batch_size: int,
        precision: str = "fp32",
        in_windows: bool = False,
        by_tokens: bool = False,
    ) -> None:
        super().__init__(
            model, settings, batch_size=batch_size, precision=precision, in_windows=in_windows, by_tokens=by_tokens
        )
        sizes = model.settings
        self._slots = settings.compressed_len or sizes.compressed_len
        most = sizes.memory_keys(settings.mem_len, self._slots) + sizes.compression_rate - 1 + settings.seg_len
        heads = 2 * sizes.n_layers * batch_size * sizes.n_heads * sizes.d_head
        check_free_memory(heads * most * product_dtype(precision, model.dtype).itemsize, self.device)
        with torch.inference_mode(), self._autocast:
            self._terms = self.model.score_terms(most, max_distance=settings.max_distance)
        self.reset()

    @property
    def housekeeping_interval(self) -> int:
        return self.seg_len  # slots are made when a segment ends

    @torch.inference_mode()
    def reset(self) -> None:
        self._read_before = 0
        memory = self.model.first_memory(self._batch_size, 0 if self._in_windows else self.mem_len)
        layers = list(self.model.layers)
        length = memory[0].shape[1]
        rotation = self.model.encoding.rotation(torch.arange(-length, 0, device=self.device))
        with self._autocast:
            self._pasts = [
                KeptMemory.of(layer, layer.memory_input(hidden), layer.memory_input(slots[:, -self._slots :]), rotation)
                for layer, hidden, slots in zip(layers, memory[: len(layers)], memory[len(layers) :], strict=True)
            ]

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        first, length = self._in_segment, tokens.shape[1]
        stream = torch.arange(self._read_before, self._read_before + length, device=self.device)
        with self._autocast:
            self._rotate_slots()
            terms = [
                added.nearest(self._pasts[0].slots + self._pasts[0].keys.shape[2] + length) for added in self._terms
            ]
            positions = torch.arange(first, first + length, device=self.device)
            layers = self.model.run_layers(
                self.model.embed(tokens, positions),
                self._pasts,
                rotated(terms, self.model.encoding.rotation(stream)),
                positions,
                count=count,
            )
            hidden = last_output(self._kept(layers))
            self._read_before += length
            if not self._by_tokens or first + length == self.seg_len:
                for past in self._pasts:
                    past.compress(mem_len=self.mem_len, compressed_len=self._slots)
        normed: Tensor = self.model.final_norm(hidden)
        return normed

    def _kept(self, layers: Iterator[LayerOutput]) -> Iterator[LayerOutput]:
        """Keep the layer inputs of the segment while the layers are computed; yield what `layers` yields."""
        for past, output in zip(self._pasts, layers, strict=True):
            past.segment.append(output.kept)
            yield output

    def _rotate_slots(self) -> None:
        """Place the slots before the oldest position of the memory, as the rotation of their keys sees them."""
        oldest = self._read_before - self._pasts[0].keys.shape[2]
        positions = torch.arange(oldest - self._pasts[0].slots, oldest, device=self.device)
        rotation = self.model.encoding.rotation(positions)
        for past in self._pasts:
            past.slot_rotation = rotation
