"""Dropout: which activations are kept while a model trains.

Axes: B lanes, L segment, d width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

STEPS = 1 << 16  # shares are rounded to a 65536th


def keep_mask(shape: torch.Size, share: float, device: torch.device) -> Tensor:
    """A uint8 tensor of ones, with zeros of probability `share`, drawn from PyTorch's generator."""
    if device.type == "cpu":
        return _keep_mask_on_cpu(shape, share)
    return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - share)


@torch.compiler.disable
def _keep_mask_on_cpu(shape: torch.Size, share: float) -> Tensor:
    """Four 16-bit draws are taken from each 64-bit random number: a draw per entry makes plain dropout slow on a CPU.

    The mask holds numbers, not truth values: making those and multiplying by them takes three to five times as long.
    """
    dropped = round(share * STEPS)
    if dropped == STEPS:  # one more than the largest 16-bit number: it would wrap around and keep everything
        return torch.zeros(shape, dtype=torch.uint8)
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    mask = torch.empty(count, dtype=torch.uint8)
    torch.ge(words.view(torch.int16)[:count], dropped - STEPS // 2, out=mask)
    return mask.view(shape)


def _scale(mask: Tensor, share: float, dtype: torch.dtype) -> Tensor:
    """What a small mask multiplies numbers of this format by: 0, or 1 / (1 - share), which 16 bits would round."""
    return mask.to(torch.promote_types(dtype, torch.float32)) / (1 - share)


class Dropout(nn.Module):
    """Zeroes each entry with probability `share` while training and scales the rest by 1 / (1 - share).

    Args:
        share: dropped, at least 0 and less than 1.
        variational: draw one mask for all positions of a segment, or for all distances (Gal & Ghahramani 2016).
    """

    def __init__(self, share: float, *, variational: bool = False) -> None:
        super().__init__()
        self.share = share
        self.variational = variational

    def forward(self, hidden: Tensor) -> Tensor:
        """Any shape -> the same shape; where the mask is shared, its axes end in positions and channels."""
        return self._drop(hidden, None)

    def overwrite(self, hidden: Tensor) -> Tensor:
        """The same without a gradient, in the memory of `hidden` where that is as quick."""
        return self._drop(hidden, hidden)

    def _drop(self, hidden: Tensor, out: Tensor | None) -> Tensor:
        if not self.training or self.share == 0:
            return hidden
        if self.variational:
            shape = torch.Size((*hidden.shape[:-2], 1, hidden.shape[-1]))
            scale = _scale(keep_mask(shape, self.share, hidden.device), self.share, hidden.dtype)
            return (hidden * scale).to(hidden.dtype)
        if hidden.device.type != "cpu":
            return F.dropout(hidden, self.share)
        mask = keep_mask(hidden.shape, self.share, hidden.device)
        return torch.mul(hidden, mask, out=out).mul_(1 / (1 - self.share))

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"share={self.share}, variational={self.variational}"


class _RectifyAndDrop(torch.autograd.Function):
    """Dropout of ReLU. Its result is positive exactly where the gradient passes, so neither mask nor input is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, dropout: Dropout) -> Tensor:
        # Written over `hidden`. In the graph it stands beside it: a change in place would copy the gradient of a view.
        out = dropout.overwrite(hidden.detach().relu_())
        ctx.save_for_backward(out)
        ctx.share = dropout.share if dropout.training else 0.0
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        grad: Tensor = torch.ops.aten.threshold_backward(grad_outputs[0], out, 0)
        return grad.mul_(1 / (1 - ctx.share)) if ctx.share else grad, None


def rectify_and_drop(hidden: Tensor, dropout: Dropout) -> Tensor:
    """Dropout of ReLU, any shape -> the same shape; `hidden` may be overwritten.

    For the gradient nothing is kept but the result, which the product after it keeps anyway: the inner activations are
    the widest of a layer.
    """
    learning = torch.is_grad_enabled()
    if learning and not torch.compiler.is_compiling():
        dropped: Tensor = _RectifyAndDrop.apply(hidden, dropout)
        return dropped
    out: Tensor = dropout(F.relu(hidden, inplace=not learning))
    return out


class WordDropout(nn.Module):
    """Zeroes the vectors of whole words while training, every occurrence together, and scales those of the others.

    The first position of a segment is kept as it is. If nothing came before it and it were zero, it would stay zero up
    to the last layer, and every layer norm on the way back multiplies the gradient of a zero by eps ** -0.5: with
    sixteen layers of them it overflows.

    Args:
        share: of the vocabulary that is dropped, at least 0 and less than 1.
        vocab_size: V.
    """

    def __init__(self, share: float, vocab_size: int) -> None:
        super().__init__()
        self.share = share
        self.vocab_size = vocab_size

    def forward(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        """The embeddings (B, L, d) of tokens (B, L) -> the same shape."""
        if not self.training or self.share == 0:
            return embedded
        mask = keep_mask(torch.Size((self.vocab_size,)), self.share, embedded.device)
        scale = _scale(mask[tokens], self.share, embedded.dtype)  # (B, L)
        scale[:, 0] = 1.0
        return (embedded * scale[..., None]).to(embedded.dtype)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"share={self.share}, vocab_size={self.vocab_size}"
