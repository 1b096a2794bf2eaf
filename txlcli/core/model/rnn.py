"""LSTM and QRNN language models: layers that carry a state from token to token (Table 8).

Axes: B batch, L segment, d model width, W width of a layer, V vocabulary.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import RnnSettings
from txlcli.core.kernels.gated_sum import gated_sum
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.linear import Linear
from txlcli.core.model.module_list import ModuleList

State = tuple[Tensor, Tensor]
"""State of a layer: two tensors whose first axis is the lane."""


class Lstm(nn.Module):
    """A layer of PyTorch's LSTM, with its two biases; its state is h and c, (B, W) each.

    With bf16 on CUDA, segments are read in fp32 and single tokens in bf16: under autocast cuDNN's LSTM has fp16 as its
    only 16-bit dtype, whose gradients vanish without loss scaling.
    """

    def __init__(self, *, inputs: int, width: int, window: int) -> None:
        super().__init__()
        assert window == 1  # an LSTM sees one input at a time
        self.lstm = nn.LSTM(inputs, width, batch_first=True)
        self.state_shapes = ((width,), (width,))

    def forward(self, hidden: Tensor, state: State) -> tuple[Tensor, State]:
        """Read (B, L, inputs) -> (B, L, W) and the state after it, both in the dtype of the state."""
        dtype = state[0].dtype
        if hidden.shape[1] == 1:
            # The kernel for segments repacks its weights at each call, which takes longer than one token.
            last, cell = torch.lstm_cell(hidden[:, 0], state, *self.lstm.all_weights[0])
            return last[:, None].to(dtype), (last.to(dtype), cell.to(dtype))
        with _without_bf16(hidden.device):
            output, (last, cell) = self.lstm(hidden.to(dtype), (state[0][None], state[1][None]))
        return output.to(dtype), (last[0].to(dtype), cell[0].to(dtype))


def _without_bf16(device: torch.device) -> AbstractContextManager[object]:
    """Multiply in fp32 inside this block where autocast would multiply in bf16 on CUDA."""
    if device.type == "cuda" and torch.get_autocast_dtype("cuda") == torch.bfloat16:
        return torch.autocast("cuda", enabled=False)
    return nullcontext()


class Qrnn(nn.Module):
    """A layer of Bradbury et al. 2016 with an output gate ("fo-pooling").

    Candidate z, forget gate f and output gate o are a convolution over the last `window` inputs; then
    c_t = f_t c_(t-1) + (1 - f_t) z_t and h_t = o_t c_t. Its state is c, (B, W), and the last window - 1 inputs,
    (B, window - 1, inputs): zeros before the first token.
    """

    def __init__(self, *, inputs: int, width: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.gates = Linear(window * inputs, 3 * width)  # the oldest input first; then z, f, o
        self.state_shapes = ((width,), (window - 1, inputs))

    def forward(self, hidden: Tensor, state: State) -> tuple[Tensor, State]:
        """Read (B, L, inputs) -> (B, L, W) and the state after it, both in the dtype of the state."""
        before, past = state
        length = hidden.shape[1]
        extended = torch.cat([past, hidden], dim=1)  # (B, window - 1 + L, inputs)
        windows = torch.cat([extended[:, first : first + length] for first in range(self.window)], dim=2)
        # The sums over time start here: never in 16 bits, whatever the dtype of the product.
        candidate, forget, output = self.gates(windows).to(before.dtype).chunk(3, dim=2)
        forget = forget.sigmoid()
        sums = gated_sum(forget, (1 - forget) * candidate.tanh(), before)
        return output.sigmoid() * sums, (sums[:, -1], extended[:, length:])


LAYERS: dict[str, type[Lstm] | type[Qrnn]] = {"lstm": Lstm, "qrnn": Qrnn}


class RecurrentModel(LanguageModel):
    """Embedding, recurrent layers, softmax; dropout where AWD-LSTM has it (Merity et al. 2017).

    All layers are `d_hidden` wide but the last, which is as wide as the embedding, so that the softmax can be tied to
    it. The memory holds two tensors for each of the N layers, its state. It covers the whole text before the segment,
    so a memory length M has no meaning here.
    """

    settings: RnnSettings

    def __init__(self, settings: RnnSettings, vocab_size: int) -> None:
        super().__init__(settings, vocab_size)
        widths = [settings.d_model, *settings.widths]
        windows = [settings.first_window, *[1] * (settings.n_layers - 1)]
        cls = LAYERS[settings.arch]
        self.layers: ModuleList[Lstm | Qrnn] = ModuleList(
            cls(inputs=inputs, width=width, window=window)
            for inputs, width, window in zip(widths[:-1], widths[1:], windows, strict=True)
        )
        self.embedding_dropout = Dropout.of(settings, "embedding_dropout")
        self.dropout = Dropout.of(settings)
        self.output_dropout = Dropout.of(settings, "output_dropout")
        self.reset_parameters()

    def _initialize(self, name: str, parameter: nn.Parameter) -> None:
        """Initialize embedding and softmax.

        The layers keep PyTorch's initialization, as in AWD-LSTM: all parameters uniform, biases included, within
        1 / sqrt(W) for an LSTM and 1 / sqrt(inputs of the convolution) for a QRNN.
        """
        if not name.startswith("layers."):
            super()._initialize(name, parameter)

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        like = self.embedding.tables[0]
        return [like.new_zeros(batch_size, *shape) for layer in self.layers for shape in layer.state_shapes]

    def forward(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        _, hidden, memory = self._read_undropped(tokens, memory, mem_len)
        return hidden, memory

    def _read_undropped(self, tokens: Tensor, memory: Memory, mem_len: int) -> tuple[Tensor, Tensor, Memory]:
        # Not scaled by sqrt(d) as in the Transformer: each step of Adam would then move a tied embedding too far.
        hidden = self.embedding_dropout(self.embedding(tokens))
        new_memory: Memory = []
        for number, layer in enumerate(self.layers):
            if number:
                hidden = self.dropout(hidden)
            hidden, state = self.call_layer(layer, hidden, (memory[2 * number], memory[2 * number + 1]))
            # Copies, because a view would keep the whole segment in memory.
            new_memory += [tensor.detach().clone() for tensor in state]
        return hidden, self.output_dropout(hidden), new_memory
