"""Adaptive input embedding (Baevski & Auli 2018): frequent ids are embedded at full width, rare ones more narrowly.

A single band is a plain embedding.

Axes: T tokens, d model width, w width of a band, n ids of a band.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.bands import Band
from txlcli.core.kernels.compilation import compiled
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.table_rows import rows_of_table
from txlcli.core.model.backends import FAST, Backend
from txlcli.core.model.dropout import WordDropout


def band_matrix(rows: int, columns: int) -> nn.Parameter:
    """Create an uninitialized parameter."""
    return nn.Parameter(torch.empty(rows, columns))


class AdaptiveEmbedding(nn.Module):
    """One table per band, and projections to model width for the bands that have them.

    Args:
        bands: of the vocabulary.
        d_model: d.
        word_dropout: probability of dropping a word in training.
    """

    backend: Backend = FAST

    def __init__(self, bands: list[Band], d_model: int, *, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.bands = bands
        self.d_model = d_model
        self.tables = nn.ParameterList(band_matrix(band.size, band.width) for band in bands)  # (n, w)
        self.projections = nn.ParameterDict()
        for band in bands:
            if band.projection is not None:
                self.projections[str(band.projection)] = band_matrix(d_model, band.width)  # (d, w)
        self.word_dropout = WordDropout(word_dropout, bands[-1].end)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed ids (...) -> (..., d), not yet scaled."""
        return self.join(self.look_up(tokens), tokens)

    def look_up(self, tokens: Tensor) -> list[Tensor]:
        """Return the vectors of ids (...) in the table of every band, (..., w), which `join` embeds.

        Each band looks up every token, as the number of its own is not known on a GPU. The unused work is less than a
        hundredth of the operations of a published model's layers.
        """
        if len(self.bands) == 1:
            return [self._vectors(0, tokens)]
        rows = compiled(rows_of_bands, self.backend.compiles)(self.bands, tokens)
        return [self._vectors(number, of_band) for number, of_band in enumerate(rows)]

    def join(self, vectors: list[Tensor], tokens: Tensor) -> Tensor:
        """Embed ids (...) -> (..., d), given the vectors that `look_up` returns."""
        embedded = self._project(0, vectors[0])
        for number, band in enumerate(self.bands[1:], start=1):
            own = (tokens >= band.first)[..., None]
            embedded = torch.where(own, self._project(number, vectors[number]), embedded)
        dropped: Tensor = self.word_dropout(embedded, tokens)
        return dropped

    def _vectors(self, number: int, ids: Tensor) -> Tensor:
        """Return the rows (..., w) of a band's table for ids (...) counted from the first of the band."""
        table = self.tables[number]
        if self.backend.gradient_of_rows and torch.is_grad_enabled() and ids.numel() < len(table):
            return rows_of_table(table, ids)
        return F.embedding(ids, table)

    def _project(self, number: int, vectors: Tensor) -> Tensor:
        """Project vectors (..., w) of a band -> (..., d)."""
        projection = self.bands[number].projection
        if projection is None:
            return vectors
        # The residual sums start here, so never in 16 bits; moreover, a cast of the matrix costs more than it saves.
        with torch.autocast(vectors.device.type, enabled=False):
            return linear(vectors, self.projections[str(projection)])


def rows_of_bands(bands: list[Band], tokens: Tensor) -> list[Tensor]:
    """Return the row of each band's table for each token (...), an arbitrary one for the tokens of other bands.

    In training these are all rows in turn: a GPU adds up the gradients of one row one after the other, even zeros.
    """
    if not torch.is_grad_enabled():
        return [(tokens - band.first).clamp(0, band.size - 1) for band in bands]
    turn = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape)
    rows = []
    for band in bands:
        is_own = (tokens >= band.first) & (tokens < band.end)
        rows.append(torch.where(is_own, tokens - band.first, turn % band.size))
    return rows
