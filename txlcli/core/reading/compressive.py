"""Read tokens in order with a compressive memory, token by token if need be.

Memory and slots change when a segment ends. They are projected to keys and values then, once, and each token of the
next segment when it is read. It computes the same function as `CompressiveTransformer.forward`. There are no CUDA
graphs.

Axes: B batch, l tokens read at once, L segment, M memory, C compressed memory, H heads, D head width, d model width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from txlcli.core.kernels.device import check_free_memory, product_dtype
from txlcli.core.model.base import Memory
from txlcli.core.model.compressive import CompressiveTransformer
from txlcli.core.model.layer import Layer, LayerOutput, Past, rotated
from txlcli.core.model.losses import Objective
from txlcli.core.reading.reader import Reader, Reading


@dataclass
class ProjectedPast(Past):
    """Keys and values of one layer: of slots, memory, and the present segment."""

    keys: Tensor
    """(B, H, C + M + l, D)."""
    values: Tensor
    segment: list[Tensor] = field(default_factory=list)
    """Layer inputs of the present segment, (B, l, d) for each call."""

    def extend(self, keys: Tensor, values: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
        """Keep keys and values (B, H, l, D); return all."""
        self.keys, self.values = torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2)
        return self.keys, self.values


class CompressiveReader(Reader):
    """Feeds segments of up to L tokens through a model with a compressive memory."""

    model: CompressiveTransformer

    def __init__(self, model: CompressiveTransformer, reading: Reading) -> None:
        super().__init__(model, reading)
        self.housekeeping_interval = self.seg_len  # slots are made when a segment ends
        sizes, settings = model.settings, reading.settings
        slots = settings.compressed_len or sizes.compressed_len
        most = sizes.memory_keys(self.mem_len, slots) + sizes.compression_rate - 1 + self.seg_len
        heads = 2 * sizes.n_layers * reading.batch_size * sizes.n_heads * sizes.d_head
        check_free_memory(heads * most * product_dtype(reading.precision, model.dtype).itemsize, self.device)
        with torch.inference_mode(), self._autocast:
            self._terms = self.model.projected_terms(most, max_distance=settings.max_distance)
        self.reset()

    @torch.inference_mode()
    def reset(self) -> None:
        self._read_before = 0
        self._begin_segment(self._first_memory())

    def _begin_segment(self, memory: Memory) -> None:
        """Project a memory."""
        self._memory = self.model.pasts(memory, self.mem_len, self.reading.settings.compressed_len)
        rotation = self.model.encoding.rotation(torch.arange(self._memory[0].length, device=self.device))
        with self._autocast:
            self._pasts = [
                ProjectedPast(*layer.project_past(past.states, rotation))
                for layer, past in zip(self.model.layers, self._memory, strict=True)
            ]

    def _end_segment(self) -> None:
        """Update the memory, and compress what leaves it."""
        outputs = []
        for layer, past, memory in zip(self.model.layers, self._pasts, self._memory, strict=True):
            kept = torch.cat(past.segment, dim=1)
            leaving = memory.leaving(kept, layer.compression.rate)
            slots = layer.compression(leaving) if leaving.shape[1] else None
            outputs.append(LayerOutput(kept, kept, slots))
        self._begin_segment(self.model.remember(self._memory, outputs, Objective(mem_len=self.mem_len)))

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        before = self._pasts[0].keys.shape[2]
        positions = torch.arange(before, before + tokens.shape[1], device=self.device)
        with self._autocast:
            nearest = [added.nearest(before + tokens.shape[1]) for added in self._terms]
            terms = rotated(nearest, self.model.encoding.rotation(positions))
            embedded = self.model.embed(tokens, positions)
            outputs = self.model.run_layers(embedded, self._pasts, terms, positions, count=count)
            for past, output in zip(self._pasts, outputs, strict=True):
                past.segment.append(output.kept)
            self._read_before += tokens.shape[1]
            if self._in_segment == 0:  # the segment has ended
                self._end_segment()
        normed: Tensor = self.model.final_norm(output.hidden)
        return normed
