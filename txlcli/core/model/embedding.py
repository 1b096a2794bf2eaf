"""Adaptive input embedding (Baevski & Auli 2018): frequent ids are embedded at full width, rare ones more narrowly.

A single band is a plain embedding.

Axes: T tokens, d model width, w width of a band, n ids of a band.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.bands import Band
from txlcli.core.kernels.linear import linear
from txlcli.core.model.dropout import WordDropout


def band_matrix(rows: int, columns: int) -> nn.Parameter:
    """Create a parameter without initial values."""
    return nn.Parameter(torch.empty(rows, columns))


class AdaptiveEmbedding(nn.Module):
    """One table per band, with projections to model width where the bands have them.

    Args:
        bands: of the vocabulary.
        d_model: d.
        word_dropout: share of words dropped while training.
    """

    def __init__(self, bands: list[Band], d_model: int, *, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.bands = bands
        self.d_model = d_model
        self.gradient_of_rows = False
        """Whether `backward` adds the gradient of the rows that were read, in place, to the softmax's of the table.

        Autograd would add two whole tables into a third, though one of them is nearly all zeros: on a CPU that is a
        fifth of a step with WikiText-103's vocabulary.
        """
        self.tables = nn.ParameterList(band_matrix(band.size, band.width) for band in bands)  # (n, w)
        widths = {str(band.projection): band.width for band in bands if band.projection is not None}
        self.projections = nn.ParameterDict(
            {name: band_matrix(d_model, width) for name, width in widths.items()}
        )  # (d, w)
        self.word_dropout = WordDropout(word_dropout, bands[-1].end)

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) ids -> (..., d) vectors, not yet scaled."""
        dropped: Tensor = self.word_dropout(self._vectors(tokens), tokens)
        return dropped

    def _vectors(self, tokens: Tensor) -> Tensor:
        """(...) ids -> (..., d), each by its band."""
        if len(self.bands) == 1:
            return self._embed(0, tokens)
        if tokens.device.type != "cpu":
            return self._choose(tokens)
        flat = tokens.flatten()  # (T,)
        embedded = self.tables[0].new_zeros(len(flat), self.d_model)
        for number, band in enumerate(self.bands):
            rows = ((flat >= band.first) & (flat < band.end)).nonzero()[:, 0]
            if len(rows) or torch.is_grad_enabled():  # in training a band without rows has a gradient of zeros
                embedded = embedded.index_copy(0, rows, self._embed(number, flat[rows] - band.first))
        return embedded.unflatten(0, tokens.shape)

    def _choose(self, tokens: Tensor) -> Tensor:
        """The same without asking how many tokens lie in a band, for which one would have to wait for a GPU.

        Every band embeds every token, and its own band's vector is chosen. What is computed in vain is less than a
        hundredth of the operations of a published model's layers.
        """
        embedded = self.tables[0].new_zeros(*tokens.shape, self.d_model)
        for number, band in enumerate(self.bands):
            here = (tokens >= band.first) & (tokens < band.end)
            vectors = self._embed(number, (tokens - band.first).clamp(0, band.size - 1))
            embedded = torch.where(here[..., None], vectors, embedded)
        return embedded

    def _embed(self, number: int, ids: Tensor) -> Tensor:
        """Ids (...) that count from the first of a band -> (..., d)."""
        table = self.tables[number]
        if self.gradient_of_rows and torch.is_grad_enabled() and ids.numel() < len(table):
            vectors = F.embedding(ids, _adding_rows(table), sparse=True)
        else:
            vectors = F.embedding(ids, table)
        projection = self.bands[number].projection
        if projection is None:
            return vectors
        # The sums of residuals begin here, so never in 16 bits; and to cast a matrix costs more than it saves here.
        with torch.autocast(vectors.device.type, enabled=False):
            return linear(vectors, self.projections[str(projection)])


def _adding_rows(table: nn.Parameter) -> Tensor:
    """The same memory as the table; a sparse gradient of it is added to the table's own by `backward`."""

    def add(rows: Tensor) -> None:
        assert rows.grad is not None
        table.grad = rows.grad.to_dense() if table.grad is None else table.grad.add_(rows.grad)
        rows.grad = None

    rows = table.detach().requires_grad_()
    rows.register_post_accumulate_grad_hook(add)
    return rows
