"""The LSTM language model: PyTorch's LSTM between embedding and softmax.

Axes: B batch, L segment, W width of a layer.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import RnnSettings
from txlcli.core.architectures.operations import MatrixProducts
from txlcli.core.architectures.recurrent import RecurrentLayer, RecurrentModel, State
from txlcli.core.architectures.registry import register_architecture


class Lstm(RecurrentLayer):
    """A layer of PyTorch's LSTM, with its two biases; its state is h and c, (B, W) each.

    With bf16 on CUDA, segments are read in fp32 and single tokens in bf16: under autocast cuDNN's LSTM has fp16 as its
    only 16-bit dtype, whose gradients vanish without loss scaling.
    """

    def __init__(self, *, inputs: int, width: int) -> None:
        super().__init__()
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


class LstmModel(RecurrentModel):
    """Layers of PyTorch's LSTM."""

    def make_layer(self, number: int, *, inputs: int, width: int) -> Lstm:
        return Lstm(inputs=inputs, width=width)


class LstmProducts(MatrixProducts):
    """Layers that multiply each input and each state by four gates."""

    def kernel_elements(self) -> int:
        # oneDNN keeps four gates, the cell and the output of each unit.
        return 6 * sum(self.model.widths)


register_architecture("lstm", settings=RnnSettings, model=LstmModel, products=LstmProducts, reader="states")
