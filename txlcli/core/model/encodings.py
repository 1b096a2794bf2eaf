"""What a model knows of the order of its tokens: the encodings that Table 6 compares, as classes beside each other.

An encoding may add vectors to what layers read, and terms to the attention score. Distances are relative: they mean the
same in the memory as in the segment. A position is absolute: it counts from the beginning of the segment, and what the
memory keeps was computed with the positions of *its* segment, so that position 3 of the memory and position 3 of the
segment look alike. That is the naive recurrence which section 3.3 begins with; the memory is never changed.

Axes: B lanes, L segment, H heads, D head width, d model width, N layers, n distances.
"""

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import TransformerSettings
from txlcli.core.kernels.device import cast_for_products
from txlcli.core.kernels.linear import Linear
from txlcli.core.model.attention import ScoreTerms, split_heads
from txlcli.core.model.dropout import Dropout
from txlcli.errors import UsageError


def sinusoids(numbers: Tensor, width: int) -> Tensor:
    """The sinusoids R of section 3.3: sines, then cosines.

    Args:
        numbers: (n,) distances or positions.
        width: d, even.
    Returns:
        (n, d) float64: a float32 angle is off by 1e-4 at distance 2000.
    """
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=numbers.device) / width)
    angle = numbers.to(torch.float64)[:, None] * frequency  # (n, d/2)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class Encoding(nn.Module):
    """An encoding that knows nothing: the attention score is (a) alone, and a layer reads what it is given."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings

    def check_positions(self, count: int) -> None:
        """Refuse segments or windows longer than the positions that were learned.

        Raises:
            UsageError: there are fewer.
        """

    def enter(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """What the first layer reads of the scaled embeddings (B, L, d), before dropout; positions (L,)."""
        return embedded

    def add(self, hidden: Tensor, layer: int, positions: Tensor) -> Tensor:
        """What layer number `layer` reads, and the memory keeps, of the hidden states (B, L, d)."""
        return hidden

    def terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        """What each of the N layers adds to its score of the distances 0 .. reach - 1.

        Args:
            reach: n.
            max_distance: distances beyond it share one encoding.
            like: gives dtype and device.
        """
        return [ScoreTerms(reach)] * self.settings.n_layers


def _distances(reach: int, most: int | None, like: Tensor) -> Tensor:
    """The distances n - 1 down to 0, (n,), those beyond `most` cut to it."""
    distances = torch.arange(reach - 1, -1, -1, device=like.device)
    return distances if most is None else distances.clamp(max=most)


class RelativeEncoding(Encoding):
    """Transformer-XL's own (3.3): sinusoids of distances, projected by every layer, with the biases u and v."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        d_model, n_heads, d_head = settings.d_model, settings.n_heads, settings.d_head
        pairs = 1 if settings.tie_biases else settings.n_layers
        self.content_bias = nn.Parameter(torch.empty(pairs, n_heads, d_head))
        self.position_bias = nn.Parameter(torch.empty(pairs, n_heads, d_head))
        layers = range(settings.n_layers)
        self.w_k_position = nn.ModuleList(Linear(d_model, n_heads * d_head, bias=False) for _ in layers)
        self.dropout = Dropout(settings.dropout, variational=settings.variational_dropout)

    def terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        """All of (b), (c) and (d); a distance is projected once, not once per pair (App. B)."""
        encoding = sinusoids(_distances(reach, max_distance, like), self.settings.d_model).to(like.dtype)
        encoding = cast_for_products(self.dropout(encoding))  # (n, d), one mask for all lanes and layers
        found = []
        for number, w_k_position in enumerate(self.w_k_position):
            pair = 0 if self.settings.tie_biases else number
            position_key = split_heads(w_k_position(encoding), self.settings.n_heads)
            found.append(ScoreTerms(reach, position_key, self.content_bias[pair], self.position_bias[pair]))
        return found


class ShawEncoding(Encoding):
    """Shaw et al. (2018): a learned vector per distance, layer and head; terms (a) and (b) only.

    In the words of section 3.3: W_k,R R merged into one trainable matrix. Distances without a vector of their own share
    the last one.
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        assert settings.n_positions is not None
        width = settings.n_heads * settings.d_head
        tables = (torch.empty(settings.n_positions, width) for _ in range(settings.n_layers))
        self.distance_tables = nn.ParameterList(nn.Parameter(table) for table in tables)

    def terms(self, reach: int, *, max_distance: int | None, like: Tensor) -> list[ScoreTerms]:
        """(b): position keys read from the layers' tables."""
        last = len(self.distance_tables[0]) - 1
        distances = _distances(reach, last if max_distance is None else min(last, max_distance), like)
        keys = (split_heads(table[distances], self.settings.n_heads) for table in self.distance_tables)
        return [ScoreTerms(reach, key) for key in keys]


class SinusoidEncoding(Encoding):
    """Vaswani et al. (2017): sinusoids of positions, added once, to the embeddings."""

    def enter(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """The sum of embeddings and sinusoids."""
        return embedded + sinusoids(positions, self.settings.d_model).to(embedded.dtype)


class LearnedEncoding(Encoding):
    """Al-Rfou et al. (2018): a learned vector per position and layer, added to what every layer reads."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        assert settings.n_positions is not None
        tables = (torch.empty(settings.n_positions, settings.d_model) for _ in range(settings.n_layers))
        self.position_tables = nn.ParameterList(nn.Parameter(table) for table in tables)

    def check_positions(self, count: int) -> None:
        """Positions without a vector cannot be read."""
        known = len(self.position_tables[0])
        if count > known:
            raise UsageError(
                f"the model has learned {known:,} positions, so it cannot read {count:,} tokens at once; "
                f"take segments and windows of at most {known:,}"
            )

    def add(self, hidden: Tensor, layer: int, positions: Tensor) -> Tensor:
        """The sum of hidden states and the layer's vectors."""
        return hidden + self.position_tables[layer][positions]


ENCODINGS: dict[str, type[Encoding]] = {
    "relative": RelativeEncoding,
    "shaw": ShawEncoding,
    "sinusoid": SinusoidEncoding,
    "learned": LearnedEncoding,
}
