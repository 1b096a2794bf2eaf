"""Parts of a layer other than attention, of the paper and later ones: normalization, feed-forward sublayer, gates.

Axes: B batch, L segment, d model width, F inner width.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config import traits
from txlcli.config.model_settings import TransformerSettings
from txlcli.core.backend import pad_to
from txlcli.core.kernels.device import cast_for_products
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.linear import Linear
from txlcli.errors import UsageError, shortened


class LayerNorm(nn.LayerNorm):
    """Layer normalization of hidden states whose rows may end in zeros, which stay zeros."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize (B, L, d or wider)."""
        (d_model,) = self.normalized_shape
        width = hidden.shape[-1]
        if width == d_model:
            return super().forward(hidden)
        mean = hidden.sum(-1, keepdim=True) / d_model
        is_padding = torch.arange(width, device=hidden.device) >= d_model
        scaled = _scaled(torch.where(is_padding, 0.0, hidden - mean), self)
        if self.bias is None:
            return scaled
        return scaled + pad_to(self.bias, width)


class RMSNorm(nn.RMSNorm):
    """RMSNorm (Zhang & Sennrich 2019) of hidden states whose rows may end in zeros, which stay zeros."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize (B, L, d or wider)."""
        if hidden.shape[-1:] == self.normalized_shape:
            return super().forward(hidden)
        return _scaled(hidden, self)


def _scaled(hidden: Tensor, norm: nn.LayerNorm | nn.RMSNorm) -> Tensor:
    """Divide rows of d numbers and zeros by their root mean square, and multiply them by the gains."""
    mean_square = hidden.square().sum(-1, keepdim=True) / norm.normalized_shape[0]
    scale = torch.rsqrt(mean_square + (norm.eps or 0.0))
    return hidden * scale * pad_to(norm.weight, hidden.shape[-1])


def make_norm(settings: TransformerSettings) -> nn.LayerNorm | nn.RMSNorm:
    """Return a normalization of hidden states."""
    if settings.parts.norm_type == "rms":
        return RMSNorm(settings.d_model, settings.norm_eps)
    return LayerNorm(settings.d_model, settings.norm_eps, bias=settings.parts.biases == "all")


class FeedForward(nn.Module):
    """The position-wise sublayer of the paper, without its residual and norm: W_2 relu(W_1 h + b_1) + b_2.

    A sublayer may be any module that is made from the settings and maps (B, L, d) to (B, L, d). A subclass of this one
    may declare two properties, with which layers are faster.
    """

    output_may_be_overwritten: ClassVar[bool] = False
    """True if the backward pass does not need the output, as that of a product, so that the residual may be added in
    place. That of tanh or sigmoid is needed."""
    reads_padded_rows: ClassVar[bool] = False
    """True if rows of the input may end in zeros up to a multiple, and then those of the output do, as with
    `core.model.linear.Linear`; compiled layers are faster on CUDA then."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        bias = settings.parts.biases == "all"
        self.ff_1 = Linear(settings.d_model, settings.inner_width, bias=bias)
        self.ff_2 = Linear(settings.inner_width, settings.d_model, bias=bias)
        self.dropout = Dropout.of(settings, "inner_dropout", "feed_forward_dropout")

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, d) -> (B, L, d)."""
        inner = self.dropout.after_relu(self.ff_1(hidden))  # (B, L, F)
        projected: Tensor = self.ff_2(inner)
        return projected


class ReluFeedForward(FeedForward):
    """The sublayer of the paper, as layers have it."""

    output_may_be_overwritten = True
    reads_padded_rows = True


class GatedFeedForward(FeedForward):
    """W_2 (gate(W_gate h) * W_1 h), with two thirds of the inner width, so that it has as many weights.

    The activation of a gate is PyTorch's; the fused operation of `core.kernels.dropout` is the paper's.
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        self.ff_gate = Linear(settings.d_model, settings.inner_width, bias=settings.parts.biases == "all")

    def gate(self, hidden: Tensor) -> Tensor:
        """Return the activation of W_gate h, (B, L, F)."""
        raise NotImplementedError

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.dropout(self.gate(self.ff_gate(hidden)) * self.ff_1(hidden))  # (B, L, F)
        projected: Tensor = self.ff_2(inner)
        return projected


class SwigluFeedForward(GatedFeedForward):
    """SwiGLU (Shazeer 2020): the gate is silu, x sigmoid(x)."""

    output_may_be_overwritten = True
    reads_padded_rows = True

    def gate(self, hidden: Tensor) -> Tensor:
        return F.silu(hidden)


FEED_FORWARDS: dict[str, type[nn.Module]] = {"relu": ReluFeedForward, "swiglu": SwigluFeedForward}
"""Class for each value of `model.feed_forward`."""


def register_feed_forward(name: str, cls: type[nn.Module], *, matrices: int) -> None:
    """Add a feed-forward sublayer, so that `model.feed_forward` accepts its name and layers have it.

    Args:
        name: value of `model.feed_forward`.
        cls: of the sublayer, a module as `FeedForward` describes it, whose only argument is the settings.
        matrices: number of its matrices of d_model x `settings.inner_width`, a width of 2 F / matrices, so that every
            sublayer has as many weights. A matrix of d_model x 2 inner_width counts as two.

    Raises:
        ValueError: the name is taken, or there are no matrices.
    """
    if matrices < 1:
        raise ValueError(f'the feed-forward sublayer "{name}" must have 1 matrix or more, not {matrices}')
    traits.register(traits.FEED_FORWARDS, name, matrices)
    FEED_FORWARDS[name] = cls


def make_feed_forward(settings: TransformerSettings) -> nn.Module:
    """Return the feed-forward sublayer of a layer.

    Raises:
        UsageError: its matrices do not have the weights of those that it was registered with.
    """
    name = settings.parts.feed_forward
    sublayer = FEED_FORWARDS[name](settings)
    matrices = [parameter for parameter in sublayer.parameters() if parameter.dim() > 1]
    weights = sum(matrix.numel() for matrix in matrices)
    declared = traits.FEED_FORWARDS[name]
    expected = declared * settings.d_model * settings.inner_width
    if weights != expected:
        shapes = ", ".join(" x ".join(map(str, matrix.shape)) for matrix in matrices)
        raise UsageError(
            f'the feed-forward sublayer "{name}" has matrices of {shortened(shapes)}, {weights:,} weights, but was '
            f"registered with {declared} of d_model x settings.inner_width ({settings.d_model} x "
            f"{settings.inner_width}), {expected:,} weights; change these sides, or matrices={declared}"
        )
    return sublayer


class GruGate(nn.Module):
    """A gated recurrent unit in place of a residual sum (GTrXL, Parisotto et al. 2020).

    Of hidden states x and the output y of a sublayer: r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b),
    g = tanh(W_g y + U_g (r * x)); the result is (1 - z) * x + z * g.
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        d_model = settings.d_model
        self.w_r = Linear(d_model, d_model, bias=False)
        self.w_z = Linear(d_model, d_model, bias=False)
        self.w_g = Linear(d_model, d_model, bias=False)
        self.u_r = Linear(d_model, d_model, bias=False)
        self.u_z = Linear(d_model, d_model, bias=False)
        self.u_g = Linear(d_model, d_model, bias=False)
        self.update_bias = nn.Parameter(torch.empty(d_model))

    def forward(self, hidden: Tensor, branch: Tensor) -> Tensor:
        """Combine x and y, (B, L, d) each, in the dtype of x."""
        dtype = hidden.dtype
        read = cast_for_products(hidden)
        reset = torch.sigmoid((self.w_r(branch) + self.u_r(read)).to(dtype))
        update = torch.sigmoid((self.w_z(branch) + self.u_z(read)).to(dtype) - self.update_bias)
        candidate = torch.tanh((self.w_g(branch) + self.u_g(cast_for_products(reset * hidden))).to(dtype))
        return hidden + update * (candidate - hidden)
