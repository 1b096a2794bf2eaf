"""The interface through which evaluation and generation use a model: read tokens in order, remember, predict.

`StateReader` reads with the memory that a model itself returns, such as a recurrent state;
`core.reading.decoder.Decoder` keeps the projected keys and values of models with attention.

Axes: B batch, L segment, d model width, V vocabulary.
"""

import copy
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import autocast, product_dtype
from txlcli.core.model.base import LanguageModel, Memory


class Reader(ABC):
    """Feeds segments of up to L tokens through a model and remembers what it needs of the past.

    Args:
        model: its weights must not change while the reader is used, which copies some now and reads others later.
        seg_len: the longest segment that will be read.
        precision: of matrix products.
    """

    def __init__(self, model: LanguageModel, *, seg_len: int, precision: str) -> None:
        self.model = self._prepare(model, precision)
        """A copy for reading, which cannot be copied again if its matrices are packed."""
        self.seg_len = seg_len
        self.device = model.device
        self._autocast = autocast(self.device, precision)

    def _prepare(self, model: LanguageModel, precision: str) -> LanguageModel:
        """Return what is read in place of the model: a copy, laid out for reading."""
        return _frozen(model, precision)

    @property
    @abstractmethod
    def housekeeping_interval(self) -> int:
        """Tokens between two slides of a buffer; a fair timing covers a multiple of it."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything that was read."""

    @abstractmethod
    def read(self, tokens: Tensor) -> Tensor:
        """Read a segment (B, l), l <= L, and return its last hidden states (B, l, d)."""

    @abstractmethod
    def read_last(self, tokens: Tensor, count: int = 1) -> Tensor:
        """Read (B, T), T any length, and return the last hidden states of the last `count` positions, (B, count, d)."""

    @torch.inference_mode()
    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities of all tokens: (B, l, d) -> (B, l, V)."""
        with self._autocast:
            return self.model.log_probs(hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and ids of the `count` likeliest tokens after a position (1, d), in that order."""
        with self._autocast:
            return self.model.softmax.likeliest(hidden, count, self.model.embedding)

    @torch.inference_mode()
    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy in nats of each target: (B, l, d), (B, l) -> (B, l)."""
        with self._autocast:
            return self.model.losses(hidden, targets)


class StateReader(Reader):
    """Reads text through `LanguageModel.forward`, and carries the memory that it returns: the state of an LSTM or a
    QRNN, which covers everything read before, or what another model keeps of the last M tokens.

    Args:
        model: its weights must not change while the reader is used.
        settings: M, and the longest segment that will be read.
        batch_size: B, in place of that of the settings.
        precision: of matrix products.
        in_windows: each text is a window, with nothing before it.
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: EvalSettings,
        *,
        batch_size: int,
        precision: str = "fp32",
        in_windows: bool = False,
    ) -> None:
        super().__init__(model, seg_len=settings.seg_len, precision=precision)
        self._batch_size, self._mem_len = batch_size, settings.mem_len
        self._first_len = 0 if in_windows else settings.mem_len
        self.reset()

    @property
    def housekeeping_interval(self) -> int:
        """One token: every token is the same work."""
        return 1

    def reset(self) -> None:
        """Forget everything that was read."""
        self.state: Memory = self.model.first_memory(self._batch_size, self._first_len)
        """The model's memory after the tokens read so far."""

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> Tensor:
        """Read a segment (B, l), l <= L, and return its last hidden states (B, l, d)."""
        with self._autocast:
            hidden, self.state = self.model(tokens, self.state, mem_len=self._mem_len)
        return hidden

    @torch.inference_mode()
    def read_last(self, tokens: Tensor, count: int = 1) -> Tensor:
        """Read (B, T), T any length, and return the last hidden states of the last `count` positions, (B, count, d)."""
        last, after = [], tokens.shape[1]
        for segment in tokens.split(self.seg_len, dim=1):
            hidden = self.read(segment)
            after -= segment.shape[1]  # positions after this segment
            if after < count:
                last.append(hidden[:, max(0, hidden.shape[1] + after - count) :])
        return torch.cat(last, dim=1)


def _frozen(model: LanguageModel, precision: str) -> LanguageModel:
    """Return a copy without dropout, whose matrices are cast and packed once, not at every segment.

    It shares the weights that need no other layout. A model already frozen at this precision is returned unchanged.
    """
    if model.read_in == precision:
        return model
    frozen = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).eval()
    dtype = product_dtype(precision, model.dtype)
    frozen.pack(dtype)
    if dtype != model.dtype:
        frozen.softmax = frozen.softmax.for_decoding(frozen.embedding, dtype)
    frozen.read_in = precision
    return frozen
