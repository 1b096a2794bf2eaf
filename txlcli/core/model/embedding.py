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
    """Create an uninitialized parameter."""
    return nn.Parameter(torch.empty(rows, columns))


class AdaptiveEmbedding(nn.Module):
    """One table per band, and projections to model width for the bands that have them.

    Args:
        bands: of the vocabulary.
        d_model: d.
        word_dropout: probability of dropping a word in training.
    """

    def __init__(self, bands: list[Band], d_model: int, *, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.bands = bands
        self.d_model = d_model
        self.gradient_of_rows = False
        """True if `backward` adds the gradient of the rows that were read, in place, to the softmax's of the table.

        Autograd would add two whole tables into a third, although one of them is nearly all zeros: on a CPU that is a
        fifth of a training step with the vocabulary of WikiText-103.
        """
        self.tables = nn.ParameterList(band_matrix(band.size, band.width) for band in bands)  # (n, w)
        widths = {str(band.projection): band.width for band in bands if band.projection is not None}
        # (d, w)
        self.projections = nn.ParameterDict({name: band_matrix(d_model, width) for name, width in widths.items()})
        self.word_dropout = WordDropout(word_dropout, bands[-1].end)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed ids (...) -> (..., d), not yet scaled."""
        if len(self.bands) == 1:
            vectors = self._embed(0, tokens)
        else:
            counts_rows = tokens.device.type == "cpu" and not torch.compiler.is_compiling()  # an export has no counts
            vectors = self.embed_each_band(tokens) if counts_rows else self.embed_all_bands(tokens)
        dropped: Tensor = self.word_dropout(vectors, tokens)
        return dropped

    def embed_each_band(self, tokens: Tensor) -> Tensor:
        """Embed ids (...) -> (..., d): each band embeds its own tokens."""
        flat = tokens.flatten()  # (T,)
        embedded = self.tables[0].new_zeros(len(flat), self.d_model)
        for number, band in enumerate(self.bands):
            rows = ((flat >= band.first) & (flat < band.end)).nonzero()[:, 0]
            if len(rows) or torch.is_grad_enabled():  # in training, a band without rows has a gradient of zeros
                embedded = embedded.index_copy(0, rows, self._embed(number, flat[rows] - band.first))
        return embedded.unflatten(0, tokens.shape)

    def embed_all_bands(self, tokens: Tensor) -> Tensor:
        """Embed ids (...) -> (..., d) without counting the tokens of a band, which would have to wait for a GPU.

        Every band embeds every token, and the vector of the token's own band is selected. The unused work is less than
        a hundredth of the operations of a published model's layers.
        """
        embedded = self.tables[0].new_zeros(*tokens.shape, self.d_model)
        for number, band in enumerate(self.bands):
            inside = (tokens >= band.first) & (tokens < band.end)
            vectors = self._embed(number, _rows_of_all_tokens(tokens, band, inside))
            embedded = torch.where(inside[..., None], vectors, embedded)
        return embedded

    def _embed(self, number: int, ids: Tensor) -> Tensor:
        """Embed ids (...), counted from the first of a band -> (..., d)."""
        table = self.tables[number]
        if self.gradient_of_rows and torch.is_grad_enabled() and ids.numel() < len(table):
            vectors = F.embedding(ids, _with_gradient_of_rows(table), sparse=True)
        else:
            vectors = F.embedding(ids, table)
        projection = self.bands[number].projection
        if projection is None:
            return vectors
        # The residual sums start here, so never in 16 bits; moreover, a cast of the matrix costs more than it saves.
        with torch.autocast(vectors.device.type, enabled=False):
            return linear(vectors, self.projections[str(projection)])


def _rows_of_all_tokens(tokens: Tensor, band: Band, inside: Tensor) -> Tensor:
    """Return the row of a band's table for each token (...), an arbitrary one where the token is not `inside`.

    In training these are all rows in turn: a GPU adds up the gradients of one row one after the other, even zeros.
    """
    rows = tokens - band.first
    if not torch.is_grad_enabled():
        return rows.clamp(0, band.size - 1)
    in_turn = torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape) % band.size
    return torch.where(inside, rows, in_turn)


def _with_gradient_of_rows(table: nn.Parameter) -> Tensor:
    """Return an alias of the table whose sparse gradient `backward` adds to the table's own."""

    def add(rows: Tensor) -> None:
        assert rows.grad is not None
        table.grad = rows.grad.to_dense() if table.grad is None else table.grad.add_(rows.grad)
        rows.grad = None

    rows = table.detach().requires_grad_()
    rows.register_post_accumulate_grad_hook(add)
    return rows
