"""The QRNN language model (Bradbury et al. 2016): layers of gated sums over time.

Axes: B batch, L segment, W width of a layer.
"""

import torch
from torch import Tensor

from txlcli.config.model_settings import QrnnSettings
from txlcli.core.architectures.operations import MatrixProducts
from txlcli.core.architectures.recurrent import RecurrentLayer, RecurrentModel, State
from txlcli.core.architectures.registry import register_architecture
from txlcli.core.kernels.gated_sum import gated_sum
from txlcli.core.model.linear import Linear


class Qrnn(RecurrentLayer):
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
        shifted = [extended[:, first : first + length] for first in range(self.window)]
        windows = torch.cat(shifted, dim=2)  # (B, L, window * inputs)
        # The sums over time start here: never in 16 bits, whatever the dtype of the product.
        candidate, forget, output = self.gates(windows).to(before.dtype).chunk(3, dim=2)
        forget = forget.sigmoid()
        cell = gated_sum(forget, (1 - forget) * candidate.tanh(), before)  # c, (B, L, W)
        return output.sigmoid() * cell, (cell[:, -1], extended[:, length:])


class QrnnModel(RecurrentModel):
    """Layers of gated sums, of which the first reads several inputs per position."""

    def make_layer(self, number: int, *, inputs: int, width: int) -> Qrnn:
        if number == 0:
            return Qrnn(inputs=inputs, width=width, window=self.settings.first_window)
        return Qrnn(inputs=inputs, width=width, window=1)


register_architecture("qrnn", settings=QrnnSettings, model=QrnnModel, products=MatrixProducts, reader="states")
