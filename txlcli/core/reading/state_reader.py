"""Reads text with an LSTM or a QRNN, whose state covers everything read before.

Axes: B batch, L segment, d model width.
"""

import torch
from torch import Tensor

from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader


class StateReader(Reader):
    """Reads text with a recurrent model: a token takes equally long after any number of others.

    Args:
        model: its weights must not change while the reader is used.
        batch_size: B.
        seg_len: length of the longest segment that will be read.
        precision: of matrix products.
    """

    def __init__(self, model: LanguageModel, *, batch_size: int, seg_len: int, precision: str = "fp32") -> None:
        super().__init__(model, seg_len=seg_len, precision=precision)
        self._batch_size = batch_size
        self.reset()

    @property
    def housekeeping_interval(self) -> int:
        """One token: every token is the same work."""
        return 1

    def reset(self) -> None:
        """Forget everything that was read."""
        self.state: Memory = self.model.first_memory(self._batch_size, 0)
        """State of each layer after the tokens read so far."""

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> Tensor:
        """Read a segment (B, l), l <= L, and return its last hidden states (B, l, d)."""
        with self._autocast:
            hidden, self.state = self.model(tokens, self.state, mem_len=0)
        return hidden

    @torch.inference_mode()
    def read_last(self, tokens: Tensor) -> Tensor:
        """Read (B, T), T any length, and return the last hidden state of the last position, (B, 1, d)."""
        for segment in tokens.split(self.seg_len, dim=1):
            hidden = self.read(segment)
        return hidden[:, -1:]
