"""The interface through which evaluation and generation use a model: read tokens in order, remember, predict.

`StateReader` reads with the memory that a model itself returns, such as a recurrent state;
`core.reading.decoder.Decoder` keeps the projected keys and values of models with attention.

Axes: B batch, L segment, d model width, V vocabulary.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.compilation import first_line, give_up_triton, path_in_words
from txlcli.core.kernels.cuda_graph import CaptureGraph
from txlcli.core.kernels.modes import autocast
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.errors import TxlError


class Reader(ABC):
    """Feeds segments of up to L tokens through a model and remembers what it needs of the past.

    The model may be in any mode. Its weights must not change while the reader is used, which copies some now and reads
    others later.

    Args:
        model: to read with.
        settings: B, M, the longest segment L that will be read, and the limits on distance.
        by_tokens: True if a segment ends after every L tokens, however many of them arrive at once, so that each token
            sees what it sees in a whole segment; else it ends after every call of `read`.
        tokens: number of tokens that will be read, as far as it is known.
        capture_graph: makes the graphs of a reader that has some; by default CUDA's, on CUDA.
    """

    housekeeping_interval = 1
    """Tokens between two slides of a buffer, or the like; a fair timing covers a multiple of it."""
    replays_tokens = False
    """True if CUDA graphs read single tokens."""
    _read_before = 0
    """Tokens since the text began."""

    def __init__(
        self,
        model: LanguageModel,
        settings: EvalSettings,
        *,
        by_tokens: bool = False,
        tokens: int = 0,
        capture_graph: CaptureGraph | None = None,
    ) -> None:
        self.settings = settings
        self.by_tokens = by_tokens
        self.device = model.device
        self.seg_len = settings.seg_len
        self.mem_len = settings.mem_len
        self.model = self._prepare(model, tokens)
        """A view of the model for reading."""
        self._autocast = autocast(self.device, model.backend.precision)
        self._set_up(capture_graph)

    @property
    def path(self) -> str:
        """How text has been read up to now; see `path_in_words`."""
        attention = self.model.attention_kernels
        return path_in_words(attention, compiled=self.model.backend.compiles_reading, captured=self.has_captured)

    @property
    def has_captured(self) -> bool:
        """True if a CUDA graph has read text."""
        return False

    def _set_up(self, capture_graph: CaptureGraph | None) -> None:
        """Allocate what the reader needs besides the model, and begin a text."""
        self.reset()

    def _prepare(self, model: LanguageModel, tokens: int) -> LanguageModel:
        """Return a view of the model for reading so many tokens."""
        return model.for_reading()

    def _first_memory(self) -> Memory:
        return self.model.first_memory(self.settings.batch_size, self.mem_len)

    @abstractmethod
    def reset(self) -> None:
        """Forget everything that was read."""

    @abstractmethod
    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        """Read a segment or a part of it (B, l); return the last hidden states of its last `count` positions."""

    def captured(self, function: Callable[..., Tensor], options: Hashable) -> Callable[..., Tensor]:
        """Return a function of tensors that calls another one with this reader, options, and them.

        A reader with CUDA graphs captures it as one: then the shapes of the tensors must not change, and the function
        must wait for nothing.
        """
        return partial(function, self, options)

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> Tensor:
        """Read a segment (B, l), l <= L, and return its last hidden states (B, l, d)."""
        return self.read_last(tokens, count=tokens.shape[1])

    @torch.inference_mode()
    def read_last(self, tokens: Tensor, count: int = 1) -> Tensor:
        """Read (B, T), T any length, and return the last hidden states of the last `count` positions, (B, count, d).

        The last layer projects keys for all positions but attends from those `count` alone.
        """
        hidden = []
        after = tokens.shape[1]
        for part in self._parts(tokens):
            length = part.shape[1]
            after -= length  # positions after this part
            of_part = min(length, max(0, count - after))
            hidden.append(self._on_fast_path(partial(self._run, part, count=of_part)))
        if len(hidden) == 1:
            return hidden[0]
        return torch.cat(hidden, dim=1)

    def _on_fast_path(self, compute: Callable[[], Tensor]) -> Tensor:
        """Call a function; if a kernel of Triton fails in it, say so, and call it again without these kernels."""
        before = self._read_before
        try:
            return compute()
        except (torch.OutOfMemoryError, TxlError):
            raise
        except Exception as error:
            if self.model.attention_kernels != "triton":
                raise
            reason = first_line(error)
        give_up_triton(self.device, reason)
        warnings.warn(f"text is read without Triton's kernels, which takes longer: {reason}", stacklevel=2)
        self._read_before = before
        return compute()

    def _parts(self, tokens: Tensor) -> list[Tensor]:
        """Cut tokens (B, T) into parts of up to L tokens; by tokens, a part ends where the present segment ends."""
        left = self.seg_len - self._in_segment
        first = tokens[:, :left]
        others = tokens[:, left:]
        if not others.shape[1]:
            return [first]
        return [first, *others.split(self.seg_len, dim=1)]

    @property
    def _in_segment(self) -> int:
        """Number of tokens of the present segment that were read by earlier calls."""
        if not self.by_tokens:
            return 0
        return self._read_before % self.seg_len

    @torch.inference_mode()
    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities of all tokens: (B, l, d) -> (B, l, V)."""
        with self._autocast:
            return self.model.log_probs(hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and ids of the `count` likeliest tokens after a position (1, d), in that order."""
        with self._autocast:
            return self.model.softmax.likeliest(hidden, count)

    @torch.inference_mode()
    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy in nats of each target: (B, l, d), (B, l) -> (B, l)."""
        with self._autocast:
            return self._on_fast_path(partial(self.model.losses, hidden, targets))


def limits_of(model: LanguageModel, settings: EvalSettings) -> dict[str, int]:
    """Return the limits of an evaluation that are set, by name; a model without attention has none."""
    if model.settings.recurrent_state:
        return {}
    limits = {
        "key_limit": settings.key_limit,
        "max_distance": settings.max_distance,
        "compressed_len": settings.compressed_len,
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


class StateReader(Reader):
    """Reads text with any model, and carries the memory that it returns: the state of an LSTM or a QRNN, which covers
    everything read before, or what another model keeps of the last segments.

    By tokens, the memory changes at the end of a segment only; see the contract of memory in `LanguageModel`.
    """

    state: Memory | None = None
    """The model's memory after the last complete segment, or after the last token; None before the first token."""
    _before: Memory
    """Beginning of the present segment, as `LanguageModel.read_part` needs it."""

    def reset(self) -> None:
        self.state = None
        self._before = []
        self._read_before = 0

    def _run(self, tokens: Tensor, *, count: int) -> Tensor:
        self._read_before += tokens.shape[1]
        memory = self.state or self._first_memory()
        with self._autocast:
            hidden, self.state, self._before = self.model.read_part(
                tokens,
                memory,
                self._before,
                mem_len=self.settings.mem_len,
                ends=not self._in_segment,
                **limits_of(self.model, self.settings),
            )
        return hidden[:, hidden.shape[1] - count :]
