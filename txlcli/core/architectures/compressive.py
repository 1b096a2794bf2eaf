"""The Compressive Transformer (Rae et al. 2019): tokens that leave the memory are compressed, not forgotten.

Each layer has a memory of M positions and a compressed memory of C slots. When a segment ends, the oldest positions
leave the memory, c of them at a time; a slot is made of each c, and the oldest slots are forgotten. Keys are those of
compressed memory, memory and segment, in this order, and distances count slots as they count tokens.

Axes: B batch, L segment, M memory, C compressed memory, c compression rate, H heads, D head width, d model width,
x positions that leave the memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import CompressiveSettings
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import register_architecture
from txlcli.core.architectures.transformer import TransformerProducts
from txlcli.core.backend import ScoreTerms
from txlcli.core.model.attention import split_heads
from txlcli.core.model.base import Memory
from txlcli.core.model.layer import HiddenMemory, Layer, LayerOutput, Past, update_memory
from txlcli.core.model.linear import Linear
from txlcli.core.model.losses import Objective
from txlcli.core.model.module_list import ModuleList
from txlcli.core.model.transformer_xl import TransformerXL


class Compression(nn.Module):
    """Compresses every c positions into one slot: by a convolution with kernel and stride c, a mean or a maximum."""

    def __init__(self, settings: CompressiveSettings) -> None:
        super().__init__()
        self.rate = settings.compression_rate
        self.method = settings.compression
        is_trained = self.method == "convolution"
        # A convolution whose stride is its kernel is a product with c positions side by side.
        self.convolution = Linear(self.rate * settings.d_model, settings.d_model) if is_trained else None

    def forward(self, leaving: Tensor) -> Tensor:
        """Compress (B, x, d), x a multiple of c; return (B, x / c, d) in the same dtype."""
        groups = leaving.unflatten(1, (-1, self.rate))  # (B, x / c, c, d)
        if self.convolution is not None:
            compressed: Tensor = self.convolution(groups.flatten(2))
            return compressed.to(leaving.dtype)
        if self.method == "mean":
            return groups.mean(dim=2)
        return groups.amax(dim=2)


@dataclass(frozen=True, kw_only=True)
class AgingMemory(HiddenMemory):
    """A memory whose oldest positions are compressed: [compressed memory o memory] before a segment.

    It keeps up to c - 1 more positions than M, until c of them leave together.
    """

    slots: Tensor
    """The compressed memory, without gradient, (B, C, d)."""
    mem_len: int
    """M to keep for the next segment."""
    compressed_len: int
    """C to keep."""

    @property
    def remembered(self) -> Tensor:
        return torch.cat([self.slots, self.hidden], dim=1)

    @property
    def length(self) -> int:
        # PyTorch 2.11 does not compile a property of `super()`.
        return self.slots.shape[1] + self.hidden.shape[1] + self.segment_len

    def leaving(self, kept: Tensor, rate: int) -> Tensor:
        """Return the positions (B, x, d) that are compressed after a segment, of which `kept` (B, L, d) is kept."""
        if not self.ends or not self.mem_len:
            return kept[:, :0]
        positions = torch.cat([self.hidden, self.whole_segment(kept)], dim=1)
        excess = max(0, positions.shape[1] - self.mem_len)
        return positions[:, : excess - excess % rate]  # whole groups of c, so that fewer than M + c stay


class CompressiveLayer(Layer):
    """A layer with the compression of its memory."""

    def __init__(self, settings: CompressiveSettings) -> None:
        super().__init__(settings)
        self.compression = Compression(settings)

    def forward(
        self, hidden: Tensor, past: Past, terms: ScoreTerms, count: int | None = None, layer_input: Tensor | None = None
    ) -> LayerOutput:
        """Read one segment, then compress what leaves the memory; training adds the loss of the reconstruction."""
        output = super().forward(hidden, past, terms, count, layer_input)
        assert isinstance(past, AgingMemory)
        leaving = past.leaving(output.kept, self.compression.rate)
        slots = leaving  # none, if nothing leaves
        loss: Tensor | None = None
        if leaving.shape[1]:
            slots = self.compression(leaving)
            if self.training and self.compression.convolution is not None:
                loss = self.reconstruction_loss(output.kept, leaving, slots)
        # PyTorch 2.11 does not compile `_replace` of a NamedTuple.
        return LayerOutput(output.hidden, output.kept, slots.detach(), loss, output.next_input)

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
            query = self._heads(self.attention.w_q, self.attention.q_norm, layer_input)
            expected = self._attended(query, leaving)
        error = self._attended(query, compressed) - expected
        return error.to(torch.promote_types(error.dtype, torch.float32)).square().mean()

    def _attended(self, query: Tensor, context: Tensor) -> Tensor:
        """Return softmax(q k) v, (B, H, L, D), over all positions of a context (B, x, d)."""
        key = self._heads(self.attention.w_k_content, self.attention.k_norm, context)
        value = self._heads(self.attention.w_v, nn.Identity(), context)
        with torch.autocast(query.device.type, enabled=False):
            score = query @ key.mT * self.attention.d_head**-0.5
            probability = torch.softmax(score, dim=-1, dtype=torch.promote_types(score.dtype, torch.float32))
            return probability.to(value.dtype) @ value

    def _heads(self, matrix: nn.Module, norm: nn.Module, hidden: Tensor) -> Tensor:
        """Return queries, keys or values (B, H, x, D) of hidden states (B, x, d); the weights get no gradient."""
        normed = _constant(self.attention_norm, hidden) if self.pre_norm else hidden
        return _constant(norm, split_heads(_constant(matrix, normed), self.attention.n_heads))


def _constant(module: nn.Module, inputs: Tensor) -> Tensor:
    """Call a module whose parameters are constants."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    result: Tensor = torch.func.functional_call(module, parameters, (inputs,))
    return result


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

    has_layer_losses = has_idle_weights
    """True with a convolution, which a reconstruction loss trains."""

    def _zeros(self, batch_size: int, length: int) -> Memory:
        slots = self.settings.compressed_len if length else 0
        return super()._zeros(batch_size, length) + super()._zeros(batch_size, slots)

    def full_memory(self, batch_size: int, mem_len: int) -> Memory:
        return self._zeros(batch_size, self.settings.full_len(self.settings.visible_memory(mem_len)))

    def memory_is_full(self, memory: Memory, mem_len: int) -> bool:
        slots = memory[len(self.layers)].shape[1]
        slots_are_full = mem_len == 0 or slots >= self.settings.compressed_len
        return slots_are_full and super().memory_is_full(memory, mem_len)

    def memory_keeps_length(self, seg_len: int) -> bool:
        return seg_len % self.settings.compression_rate == 0

    def pasts(self, memory: Memory, mem_len: int, compressed_len: int | None = None) -> Sequence[AgingMemory]:
        """See `TransformerXL.pasts`; `compressed_len` is C, by default that of the settings."""
        n_layers = len(self.layers)
        memory = self._readable(memory)
        kept = 0
        if mem_len:
            kept = compressed_len or self.settings.compressed_len
        pasts = []
        for positions, slots in zip(memory[:n_layers], memory[n_layers:], strict=True):
            newest = slots[:, max(0, slots.shape[1] - kept) :]
            pasts.append(AgingMemory(hidden=positions, slots=newest, mem_len=mem_len, compressed_len=kept))
        return pasts

    def remember(self, pasts: Sequence[HiddenMemory], outputs: Sequence[LayerOutput], goal: Objective) -> Memory:
        """Return the positions of all layers, then the slots of all layers."""
        positions = []
        slots = []
        for past, output in zip(pasts, outputs, strict=True):
            assert isinstance(past, AgingMemory)
            assert output.slots is not None
            length = 0
            if goal.mem_len:
                compressed = output.slots.shape[1] * self.settings.compression_rate
                length = past.hidden.shape[1] + output.kept.shape[1] - compressed
            positions.append(update_memory(past.hidden, output.kept, mem_len=length))
            slots.append(update_memory(past.slots, output.slots, mem_len=past.compressed_len))
        return positions + slots


class CompressiveProducts(TransformerProducts):
    """Layers of a Transformer-XL that compress what leaves their memory, one position for each one that is read."""

    model: CompressiveSettings

    @property
    def matrices_per_layer(self) -> int:
        return (self.matrices() - self.matrices(".compression.")) // self.model.n_layers

    @property
    def _compression(self) -> int:
        """Products that compress one position."""
        return self.matrices(".compression.") // (self.model.n_layers * self.model.compression_rate)

    def decoding(self, settings: EvalSettings) -> float:
        # A token has its share of a slot, which is made, and projected to keys and values.
        slot = 2 * self.projection / self.model.compression_rate
        return super().decoding(settings) + self.model.n_layers * (self._compression + slot)

    def training(self, train: TrainSettings) -> float:
        # For the reconstruction loss, L queries attend to the L positions that leave, without gradient, and to the
        # slots in their place, which have one; so have their keys and values and the weights of the convolution.
        layers = super().training(train)
        if not (train.mem_len and self._compression):
            return layers
        rate = self.model.compression_rate
        # Query, key and value forward; key and value of the slots forward and backward.
        projections = 3 * self.projection + 2 * 2 * self.projection / rate
        # A query takes two products for each position, and for each slot three more in the backward pass.
        attention = (2 + 5 / rate) * train.seg_len * self.width
        reconstruction = 2 * self._compression + projections + attention
        return layers + self.model.n_layers * reconstruction


register_architecture(
    "compressive",
    settings=CompressiveSettings,
    model=CompressiveTransformer,
    products=CompressiveProducts,
    reader="states",
)
