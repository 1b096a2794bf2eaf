"""Random masks of dropout."""

import torch
from torch import Tensor

from txlcli.core.kernels.compilation import not_compiled

STEPS = 1 << 16
"""The rate is rounded to a multiple of 1 / STEPS on a CPU."""


def keep_mask(shape: torch.Size, rate: float, device: torch.device) -> Tensor:
    """Draw a uint8 mask from PyTorch's generator: 0 with probability `rate`, else 1."""
    if device.type == "cpu":
        return _keep_mask_on_cpu(shape, rate)
    return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - rate)


@not_compiled
def _keep_mask_on_cpu(shape: torch.Size, rate: float) -> Tensor:
    """Cut four 16-bit draws from each 64-bit random number: on a CPU one draw per entry makes plain dropout slow.

    The mask is uint8, not bool: creating a bool mask and multiplying by it takes three to five times as long.
    """
    dropped = round(rate * STEPS)
    if dropped == STEPS:  # one more than the largest 16-bit number: it would wrap around and keep everything
        return torch.zeros(shape, dtype=torch.uint8)
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    mask = torch.empty(count, dtype=torch.uint8)
    torch.ge(words.view(torch.int16)[:count], dropped - STEPS // 2, out=mask)
    return mask.view(shape)


def mask_scale(mask: Tensor, rate: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of a mask, 0 or 1 / (1 - rate), at least in float32: 16 bits would round them."""
    return mask.to(torch.promote_types(dtype, torch.float32)) / (1 - rate)
