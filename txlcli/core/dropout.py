"""Dropout: which activations are kept while a model trains.

Axes: B lanes, L segment, d width, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 1 << 16  # shares are rounded to a 65536th


@torch.compiler.disable
def keep_mask(shape: torch.Size, share: float, device: torch.device) -> Tensor:
    """A bool tensor whose entries are False with probability `share`, drawn from PyTorch's generator.

    On a CPU four 16-bit draws are taken from each 64-bit random number: one draw per entry is what makes plain dropout
    slow there.
    """
    if device.type != "cpu":
        return torch.rand(shape, device=device) >= share
    dropped = round(share * STEPS)
    if dropped == STEPS:  # one more than the largest 16-bit number: it would wrap around and keep everything
        return torch.zeros(shape, dtype=torch.bool)
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    return (words.view(torch.int16)[:count] >= dropped - STEPS // 2).view(shape)


def _times(hidden: Tensor, kept: Tensor, share: float) -> Tensor:
    """What a small mask keeps of `hidden`, times 1 / (1 - share); the mask is broadcast."""
    exact = torch.promote_types(hidden.dtype, torch.float32)  # a 16-bit mask would round the scale
    return (hidden * (kept.to(exact) / (1 - share))).to(hidden.dtype)


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
        if not self.training or self.share == 0:
            return hidden
        if self.variational:
            shape = torch.Size((*hidden.shape[:-2], 1, hidden.shape[-1]))
            return _times(hidden, keep_mask(shape, self.share, hidden.device), self.share)
        if hidden.device.type != "cpu":
            return F.dropout(hidden, self.share)
        kept = keep_mask(hidden.shape, self.share, hidden.device)
        return torch.where(kept, hidden, 0.0).mul_(1 / (1 - self.share))

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"share={self.share}, variational={self.variational}"


class WordDropout(nn.Module):
    """Zeroes the vectors of whole words while training, every occurrence together, and scales those of the others.

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
        kept = keep_mask(torch.Size((self.vocab_size,)), self.share, embedded.device)
        return _times(embedded, kept[tokens][..., None], self.share)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"share={self.share}, vocab_size={self.vocab_size}"
