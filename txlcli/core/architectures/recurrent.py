"""Language models of layers that carry a state from token to token (Table 8): `lstm.py` and `qrnn.py` have the layers.

Axes: B batch, L segment, d model width, W width of a layer, V vocabulary.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import RnnSettings
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.losses import Objective
from txlcli.core.model.module_list import ModuleList

State = tuple[Tensor, Tensor]
"""State of a layer: two tensors whose first axis is the lane."""


class RecurrentLayer(nn.Module, ABC):
    """A layer that carries a state."""

    state_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Of the two tensors of the state, without their first axis, the lane."""

    @abstractmethod
    def forward(self, hidden: Tensor, state: State) -> tuple[Tensor, State]:
        """Read (B, L, inputs) -> (B, L, W) and the state after it, both in the dtype of the state."""


def read_between_resets(
    read: Callable[[Tensor, State], tuple[Tensor, State]], hidden: Tensor, state: State, since_reset: Tensor | None
) -> tuple[Tensor, State]:
    """Call a layer as `RecurrentLayer.forward`, with zeros as the state of each lane where it begins anew.

    The layer is called once for all positions between two resets of any lanes.
    """
    if since_reset is None:
        return read(hidden, state)
    begins = since_reset == 0  # (B, L)
    resets = begins[:, 1:].any(dim=0).nonzero().flatten() + 1  # positions at which any lane begins anew
    cuts = [0, *resets.tolist(), hidden.shape[1]]
    parts = []
    for first, end in itertools.pairwise(cuts):
        lanes = begins[:, first]
        state = (_zeroed(state[0], lanes), _zeroed(state[1], lanes))
        part, state = read(hidden[:, first:end], state)
        parts.append(part)
    return torch.cat(parts, dim=1), state


def _zeroed(tensor: Tensor, lanes: Tensor) -> Tensor:
    """Return a tensor (B, ...) with zeros in some lanes (B,)."""
    shape = (len(lanes),) + (1,) * (tensor.dim() - 1)
    return tensor.masked_fill(lanes.view(shape), 0.0)


class RecurrentModel(LanguageModel):
    """Embedding, recurrent layers, softmax; dropout where AWD-LSTM has it (Merity et al. 2017).

    All layers are `d_hidden` wide but the last, which is as wide as the embedding, so that the softmax can be tied to
    it. The memory holds two tensors for each of the N layers, its state. It covers the whole text before the segment,
    so a memory length M has no meaning here.
    """

    settings: RnnSettings
    supports_reset = True

    def __init__(self, settings: RnnSettings, vocab_size: int) -> None:
        super().__init__(settings, vocab_size)
        widths = [settings.d_model, *settings.widths]
        self.layers: ModuleList[RecurrentLayer] = ModuleList(
            self.make_layer(number, inputs=inputs, width=width)
            for number, (inputs, width) in enumerate(itertools.pairwise(widths))
        )
        self.embedding_dropout = Dropout.of(settings, "embedding_dropout")
        self.dropout = Dropout.of(settings)
        self.output_dropout = Dropout.of(settings, "output_dropout")
        self.reset_parameters()

    @abstractmethod
    def make_layer(self, number: int, *, inputs: int, width: int) -> RecurrentLayer:
        """Return layer `number`, which reads so many inputs per position and is `width` wide."""

    def _initialize(self, name: str, parameter: nn.Parameter) -> None:
        """Initialize embedding and softmax.

        The layers keep PyTorch's initialization, as in AWD-LSTM: all parameters uniform, biases included, within
        1 / sqrt(W) for an LSTM and 1 / sqrt(inputs of the convolution) for a QRNN.
        """
        if not name.startswith("layers."):
            super()._initialize(name, parameter)

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        dtype = self.embedding.tables[0].dtype
        memory: Memory = []
        for layer in self.layers:
            for shape in layer.state_shapes:
                memory.append(torch.zeros(batch_size, *shape, dtype=dtype, device=self.device))
        return memory

    def forward(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        _, hidden, memory = self.read_undropped(tokens, memory, Objective(mem_len=mem_len))
        return hidden, memory

    def read_undropped(self, tokens: Tensor, memory: Memory, goal: Objective) -> tuple[Tensor, Tensor, Memory]:
        # Not scaled by sqrt(d) as in the Transformer: each step of Adam would then move a tied embedding too far.
        hidden = self.embedding_dropout(self.embedding(tokens))
        new_memory: Memory = []
        for number, layer in enumerate(self.layers):
            if number:
                hidden = self.dropout(hidden)
            if self.before_layer is not None:
                self.before_layer(number)
            state = (memory[2 * number], memory[2 * number + 1])
            hidden, state = read_between_resets(self.layer_function(layer), hidden, state, goal.since_reset)
            # Copies, because a view would keep the whole segment in memory.
            new_memory += [tensor.detach().clone() for tensor in state]
        return hidden, self.output_dropout(hidden), new_memory
