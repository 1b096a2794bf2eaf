"""The Compressive Transformer (Rae et al. 2020): tokens that leave the memory are compressed, not forgotten.

Each layer has a memory of M positions and a compressed memory of C slots. When a segment ends, the oldest positions
leave the memory, c of them at a time; a slot is made of each c, and the oldest slots are forgotten. Keys are those of
compressed memory, memory and segment, in this order, and distances count slots as they count tokens.

Axes: B batch, L segment, M memory, C compressed memory, c compression rate, H heads, D head width, d model width,
x positions that leave the memory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import CompressiveSettings
from txlcli.config.settings import LossPart
from txlcli.core.kernels.linear import Linear
from txlcli.core.model.attention import split_heads
from txlcli.core.model.base import Memory
from txlcli.core.model.layer import GrowingMemory, Layer, update_memory
from txlcli.core.model.losses import counted_positions
from txlcli.core.model.module_list import ModuleList
from txlcli.core.model.transformer_xl import TransformerXL


class Compression(nn.Module):
    """Compresses every c positions into one slot: by a convolution with kernel and stride c, a mean or a maximum."""

    def __init__(self, settings: CompressiveSettings) -> None:
        super().__init__()
        self.rate, self.method = settings.compression_rate, settings.compression
        is_trained = self.method == "convolution"
        # A convolution whose stride is its kernel is a product with c positions side by side.
        self.convolution = Linear(self.rate * settings.d_model, settings.d_model) if is_trained else None

    def forward(self, leaving: Tensor) -> Tensor:
        """Compress (B, x, d), x a multiple of c; return (B, x / c, d) in the same dtype."""
        groups = leaving.unflatten(1, (-1, self.rate))  # (B, x / c, c, d)
        if self.convolution is not None:
            compressed: Tensor = self.convolution(groups.flatten(2))
            return compressed.to(leaving.dtype)
        return groups.mean(dim=2) if self.method == "mean" else groups.amax(dim=2)


class CompressiveLayer(Layer):
    """A layer with the compression of its memory."""

    def __init__(self, settings: CompressiveSettings) -> None:
        super().__init__(settings)
        self.compression = Compression(settings)

    def reconstruction_loss(self, layer_input: Tensor, leaving: Tensor, compressed: Tensor) -> Tensor:
        """Return the attention-reconstruction loss (0-d), whose gradient reaches `compressed` alone.

        The mean square of the difference between the attention of the segment to what leaves the memory and to the
        slots in its place, by content only, with the weights of the layer, before the heads are joined.

        Args:
            layer_input: (B, L, d), of the segment.
            leaving: (B, x, d), without gradient.
            compressed: (B, x / c, d).
        """
        with torch.no_grad():
            query = self._projected("q", layer_input)
            expected = self._attended(query, leaving)
        error = self._attended(query, compressed) - expected
        return error.to(torch.promote_types(error.dtype, torch.float32)).square().mean()

    def _attended(self, query: Tensor, context: Tensor) -> Tensor:
        """Return softmax(q k) v, (B, H, L, D), over all positions of a context (B, x, d)."""
        key, value = self._projected("k", context), self._projected("v", context)
        with torch.autocast(query.device.type, enabled=False):
            score = query @ key.mT * self.attention.scale
            probability = torch.softmax(score, dim=-1, dtype=torch.promote_types(score.dtype, torch.float32))
            return probability.to(value.dtype) @ value

    def _projected(self, which: str, hidden: Tensor) -> Tensor:
        """Return queries, keys or values (B, H, x, D) of hidden states (B, x, d); the weights get no gradient."""
        attention = self.attention
        matrix = {"q": attention.w_q, "k": attention.w_k_content, "v": attention.w_v}[which]
        normed = _constant(self.attention_norm, hidden) if self.pre_norm else hidden
        heads = split_heads(_constant(matrix, normed), attention.n_heads)
        norms = {"q": attention.q_norm, "k": attention.k_norm}
        return _constant(norms[which], heads) if which in norms else heads


def _constant(module: nn.Module, inputs: Tensor) -> Tensor:
    """Call a module whose parameters are constants."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    result: Tensor = torch.func.functional_call(module, parameters, (inputs,))
    return result


class CompressedMemory(GrowingMemory):
    """Keys and values of [compressed memory o memory o segment] of one layer.

    Args:
        layer: whose memory it is.
        memory: (B, M, d), detached.
        compressed: (B, C, d), detached.
        mem_len: M to keep for the next segment; up to c - 1 more stay until c of them leave together.
        compressed_len: C to keep.
    """

    layer: CompressiveLayer
    loss: Tensor | None = None
    """Reconstruction loss (0-d) of what left the memory after the segment, in training; None if nothing was trained."""

    def __init__(
        self, layer: CompressiveLayer, memory: Tensor, compressed: Tensor, *, mem_len: int, compressed_len: int
    ) -> None:
        super().__init__(layer, memory, mem_len=mem_len)
        self._compressed_len = compressed_len if mem_len else 0
        self._compressed = compressed[:, max(0, compressed.shape[1] - self._compressed_len) :]

    @property
    def memory(self) -> Tensor:
        """Slots, then positions, (B, C + M, d)."""
        return torch.cat([self._compressed.to(self._memory.dtype), self._memory], dim=1)

    @property
    def length(self) -> int:
        return self._compressed.shape[1] + self._memory.shape[1]

    def end_segment(self, layer_input: Tensor, remembered: Tensor) -> None:
        total = self._memory.shape[1] + remembered.shape[1]
        count = leaving_count(total, self.mem_len, self.layer.compression.rate)
        kept = total - count if self.mem_len else 0
        slots = self._slots(layer_input, remembered, count) if count and self.mem_len else remembered[:, :0]
        self._after = [
            update_memory(self._memory, remembered, mem_len=kept),
            update_memory(self._compressed, slots.detach(), mem_len=self._compressed_len),
        ]

    def _slots(self, layer_input: Tensor, remembered: Tensor, count: int) -> Tensor:
        """Compress the oldest `count` positions of memory and segment, (B, count / c, d); set the loss in training."""
        layer = self.layer
        leaving = torch.cat([self._memory.to(remembered.dtype), remembered], dim=1)[:, :count]
        slots: Tensor = layer.compression(leaving)
        if layer.training and layer.compression.convolution is not None:
            self.loss = layer.reconstruction_loss(layer_input.detach(), leaving, slots)
        return slots

    def after(self, remembered: Tensor) -> Memory:
        return self._after


def leaving_count(length: int, mem_len: int, rate: int) -> int:
    """Return how many of the oldest positions leave a memory: whole groups of c, so that fewer than M + c stay."""
    return max(0, length - mem_len) // rate * rate


class CompressiveTransformer(TransformerXL):
    """A Transformer-XL whose memory is compressed as it ages.

    The memory holds (B, M, d) for each of the N layers, oldest first, then the slots (B, C, d) for each layer.
    """

    settings: CompressiveSettings
    layer_class = CompressiveLayer
    layers: ModuleList[CompressiveLayer]

    @property
    def has_idle_weights(self) -> bool:
        """True with a convolution, which has no gradient while nothing leaves the memory."""
        return self.settings.compression == "convolution"

    @property
    def has_layer_losses(self) -> bool:
        """True with a convolution, which a reconstruction loss trains."""
        return self.settings.compression == "convolution"

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        compressed_len = self.settings.compressed_len if mem_len and self.memory_starts_full else 0
        recent = super().first_memory(batch_size, mem_len)
        return recent + [tensor.new_zeros(batch_size, compressed_len, self.settings.d_model) for tensor in recent]

    def full_memory(self, batch_size: int, mem_len: int) -> Memory:
        compressed_len = self.settings.compressed_len if mem_len else 0
        recent = super().full_memory(batch_size, mem_len)
        return recent + [tensor.new_zeros(batch_size, compressed_len, self.settings.d_model) for tensor in recent]

    def memory_is_full(self, memory: Memory, mem_len: int) -> bool:
        slots = memory[len(self.layers)].shape[1]
        return super().memory_is_full(memory, mem_len) and (not mem_len or slots >= self.settings.compressed_len)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        mem_len: int,
        key_limit: int | None = None,
        max_distance: int | None = None,
        compressed_len: int | None = None,
    ) -> tuple[Tensor, Memory]:
        """Read one segment, see `TransformerXL.forward`; `compressed_len` is C, by default that of the settings."""
        pasts = self._pasts(memory, mem_len, compressed_len)
        outputs, memories = self._read(tokens, pasts, key_limit, max_distance)
        return self._final(outputs[-1]), self._joined(memories)

    def _pasts(self, memory: Memory, mem_len: int, compressed_len: int | None = None) -> Sequence[CompressedMemory]:
        n_layers, kept = len(self.layers), compressed_len or self.settings.compressed_len
        return [
            CompressedMemory(layer, recent, compressed, mem_len=mem_len, compressed_len=kept)
            for layer, recent, compressed in zip(self.layers, memory[:n_layers], memory[n_layers:], strict=True)
        ]

    def _joined(self, memories: Sequence[Memory]) -> Memory:
        """Return the positions of all layers, then the slots of all layers."""
        return [of_layer[part] for part in range(2) for of_layer in memories]

    def objective(
        self, tokens: Tensor, targets: Tensor, memory: Memory, *, mem_len: int, part: LossPart, progress: float
    ) -> tuple[Tensor, Tensor, Memory]:
        """Return what training minimizes, the mean loss in nats of the counted positions, and the new memory.

        The former adds the reconstruction losses of all layers, which train the convolutions alone.
        """
        pasts = self._pasts(memory, mem_len)
        outputs, memories = self._read(tokens, pasts, None, None)
        counted = counted_positions(tokens.shape[1], part)
        loss = self.losses(self._final(outputs[-1])[:, counted], targets[:, counted]).mean()
        return loss + sum(past.loss for past in pasts if past.loss is not None), loss, self._joined(memories)
