"""Adaptive softmax (Grave et al. 2016).

The softmax first chooses among the ids of the head band and one cluster per tail band, then among the ids of that band,
so that a tail is computed only for the tokens that need it. A single band is a plain softmax.

Axes: T tokens, d model width, w width of a band, n ids of a band, C tail bands, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.bands import Band
from txlcli.core.backend import Backend
from txlcli.core.kernels.compilation import compiled
from txlcli.core.kernels.device import autocast_dtype, row_multiple_of_products, send
from txlcli.core.kernels.linear import linear, pad_columns
from txlcli.core.kernels.normalizer import SpareGradient, token_losses, total_loss
from txlcli.core.model.backends import FAST
from txlcli.core.model.embedding import AdaptiveEmbedding, band_matrix


class BandOperands(NamedTuple):
    """Operands of the losses of targets, by band."""

    operands: list[tuple[Tensor, Tensor, Tensor, Tensor]]
    """The first arguments of `token_losses` for each band: of all tokens (T,) for the head, of rows (n,) for a tail."""
    cluster_normalizer: Tensor | None
    """Log normalizer (T,) of the logits of all clusters; None without tails."""
    cluster_logit: Tensor | None
    """Logit (T,) of the target's cluster, 0 for a target in the head; None without tails."""
    weights: list[Tensor]
    """Weights of the losses of each band: (T,) for the head, (n,) for a tail."""


def split_by_band(
    softmax: "AdaptiveSoftmax", hidden: Tensor, targets: Tensor, rows: list[Tensor], weights: Tensor | None = None
) -> BandOperands:
    """Prepare the losses of each band.

    Args:
        softmax: whose bands these are.
        hidden: (T, d).
        targets: (T,).
        rows: (n,) of the targets in each tail; T, a row after the last, reads another one, and occurs any number of
            times.
        weights: (T,) of the losses; by default 1.
    """
    head, *tails = softmax.bands
    projected = softmax.project(0, hidden)
    if weights is None:
        weights = torch.ones(
            targets.shape, dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device
        )
    if not tails:
        return BandOperands([(*softmax.operands(0, projected), targets)], None, None, [weights])
    of_head = softmax.operands(0, projected.view_as(projected))  # the last of the gradients of `projected` to be added
    operands: list[tuple[Tensor, Tensor, Tensor, Tensor]] = [(*of_head, torch.where(targets < head.end, targets, -1))]
    clusters = softmax.cluster_logits(projected)
    cluster_logit = torch.zeros_like(clusters[:, 0])
    weights_of_bands = [weights]
    padded = F.pad(weights, (0, 1))  # the row after the last counts nothing
    for number, (band, of_band) in enumerate(zip(tails, rows, strict=True), start=1):
        own = of_band.clamp(max=len(targets) - 1)
        # A band without targets still has a gradient, of zeros: its moments decay as in the released code.
        of_tail = softmax.operands(number, softmax.project(number, hidden.index_select(0, own)))
        in_band = targets.index_select(0, own) - band.first
        operands.append((*of_tail, in_band.clamp(0, band.size - 1)))
        cluster_logit = torch.where(targets >= band.first, clusters[:, number - 1], cluster_logit)
        weights_of_bands.append(padded.index_select(0, of_band))
    return BandOperands(operands, clusters.logsumexp(-1), cluster_logit, weights_of_bands)


def mean_of_totals(totals: list[Tensor], cluster_logit: Tensor | None, weights: Tensor) -> Tensor:
    """Return the mean loss (0-d), given the total of each band (0-d), and of `BandOperands` the fields (T,)."""
    total = torch.stack(totals).sum()
    if cluster_logit is not None:
        total = total - (cluster_logit * weights).sum()
    return total / weights.sum().clamp(min=1)


class AdaptiveSoftmax(nn.Module):
    """The distribution over the vocabulary.

    Args:
        bands: of the vocabulary.
        d_model: d.
        tied: use the tables of the embedding; if false, the softmax has its own.
        embedding: has the tables, if they are tied, and the projections that bands share; without it, none is shared.
    """

    backend: Backend = FAST

    def __init__(
        self, bands: list[Band], d_model: int, *, tied: bool, embedding: AdaptiveEmbedding | None = None
    ) -> None:
        super().__init__()
        self.bands = bands
        self._embedding = (embedding,)  # not a submodule: its parameters would have two names
        self.d_model = d_model
        self.biases = nn.ParameterList(torch.empty(band.size) for band in bands)
        self.tables = nn.ParameterList()
        if not tied:
            self.tables.extend(band_matrix(band.size, band.width) for band in bands)
        self.projections = nn.ParameterDict()
        for number, band in enumerate(bands):
            is_shared = band.shared and embedding is not None
            if band.projection is not None and not is_shared:
                self.projections[str(number)] = band_matrix(d_model, band.width)
        tails = len(bands) - 1
        self.cluster_weight = band_matrix(tails, bands[0].width) if tails else None  # (C, w)
        self.cluster_bias = nn.Parameter(torch.empty(tails)) if tails else None
        self.spare = [SpareGradient() for _ in bands]
        """Memory of each table's gradient, kept between two steps."""

    def has_fixed_rows(self, tail_rows: Sequence[Tensor] | None) -> bool:
        """Return True if the number of rows of a tail does not depend on the targets: else shapes differ each step."""
        return tail_rows is not None or len(self.bands) == 1

    @torch.no_grad()
    def for_decoding(self, dtype: torch.dtype) -> "AdaptiveSoftmax":
        """Return an independent copy in another dtype, so that no matrix is cast at every token."""
        with torch.device(self.biases[0].device):
            copy = AdaptiveSoftmax(self.bands, self.d_model, tied=False).requires_grad_(False).to(dtype)
        tensors: dict[str, Tensor] = dict(self.named_parameters())
        for number in range(len(self.bands)):
            tensors[f"tables.{number}"] = self._table(number)
            projection = self._projection(number)
            if projection is not None:
                tensors[f"projections.{number}"] = projection
        copy.load_state_dict(tensors)
        copy.backend = self.backend
        return copy

    def losses(self, hidden: Tensor, targets: Tensor, tail_rows: Sequence[Tensor] | None = None) -> Tensor:
        """Return the cross entropy in nats of each target: (T, d), (T,) -> (T,), float32 at least.

        With several bands the targets should be on the host, unless `tail_rows` (`Objective`) are given: the number of
        targets in each tail is needed, and reading it from a GPU has to wait.
        """
        split, rows = self._split_by_band(hidden, targets, tail_rows)
        head, *tails = split.operands
        of_head = token_losses(*head, others=split.cluster_normalizer, spare=self.spare[0])
        if split.cluster_logit is None:
            return of_head
        within = [token_losses(*tail, spare=spare) for tail, spare in zip(tails, self.spare[1:], strict=True)]
        in_band = of_head.new_zeros(len(of_head) + 1).index_copy(0, torch.cat(rows), torch.cat(within))[:-1]
        return of_head - split.cluster_logit + in_band

    def mean_loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        tail_rows: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the mean of the losses of targets (B, L) after hidden states (B, L, d), 0-d; for training.

        The gradient is computed with the loss, so that no logits are kept for the backward pass, of which there is one.

        Args:
            hidden: (B, L, d).
            targets: (B, L); where they should be, see `losses`.
            tail_rows: those of `Objective`.
            weights: (L,) of the positions; by default all count alike.
        """
        if weights is not None:
            weights = weights.expand(targets.shape).flatten()
        split, _ = self._split_by_band(hidden.flatten(0, 1), targets.flatten(), tail_rows, weights)
        totals: list[Tensor] = []
        for number, operands in enumerate(split.operands):
            others = split.cluster_normalizer if number == 0 else None
            weights_of_band = split.weights[number]
            totals.append(total_loss(*operands, others=others, weights=weights_of_band, spare=self.spare[number]))
        is_compiled = self.backend.compiles and self.has_fixed_rows(tail_rows)
        return compiled(mean_of_totals, is_compiled)(totals, split.cluster_logit, split.weights[0])

    def _split_by_band(
        self, hidden: Tensor, targets: Tensor, tail_rows: Sequence[Tensor] | None, weights: Tensor | None = None
    ) -> tuple[BandOperands, list[Tensor]]:
        """Return what `split_by_band` returns, and the rows of the targets in each tail; see `losses`."""
        if tail_rows is None:
            rows = [send(of_tail, hidden.device) for of_tail in self.rows_of_tails(targets)]
            targets = send(targets, hidden.device)
        else:
            rows = list(tail_rows)
        compiles = self.backend.compiles and self.has_fixed_rows(tail_rows)
        return compiled(split_by_band, compiles)(self, hidden, targets, rows, weights), rows

    def rows_of_tails(self, targets: Tensor) -> list[Tensor]:
        """Return the rows (n,) of the targets (T,) in each tail."""
        rows = []
        for band in self.bands[1:]:
            is_own = (targets >= band.first) & (targets < band.end)
            rows.append(is_own.nonzero()[:, 0])
        return rows

    def operands(self, number: int, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a product of a band reads: hidden states (T, w), table (n, w), bias (n,).

        CUDA's fast kernels get both matrices in their dtype, with columns of zeros, and ids with a logit of -inf, up to
        a multiple.
        """
        table = self._table(number)
        bias = self._divided(self.biases[number])
        multiple = row_multiple_of_products(projected)
        if multiple == 1:
            return projected, table, bias
        dtype = autocast_dtype(projected)
        table = pad_columns(table, dtype, multiple, rows=True)
        return pad_columns(projected, dtype, multiple), table, F.pad(bias, (0, -len(bias) % multiple), value=-torch.inf)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return the log-probabilities of all tokens: (T, d) -> (T, V), float32 at least."""
        if len(self.bands) == 1:
            return self._band_log_probs(0, hidden)
        head, clusters, total = self._head_logits(hidden)
        parts = [head - total[:, None]]
        for number in range(1, len(self.bands)):
            cluster = clusters[:, number - 1] - total
            parts.append(cluster[:, None] + self._band_log_probs(number, hidden))
        return torch.cat(parts, dim=-1)

    def likeliest(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and ids of the `count` likeliest tokens after one position, likeliest first.

        A tail band is computed only while its cluster is likelier than the last token selected so far.

        Args:
            hidden: (1, d).
            count: number of tokens, at most V.
        """
        if len(self.bands) == 1:
            scores = self.log_probs(hidden)[0]
            return scores.topk(min(count, len(scores)))
        head, cluster_logits, total = self._head_logits(hidden)
        scores, tokens = (head[0] - total).topk(min(count, self.bands[0].size))
        clusters = cluster_logits[0] - total  # (C,)
        for tail in clusters.argsort(descending=True).tolist():
            if len(scores) == count and clusters[tail] <= scores[-1]:
                break
            log_probs = clusters[tail] + self._band_log_probs(tail + 1, hidden)[0]
            more, ids = log_probs.topk(min(count, len(log_probs)))
            tokens = torch.cat([tokens, ids + self.bands[tail + 1].first])
            scores = torch.cat([scores, more])
            scores, order = scores.topk(min(count, len(scores)))
            tokens = tokens[order]
        return scores, tokens

    def _head_logits(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of the head's ids (T, n) and of the clusters (T, C), and their joint log normalizer (T,)."""
        projected = self.project(0, hidden)
        head = at_least_float32(linear(projected, self._table(0), self._divided(self.biases[0])))
        clusters = self.cluster_logits(projected)
        return head, clusters, torch.logaddexp(head.logsumexp(-1), clusters.logsumexp(-1))

    def cluster_logits(self, projected: Tensor) -> Tensor:
        """Return the logits of the clusters: (T, w) -> (T, C)."""
        assert self.cluster_weight is not None
        assert self.cluster_bias is not None
        return at_least_float32(linear(projected, self.cluster_weight, self._divided(self.cluster_bias)))

    def _band_log_probs(self, number: int, hidden: Tensor) -> Tensor:
        """Return the log-probabilities of a band's ids given the band: (T, d) -> (T, n)."""
        projected = self.project(number, hidden)
        logits = linear(projected, self._table(number), self._divided(self.biases[number]))
        return at_least_float32(logits).log_softmax(-1)

    def project(self, number: int, hidden: Tensor) -> Tensor:
        """Project to the width of a band, divided by the temperature: (T, d) -> (T, w)."""
        projection = self._projection(number)
        if projection is not None:
            hidden = linear(hidden, projection.mT)
        return self._divided(hidden)

    def _divided(self, tensor: Tensor) -> Tensor:
        """Divide what is linear in the logits by the temperature."""
        temperature = self.backend.temperature
        if temperature == 1:
            return tensor
        return tensor / temperature

    def _projection(self, number: int) -> Tensor | None:
        """Return the projection (d, w) of a band, the embedding's if it is shared, or None if the band has none."""
        band = self.bands[number]
        if band.projection is None:
            return None
        (embedding,) = self._embedding
        if embedding is None or not band.shared:
            return self.projections[str(number)]
        return embedding.projections[str(band.projection)]

    def _table(self, number: int) -> Tensor:
        """Return the table (n, w) of a band, the embedding's if they are tied."""
        (embedding,) = self._embedding
        if embedding is None or len(self.tables):
            return self.tables[number]
        return embedding.tables[number]


def tail_capacity(expected: float, limit: int) -> int:
    """Return how many rows a tail has in a CUDA graph for this expected number of targets, with a margin."""
    return min(limit, math.ceil(1.25 * expected + 6 * math.sqrt(expected)))


def at_least_float32(logits: Tensor) -> Tensor:
    """Cast 16-bit logits to float32: no softmax is computed in 16 bits."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
