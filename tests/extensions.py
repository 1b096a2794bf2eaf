"""An encoding and an architecture as a user of the package writes them, without a change of any source file.

Axes: B batch, L segment, d model width, H heads, N layers, n distances.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from txlcli.config import traits
from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.config.traits import EncodingTraits
from txlcli.core.architectures.operations import LayerProducts, MatrixProducts
from txlcli.core.architectures.registry import ARCHITECTURES, parameter_shapes, register_architecture
from txlcli.core.architectures.transformer import TransformerProducts
from txlcli.core.backend import ScoreTerms
from txlcli.core.measures import forecast
from txlcli.core.model import encodings, sublayers
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.encodings import Encoding, register_encoding
from txlcli.core.model.layer import update_memory
from txlcli.core.training import optimizer

BIAS_BY_DISTANCE = EncodingTraits(limits_distance=True, score_terms=("a", "d"))


class SlopesEncoding(Encoding):
    """A bias that falls linearly with distance (Press et al. 2022), with slopes that are trained."""

    def __init__(self, settings):
        super().__init__(settings)
        self.log_factors = nn.Parameter(torch.zeros(settings.n_heads))

    def score_terms(self, reach, *, max_distance, like):
        """Return a bias by distance, which all layers share."""
        distances = torch.arange(reach - 1, -1, -1, device=like.device)
        if max_distance is not None:
            distances = distances.clamp(max=max_distance)
        n_heads = self.settings.n_heads
        heads = torch.arange(1, n_heads + 1, dtype=like.dtype, device=like.device)
        slopes = 2.0 ** (-8 * heads / n_heads)
        bias = -(slopes * self.log_factors.exp())[:, None] * distances  # (H, n)
        return [ScoreTerms(reach, distance_bias=bias)] * self.settings.n_layers


def _ignore(*_):
    pass


@dataclass
class Watch:
    """Functions that the encoding "watched" calls; they may raise what a test wants a command to meet there."""

    on_terms: Callable[[int, int | None], None] = _ignore
    """Called with n and max_distance whenever score terms are computed."""
    on_embedding: Callable[[torch.Tensor], None] = _ignore
    """Called with the embeddings (B, L, d) of every segment."""


@dataclass(frozen=True, kw_only=True)
class GruSettings(ModelSettings):
    """[model] with arch = "gru"."""

    recurrent_state: ClassVar[bool] = True

    skip: bool = False
    """Add the embedding to the output."""


class GruModel(LanguageModel):
    """PyTorch's GRU of N layers between embedding and softmax; its memory is one tensor (B, N, d)."""

    def __init__(self, settings, vocab_size):
        super().__init__(settings, vocab_size)
        self.gru = nn.GRU(settings.d_model, settings.d_model, settings.n_layers, batch_first=True)
        for parameter in (*self.embedding.parameters(), *self.softmax.parameters()):
            nn.init.normal_(parameter, 0.0, settings.init_std)

    def first_memory(self, batch_size, mem_len):
        """Return zeros."""
        return [self.softmax.biases[0].new_zeros(batch_size, self.settings.n_layers, self.settings.d_model)]

    def full_memory(self, batch_size, mem_len):
        """Return the first memory: a state does not grow."""
        return self.first_memory(batch_size, mem_len)

    def forward(self, tokens, memory, *, mem_len):
        """Read one segment (B, L)."""
        embedded = self.embedding(tokens)
        hidden, state = self.gru(embedded, memory[0].transpose(0, 1).contiguous())
        return hidden + embedded if self.settings.skip else hidden, [state.transpose(0, 1).detach().clone()]


class GruProducts(LayerProducts):
    """Three gates, each from the input and from the state."""

    def decoding(self, settings):
        """Return the products of one token."""
        return 6 * self.model.n_layers * self.model.d_model**2


class PairsModel(LanguageModel):
    """Embeddings, each with half of the embedding before it; its memory is the last M embeddings, (B, M, d)."""

    def __init__(self, settings, vocab_size):
        super().__init__(settings, vocab_size)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0.0, settings.init_std)

    def first_memory(self, batch_size, mem_len):
        """Return an empty memory."""
        return self.full_memory(batch_size, 0)

    def full_memory(self, batch_size, mem_len):
        """Return zeros."""
        return [self.softmax.biases[0].new_zeros(batch_size, mem_len, self.settings.d_model)]

    def forward(self, tokens, memory, *, mem_len):
        """Read one segment (B, L)."""
        embedded = self.embedding(tokens)
        context = torch.cat([memory[0], embedded], dim=1)  # (B, M + L, d)
        before = nn.functional.pad(context, (0, 0, 1, 0))[:, :-1][:, -tokens.shape[1] :]
        return embedded + before / 2, [update_memory(memory[0], embedded.detach(), mem_len=mem_len)]


TABLES = (
    *(MODELS, ARCHITECTURES),
    *(traits.ENCODING_TRAITS, encodings.ENCODINGS),
    *(traits.FEED_FORWARDS, sublayers.FEED_FORWARDS),
    *(traits.OPTIMIZERS, optimizer.OPTIMIZERS),
)
"""All tables in which a package can register its classes."""


@contextlib.contextmanager
def restored_tables():
    """Undo all registrations after this block, and forget what was computed of them: a name may be given again."""
    before = [dict(table) for table in TABLES]
    try:
        yield
    finally:
        for table, rows in zip(TABLES, before, strict=True):
            table.clear()
            table.update(rows)
        for computed in (parameter_shapes, forecast._traced_bytes, forecast._memory_bytes):
            computed.cache_clear()


@contextlib.contextmanager
def registered_encoding(name, cls, declared=BIAS_BY_DISTANCE):
    """Register an encoding inside this block."""
    with restored_tables():
        register_encoding(name, cls, declared)
        yield


@contextlib.contextmanager
def registered_feed_forward(name, cls, *, matrices):
    """Register a feed-forward sublayer inside this block."""
    with restored_tables():
        sublayers.register_feed_forward(name, cls, matrices=matrices)
        yield


def registered_slopes():
    """Register SlopesEncoding as "slopes" inside a block."""
    return registered_encoding("slopes", SlopesEncoding)


@contextlib.contextmanager
def registered_watched():
    """Register slopes that call the functions of a `Watch` as "watched" inside this block, and yield the watch."""
    watch = Watch()

    class WatchedEncoding(SlopesEncoding):
        def add_to_embedding(self, embedded, positions):
            watch.on_embedding(embedded)
            return super().add_to_embedding(embedded, positions)

        def score_terms(self, reach, *, max_distance, like):
            watch.on_terms(reach, max_distance)
            return super().score_terms(reach, max_distance=max_distance, like=like)

    with registered_encoding("watched", WatchedEncoding):
        yield watch


@contextlib.contextmanager
def registered_architecture(name, *, settings, model, products=TransformerProducts, reader="states"):
    """Register an architecture inside this block."""
    with restored_tables():
        register_architecture(name, settings=settings, model=model, products=products, reader=reader)
        yield


def registered_gru():
    """Register GruModel as "gru" inside a block."""
    return registered_architecture("gru", settings=GruSettings, model=GruModel, products=GruProducts)


def registered_pairs():
    """Register PairsModel, without attention and without a recurrent state, as "pairs" inside a block."""
    return registered_architecture("pairs", settings=ModelSettings, model=PairsModel, products=MatrixProducts)


@contextlib.contextmanager
def registered_optimizer(name, entry):
    """Register an optimizer to which no further settings apply inside this block."""
    with restored_tables():
        optimizer.register_optimizer(name, entry)
        yield
