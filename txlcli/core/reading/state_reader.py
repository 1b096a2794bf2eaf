"""Reads text with an LSTM or a QRNN, whose state covers everything read before.

Axes: B lanes, L segment, d model width.
"""

import torch
from torch import Tensor

from txlcli.core.model.rnn import RecurrentModel
from txlcli.core.reading.reader import Reader


class StateReader(Reader):
    """Reads text with a model that carries a state: one token costs the same after any number of others.

    Args:
        model: its weights must not change while the reader is used.
        lanes: B.
        seg_len: the longest segment that will be read.
        precision: number format of matrix products.
    """

    def __init__(self, model: RecurrentModel, *, lanes: int, seg_len: int, precision: str = "fp32") -> None:
        super().__init__(model, seg_len=seg_len, precision=precision)
        self._lanes = lanes
        self.reset()

    @property
    def housekeeping_interval(self) -> int:
        """Every token is the same work."""
        return 1

    def reset(self) -> None:
        """Forget everything that was read."""
        self._memory = self.model.first_memory(self._lanes, 0)

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> Tensor:
        """Read a segment (B, l), l <= L, and give its last hidden states (B, l, d)."""
        with self._autocast:
            hidden, self._memory = self.model(tokens, self._memory, mem_len=0)
        return hidden

    @torch.inference_mode()
    def read_last(self, tokens: Tensor) -> Tensor:
        """Read (B, T), T any length, and give the last hidden state of the last position only, (B, 1, d)."""
        for part in tokens.split(self.seg_len, dim=1):
            hidden = self.read(part)
        return hidden[:, -1:]
