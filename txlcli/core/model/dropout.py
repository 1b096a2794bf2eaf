"""Dropout of activations and of words.

Axes: B batch, L segment, d width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import ModelSettings
from txlcli.core.kernels.dropout import keep_mask
from txlcli.core.model.backends import FAST


class Dropout(nn.Module):
    """Zeroes each entry with probability `rate` in training and scales the others by 1 / (1 - rate).

    Args:
        rate: probability that an entry is dropped, at least 0 and less than 1.
        variational: share one mask among all positions of a segment, or all distances (Gal & Ghahramani 2016).
    """

    backend = FAST

    def __init__(self, rate: float, *, variational: bool = False) -> None:
        super().__init__()
        self.rate = rate
        self.variational = variational

    @classmethod
    def of(cls, settings: ModelSettings, *keys: str) -> "Dropout":
        """Return dropout at the first of these rates that is set, or at `settings.dropout`."""
        return cls(settings.dropout_rate(*keys), variational=settings.variational_dropout)

    @property
    def active_rate(self) -> float:
        """The rate in training, 0 in evaluation."""
        return self.rate if self.training else 0.0

    def forward(self, hidden: Tensor) -> Tensor:
        """Drop entries of a tensor of any shape; with a shared mask, its last axes are positions and channels."""
        return self.backend.dropout(hidden, self.active_rate, variational=self.variational)

    def after_relu(self, hidden: Tensor) -> Tensor:
        """Drop entries of relu(hidden), which may be overwritten."""
        return self.backend.relu_dropout(hidden, self.active_rate, variational=self.variational)


DROPPED = 1e-12
"""Each entry of a dropped word's vector; in 16-bit floats without so small a number, the smallest normal one."""


class WordDropout(nn.Module):
    """Drops the vectors of whole words in training, every occurrence together, and scales those of the others.

    A dropped vector is DROPPED in each entry, not 0: a zero with nothing before it stays zero up to the last layer, and
    each layer norm on the way back multiplies its gradient by eps ** -0.5, which overflows in sixteen layers. A few
    norms bring a small vector to the size of the others.

    Args:
        rate: probability that a word is dropped, at least 0 and less than 1.
        vocab_size: V.
    """

    def __init__(self, rate: float, vocab_size: int) -> None:
        super().__init__()
        self.rate = rate
        self.vocab_size = vocab_size

    def forward(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        """Drop words from embeddings (B, L, d) of tokens (B, L)."""
        if not self.training or self.rate == 0:
            return embedded
        mask = keep_mask(torch.Size((self.vocab_size,)), self.rate, embedded.device)
        kept = mask[tokens][..., None] != 0
        dropped = max(DROPPED, torch.finfo(embedded.dtype).tiny)
        return torch.where(kept, embedded / (1 - self.rate), dropped)
