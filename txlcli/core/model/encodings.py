"""Encodings of positions: the encodings of Table 6 and later ones, one class each.

An encoding has four hooks of the forward pass. It may add vectors to the embeddings, add vectors to what every layer
reads, rotate queries and keys, and add terms to the attention score. One more hook initializes its parameters, and one
rejects positions that it cannot encode.

Distances are relative: they mean the same in the memory as in the segment. A position is absolute: it counts from the
beginning of the segment, and the memory was computed with the positions of *its* segment, so that position 3 of the
memory and position 3 of the segment look alike. That is the naive recurrence with which section 3.3 begins; the memory
is never changed.

A new encoding is a class here, its row in `ENCODINGS`, and its row of `config.traits`. `register_encoding` adds one
from outside the package.

Axes: B batch, L segment, H heads, D head width, d model width, N layers, n distances.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config import traits as config
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.traits import EncodingTraits
from txlcli.core.backend import Rotation, ScoreTerms, pad_to, round_up
from txlcli.core.kernels.compilation import compiled
from txlcli.core.kernels.compiled_layers import joined_heads
from txlcli.core.kernels.device import cast_for_products, float64_device, row_multiple
from txlcli.core.model.attention import distance_encoding, split_heads
from txlcli.core.model.backends import FAST, Backend
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.linear import Linear
from txlcli.core.model.module_list import ModuleList
from txlcli.errors import UsageError


class Encoding(nn.Module):
    """Base class and no-op encoding: the score is (a) alone. Subclasses override the hooks that they need.

    Vectors by distance are `ScoreTerms.position_key`, a penalty by distance alone `ScoreTerms.distance_bias`. Vectors
    that each layer is to project like its hidden states are `ScoreTerms.distances`. See `ScoreTerms` for their order.
    All attention backends, the decoder and `txl attention` support these.
    """

    backend: Backend = FAST

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings

    @property
    def rotates(self) -> bool:
        """True if the encoding rotates queries and keys."""
        return type(self).rotation is not Encoding.rotation

    @property
    def changes_layers(self) -> bool:
        """True if the encoding adds to what a layer reads, or rotates its queries and keys."""
        return self.rotates or type(self).add_to_layer_input is not Encoding.add_to_layer_input

    def reset_parameters(self) -> None:
        """Initialize parameters that are not initialized like the model's.

        The model calls this after it has initialized all parameters, including the encoding's: matrices are
        normal with `init_std`, vectors are zeros. What `__init__` writes into a parameter is overwritten.
        """

    def check_positions(self, count: int) -> None:
        """Raise a UsageError if a segment or window is longer than the positions that the model has learned."""

    def add_to_embedding(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """Return the input of the first layer, before dropout: scaled embeddings (B, L, d) at positions (L,)."""
        return embedded

    def add_to_layer_input(self, hidden: Tensor, layer: int, positions: Tensor) -> Tensor:
        """Return the input of layer number `layer`, which the memory keeps, from hidden states (B, L, d)."""
        return hidden

    def rotation(self, positions: Tensor) -> Rotation | None:
        """Return the change of queries and keys at positions (x,), or None for no change.

        These positions count through memory and segment from any origin, so that only their differences may matter.
        """
        return None

    def score_terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        """Return the score terms of each of the N layers, for the distances 0 .. reach - 1.

        Args:
            reach: n.
            max_distance: distances beyond it share one encoding.
            like: gives dtype and device.
        """
        return [ScoreTerms(reach)] * self.settings.n_layers


def _distances(reach: int, max_distance: int | None, device: torch.device) -> Tensor:
    """Return the distances n - 1 down to 0, (n,), those beyond `max_distance` clamped to it."""
    distances = torch.arange(reach - 1, -1, -1, device=device)
    if max_distance is None:
        return distances
    return distances.clamp(max=max_distance)


def dropped_encodings(dropout: Dropout, reach: int, max_distance: int | None, like: Tensor, width: int) -> Tensor:
    """Return R of the distances n - 1 down to 0, (n, d), with one dropout mask for the batch and all layers."""
    encodings = distance_encoding(_distances(reach, max_distance, like.device), width).to(like.dtype)
    return cast_for_products(dropout(encodings))


class SinusoidsOfDistances(Encoding):
    """Base class of encodings that project the sinusoids R of section 3.3."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        self.dropout = Dropout.of(settings, "distance_dropout")

    def sinusoids(self, reach: int, max_distance: int | None, like: Tensor) -> Tensor:
        """Return R of the distances n - 1 down to 0, (n, d), after dropout."""
        compute = compiled(dropped_encodings, self.backend.compiles)
        return compute(self.dropout, reach, max_distance, like, self.settings.d_model)


class RelativeEncoding(SinusoidsOfDistances):
    """The paper's encoding (3.3): sinusoids of distances, projected by every layer, with the biases u and v."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        pairs = 1 if settings.tie_biases else settings.n_layers
        self.content_bias = nn.Parameter(torch.empty(pairs, settings.n_heads, settings.d_head))
        self.position_bias = nn.Parameter(torch.empty(pairs, settings.n_heads, settings.d_head))
        width = settings.n_heads * settings.d_head
        self.w_k_position: ModuleList[Linear] = ModuleList(
            Linear(settings.d_model, width, bias=False) for _ in range(settings.n_layers)
        )

    def score_terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        """Return (b), (c) and (d); a distance is projected once, not once per pair (App. B)."""
        encoding = self.sinusoids(reach, max_distance, like)
        if self.backend.attend_context is None:
            projected = self._project_by_layer(encoding)
        else:
            projected = self._project_at_once(encoding)
        terms = []
        for keys, content_bias, position_bias in projected:
            position_key = split_heads(keys, self.settings.n_heads)
            terms.append(ScoreTerms(reach, position_key, content_bias, position_bias))
        return terms

    def _project_by_layer(self, encoding: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield W_kR R, (n, H * D), u and v of each layer, from the encodings R (n, d)."""
        for number, w_k_position in enumerate(self.w_k_position):
            pair = 0 if self.settings.tie_biases else number
            yield w_k_position(encoding), self.content_bias[pair], self.position_bias[pair]

    def _project_at_once(self, encoding: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the results of `_project_by_layer`, with one product and a sum of all gradients of a bias."""
        n_layers = len(self.w_k_position)
        multiple = row_multiple(encoding.device)
        count, width = (round_up(size, multiple) for size in encoding.shape)
        weight = joined_heads(self.w_k_position, self.settings.d_head, width)
        projected = F.linear(pad_to(encoding, width, count), weight)  # (n, N * H * D)
        keys = projected.chunk(n_layers, dim=1)
        content_biases = self.content_bias.expand(n_layers, -1, -1).unbind()
        position_biases = self.position_bias.expand(n_layers, -1, -1).unbind()
        return zip(keys, content_biases, position_biases, strict=True)


class TiedRelativeEncoding(SinusoidsOfDistances):
    """The paper's encoding without weights of its own: sinusoids of distances, projected by W_k and W_q of every layer.

    The position keys are W_k R, and u = v = W_q R_0.
    """

    def score_terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        distances = self.sinusoids(reach, max_distance, like)
        return [ScoreTerms(reach, distances=distances)] * self.settings.n_layers


class ShawEncoding(Encoding):
    """Shaw et al. (2018): a learned vector per distance, layer and head; terms (a) and (b) only.

    In the terms of section 3.3: W_kR R merged into one trainable matrix. Distances without a vector of their own share
    the last one.
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        assert settings.n_positions is not None
        width = settings.n_heads * settings.d_head
        tables = (torch.empty(settings.n_positions, width) for _ in range(settings.n_layers))
        self.distance_tables = nn.ParameterList(nn.Parameter(table) for table in tables)

    def score_terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        last = len(self.distance_tables[0]) - 1
        farthest = last if max_distance is None else min(last, max_distance)
        distances = _distances(reach, farthest, like.device)
        keys = (split_heads(table[distances], self.settings.n_heads) for table in self.distance_tables)
        return [ScoreTerms(reach, key) for key in keys]


class SinusoidEncoding(Encoding):
    """Vaswani et al. (2017): sinusoids of positions, added once, to the embeddings."""

    def add_to_embedding(self, embedded: Tensor, positions: Tensor) -> Tensor:
        return embedded + distance_encoding(positions, self.settings.d_model).to(embedded.dtype)


class LearnedEncoding(Encoding):
    """Al-Rfou et al. (2018): a learned vector per position and layer, added to what every layer reads."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        assert settings.n_positions is not None
        tables = (torch.empty(settings.n_positions, settings.d_model) for _ in range(settings.n_layers))
        self.position_tables = nn.ParameterList(nn.Parameter(table) for table in tables)

    def check_positions(self, count: int) -> None:
        n_positions = len(self.position_tables[0])
        if count > n_positions:
            raise UsageError(
                f"the model has learned {n_positions:,} positions, so it cannot read {count:,} tokens at once; "
                f"take segments and windows of at most {n_positions:,}"
            )

    def add_to_layer_input(self, hidden: Tensor, layer: int, positions: Tensor) -> Tensor:
        return hidden + self.position_tables[layer][positions]


class RotaryEncoding(Encoding):
    """Su et al. (2021): queries and keys are rotated by their positions, so that (a) depends on distance.

    Pair c turns by 10000 ** (-2c / D) per position. Only differences of positions matter, so the memory needs no
    positions of its own.
    """

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the rotation by positions (x,), with angles in float64: a text may be long."""
        sine, cosine = distance_encoding(positions, self.settings.d_head).chunk(2, dim=-1)
        return Rotation(cosine, sine)


class AlibiEncoding(Encoding):
    """Press et al. (2022): a penalty that grows with the distance, at a fixed slope for each head."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        # Not a buffer: a cast of the model would round the slopes, and a model without data has none.
        self._slopes = torch.tensor(alibi_slopes(settings.n_heads), dtype=torch.float64, device="cpu")
        self._slopes_on_device = self._slopes

    def score_terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        device = float64_device(like.device)
        if self._slopes_on_device.device != device:  # once: a CUDA graph cannot contain this copy
            self._slopes_on_device = self._slopes.to(device)
        penalty = -self._slopes_on_device[:, None] * _distances(reach, max_distance, device)
        bias = penalty.to(like.dtype).to(like.device)
        return [ScoreTerms(reach, distance_bias=bias)] * self.settings.n_layers


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8h/H) for h = 1 .. H if H is a power of two.

    For another H, the slopes of the next smaller power of two come first, then every second one of the next larger.
    """
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes + [2.0 ** (-4 * head / power) for head in range(1, 2 * (n_heads - power), 2)]


class T5Encoding(Encoding):
    """Raffel et al. (2020): a learned bias per head and range of distances, shared by all layers.

    Distances 0 to 15 have a bias of their own. Sixteen ranges follow, each 8^(1/16) times as long as the one before;
    the last one also has the distances from 128 on. The bias is added to the scaled score; T5 does not scale scores.
    """

    BUCKETS = 32
    FARTHEST = 128

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        self.bucket_biases = nn.Parameter(torch.empty(settings.n_heads, self.BUCKETS))

    def score_terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        distances = _distances(reach, max_distance, float64_device(like.device))
        bias = self.bucket_biases[:, self.buckets(distances).to(like.device)]
        return [ScoreTerms(reach, distance_bias=bias)] * self.settings.n_layers

    @classmethod
    def buckets(cls, distances: Tensor) -> Tensor:
        """Return the number of the range (n,) to which each distance (n,) belongs; computed in float64."""
        exact = cls.BUCKETS // 2
        ratio = distances.clamp(min=exact).to(torch.float64) / exact
        share = ratio.log() / math.log(cls.FARTHEST / exact)  # of the way to the last range
        ranges = exact + (share * (cls.BUCKETS - exact)).to(torch.int64)
        return torch.where(distances < exact, distances, ranges.clamp(max=cls.BUCKETS - 1))


ENCODINGS: dict[str, type[Encoding]] = {
    "relative": RelativeEncoding,
    "relative_tied": TiedRelativeEncoding,
    "shaw": ShawEncoding,
    "sinusoid": SinusoidEncoding,
    "learned": LearnedEncoding,
    "rotary": RotaryEncoding,
    "alibi": AlibiEncoding,
    "t5": T5Encoding,
    "none": Encoding,
}
"""Class for each value of `model.position`."""


def register_encoding(name: str, cls: type[Encoding], traits: EncodingTraits) -> None:
    """Add an encoding, so that `model.position` accepts its name and models compute it.

    Raises:
        ValueError: the name is taken.
    """
    config.register(config.ENCODING_TRAITS, name, traits)
    ENCODINGS[name] = cls
