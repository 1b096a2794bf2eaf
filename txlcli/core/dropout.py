"""Dropout: which activations are kept while a model trains."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 1 << 16  # shares are rounded to a 65536th


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


class Dropout(nn.Module):
    """Zeroes each entry with probability `share` while training and scales the rest by 1 / (1 - share)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, hidden: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        if not self.training or self.share == 0:
            return hidden
        if hidden.device.type != "cpu":
            return F.dropout(hidden, self.share)
        kept = keep_mask(hidden.shape, self.share, hidden.device)
        return torch.where(kept, hidden, 0.0).mul_(1 / (1 - self.share))

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"share={self.share}"
