"""Adaptive softmax (Grave et al. 2016).

The softmax first chooses among the ids of the head band and one cluster per tail band, then among the ids of that band,
so that a tail is computed only for the tokens that need it. A single band is a plain softmax.

Axes: T tokens, d model width, w width of a band, n ids of a band, C tail bands, V vocabulary.
"""

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.bands import Band
from txlcli.core.kernels.compilation import compiled
from txlcli.core.kernels.device import autocast_dtype, row_multiple_of_products, send
from txlcli.core.kernels.linear import linear, pad_columns
from txlcli.core.kernels.normalizer import SpareGradient, token_losses, total_loss
from txlcli.core.model.backends import FAST, Backend
from txlcli.core.model.embedding import AdaptiveEmbedding, band_matrix

Operands = tuple[Tensor, Tensor, Tensor, Tensor]
"""Hidden states, table and bias of a band, and the ids of the targets in it: the first arguments of `token_losses`."""


class BandTargets(NamedTuple):
    """Targets of one band: all tokens (T,) for the head, which has the clusters, too, and some rows (n,) for a tail."""

    operands: Operands
    clusters: Tensor | None
    """Log normalizer (T,) of the logits of all clusters, for a head next to tails."""
    weights: Tensor
    """Weights of the losses."""


def split_by_band(
    softmax: "AdaptiveSoftmax", hidden: Tensor, targets: Tensor, rows: list[Tensor], weights: Tensor | None = None
) -> tuple[list[BandTargets], Tensor | None]:
    """Return the targets of each band, and the logit of each target's cluster, (T,), 0 in the head; None without tails.

    Args:
        softmax: whose bands these are.
        hidden: (T, d).
        targets: (T,).
        rows: (n,) of the targets in each tail, as `fill_up` returns them.
        weights: (T,) of the losses; by default 1.
    """
    head, *tails = softmax.bands
    projected = softmax.project(0, hidden)
    if weights is None:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        weights = torch.ones(targets.shape, dtype=dtype, device=hidden.device)
    if not tails:
        return [BandTargets((*softmax.operands(0, projected), targets), None, weights)], None
    of_head = softmax.operands(0, projected.view_as(projected))  # the last of the gradients of `projected` to be added
    clusters = softmax.cluster_logits(projected)
    cluster_logit = torch.zeros_like(clusters[:, 0])
    in_head = torch.where(targets < head.end, targets, -1)
    split = [BandTargets((*of_head, in_head), clusters.logsumexp(-1), weights)]
    padded = F.pad(weights, (0, 1))  # the row after the last has a weight of 0
    for number, (band, filled) in enumerate(zip(tails, rows, strict=True), start=1):
        own = filled.clamp(max=len(targets) - 1)  # the row after the last reads the last
        # A band without targets still has a gradient, of zeros: its moments decay as in the released code.
        of_tail = softmax.operands(number, softmax.project(number, hidden.index_select(0, own)))
        in_band = (targets.index_select(0, own) - band.first).clamp(0, band.size - 1)
        split.append(BandTargets((*of_tail, in_band), None, padded.index_select(0, filled)))
        cluster_logit = torch.where(targets >= band.first, clusters[:, number - 1], cluster_logit)
    return split, cluster_logit


def mean_of_totals(totals: list[Tensor], cluster_logit: Tensor | None, weights: Tensor) -> Tensor:
    """Return the mean loss (0-d), given the total of each band (0-d), and weights and logits (T,) of the head."""
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
        reads_embedding = tied or any(band.shared for band in bands)
        self._embedding = (embedding if reads_embedding else None,)  # no submodule: its weights would have two names
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

    def keep_memory_of_gradients(self) -> None:
        """Keep the memory of the tables' gradients for the next step.

        It must begin as new memory does: within a bucket of several processes, products would be rounded otherwise.
        """
        for number, spare in enumerate(self.spare):
            grad = self._table(number).grad
            is_whole = type(grad) is Tensor and not grad.storage_offset()
            spare.release(grad if is_whole else None)

    @torch.no_grad()
    def for_decoding(self, dtype: torch.dtype) -> Self:
        """Return an independent copy in another dtype, so that no matrix is cast at every token."""
        tensors: list[Tensor] = list(self.parameters())
        for constant in self.buffers():
            if constant.is_floating_point():
                tensors.append(constant)
        (embedding,) = self._embedding
        if embedding is not None:
            tensors += embedding.parameters()
        cast: dict[int, Tensor] = {}  # by the identity of the tensor that each replaces
        for tensor in tensors:
            replacement = tensor.to(dtype, copy=True)
            if isinstance(tensor, nn.Parameter):
                replacement = nn.Parameter(replacement, requires_grad=False)
            cast[id(tensor)] = replacement
        return copy.deepcopy(self, cast)

    def losses(self, hidden: Tensor, targets: Tensor, tail_rows: Sequence[Tensor] | None = None) -> Tensor:
        """Return the cross entropy in nats of each target: (T, d), (T,) -> (T,), float32 at least.

        With several bands the targets should be on the host, unless `tail_rows` (`Objective`) are given: the number of
        targets in each tail is needed, and reading it from a GPU has to wait.
        """
        split, cluster_logit, rows = self._split_by_band(hidden, targets, tail_rows)
        losses = []
        for band, spare in zip(split, self.spare, strict=True):
            losses.append(token_losses(*band.operands, others=band.clusters, spare=spare))
        of_head, *of_tails = losses
        if cluster_logit is None:
            return of_head
        in_tails = of_head.new_zeros(len(of_head) + 1)  # with the row after the last
        in_tails = in_tails.index_copy(0, torch.cat(rows), torch.cat(of_tails))
        return of_head - cluster_logit + in_tails[:-1]

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
        split, cluster_logit, _ = self._split_by_band(hidden.flatten(0, 1), targets.flatten(), tail_rows, weights)
        totals: list[Tensor] = []
        for band, spare in zip(split, self.spare, strict=True):
            totals.append(total_loss(*band.operands, others=band.clusters, weights=band.weights, spare=spare))
        return compiled(mean_of_totals, self._compiles(tail_rows))(totals, cluster_logit, split[0].weights)

    def _split_by_band(
        self, hidden: Tensor, targets: Tensor, tail_rows: Sequence[Tensor] | None, weights: Tensor | None = None
    ) -> tuple[list[BandTargets], Tensor | None, list[Tensor]]:
        """Return what `split_by_band` returns, and the rows of the targets in each tail; see `losses`."""
        if tail_rows is None:
            rows = [send(of_tail, hidden.device) for of_tail in self.rows_of_tails(targets)]
            targets = send(targets, hidden.device)
        else:
            rows = list(tail_rows)
        split, cluster_logit = compiled(split_by_band, self._compiles(tail_rows))(self, hidden, targets, rows, weights)
        return split, cluster_logit, rows

    def _compiles(self, tail_rows: Sequence[Tensor] | None) -> bool:
        """Return True to compile, unless the rows of a tail depend on the targets: shapes would differ each step."""
        return self.backend.compiles and (tail_rows is not None or len(self.bands) == 1)

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
        bias = F.pad(bias, (0, len(table) - len(bias)), value=-torch.inf)
        return pad_columns(projected, dtype, multiple), table, bias

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
        head = self._logits(0, projected)
        clusters = self.cluster_logits(projected)
        return head, clusters, torch.logaddexp(head.logsumexp(-1), clusters.logsumexp(-1))

    def cluster_logits(self, projected: Tensor) -> Tensor:
        """Return the logits of the clusters: (T, w) -> (T, C)."""
        assert self.cluster_weight is not None
        assert self.cluster_bias is not None
        return at_least_float32(linear(projected, self.cluster_weight, self._divided(self.cluster_bias)))

    def _band_log_probs(self, number: int, hidden: Tensor) -> Tensor:
        """Return the log-probabilities of a band's ids given the band: (T, d) -> (T, n)."""
        return self._logits(number, self.project(number, hidden)).log_softmax(-1)

    def _logits(self, number: int, projected: Tensor) -> Tensor:
        """Return the logits of a band's ids: (T, w) -> (T, n)."""
        return at_least_float32(linear(projected, self._table(number), self._divided(self.biases[number])))

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


def fill_up(rows: Tensor, size: int, tokens: int) -> Tensor:
    """Fill up the rows (n,) of the targets in a tail to this size, with T, a row after the last that counts nothing."""
    return F.pad(rows, (0, size - len(rows)), value=tokens)


def at_least_float32(logits: Tensor) -> Tensor:
    """Cast 16-bit logits to float32: no softmax is computed in 16 bits."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
