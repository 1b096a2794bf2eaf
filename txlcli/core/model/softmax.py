"""Adaptive softmax (Grave et al. 2016).

The softmax first chooses among the ids of the head band and one cluster per tail band, then among the ids of that band,
so that a tail is computed only for the tokens that need it. A single band is a plain softmax.

Axes: T tokens, d model width, w width of a band, n ids of a band, C tail bands, V vocabulary.
"""

import dataclasses

import torch
from torch import Tensor, nn

from txlcli.config.bands import Band
from txlcli.core.kernels.device import send
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.normalizer import SpareGradient, normalize
from txlcli.core.model.embedding import AdaptiveEmbedding, band_matrix


class AdaptiveSoftmax(nn.Module):
    """The distribution over the vocabulary; its matrices are the embedding's where they are tied.

    Args:
        bands: of the vocabulary.
        d_model: d.
        tied: use the tables of the embedding. Where it is false, the softmax has its own.
    """

    def __init__(self, bands: list[Band], d_model: int, *, tied: bool) -> None:
        super().__init__()
        self.bands = bands
        self.d_model = d_model
        self.biases = nn.ParameterList(torch.empty(band.size) for band in bands)
        self.tables = nn.ParameterList(() if tied else (band_matrix(band.size, band.width) for band in bands))
        own = {str(i): band for i, band in enumerate(bands) if band.projection is not None and not band.shared}
        self.projections = nn.ParameterDict({i: band_matrix(d_model, band.width) for i, band in own.items()})
        tails = len(bands) - 1
        self.cluster_weight = band_matrix(tails, bands[0].width) if tails else None  # (C, w)
        self.cluster_bias = nn.Parameter(torch.empty(tails)) if tails else None
        self.spare = [SpareGradient() for _ in bands]
        """Memory of each table's gradient between two steps."""
        self.recompute = False
        """Whether the backward pass computes logits again, instead of keeping them."""

    @torch.no_grad()
    def for_decoding(self, embedding: AdaptiveEmbedding, dtype: torch.dtype) -> "AdaptiveSoftmax":
        """A copy in another precision that depends on nothing else, so that nothing is cast at every token."""
        own = [dataclasses.replace(band, shared=False) for band in self.bands]
        with torch.device(self.biases[0].device):
            copy = AdaptiveSoftmax(own, self.d_model, tied=False).to(dtype).requires_grad_(False)
        for number in range(len(own)):
            copy.tables[number].copy_(self._table(number, embedding))
            copy.biases[number].copy_(self.biases[number])
            projection = self._projection(number, embedding)
            if projection is not None:
                copy.projections[str(number)].copy_(projection)
        for mine, theirs in ((copy.cluster_weight, self.cluster_weight), (copy.cluster_bias, self.cluster_bias)):
            if mine is not None and theirs is not None:
                mine.copy_(theirs)
        return copy

    def losses(self, hidden: Tensor, targets: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Cross entropy in nats of each target, in token order: (T, d), (T,) -> (T,), float32 at least.

        With several bands the targets had better be on the host: a GPU would have to be waited for to know how many of
        them lie in each tail.
        """
        within = [((targets >= band.first) & (targets < band.end)).nonzero()[:, 0] for band in self.bands[1:]]
        targets, *tails = (send(places, hidden.device) for places in (targets, *within))
        if len(self.bands) == 1:
            return self._losses_within(0, hidden, targets, embedding)
        in_head = targets < self.bands[0].end
        projected = self._project(0, hidden, embedding)
        of_head, head = self._normalize(0, projected, targets.clamp(max=self.bands[0].end - 1), embedding)
        clusters = self._clusters(projected)
        total = torch.logaddexp(of_head, clusters.logsumexp(-1))
        chosen = torch.where(in_head, head, 0.0)
        for number, (band, rows) in enumerate(zip(self.bands[1:], tails, strict=True), start=1):
            ids = targets.index_select(0, rows) - band.first
            # A band that nobody needs still has a gradient, of zeros: its moments decay as the released code's do.
            loss = self._losses_within(number, hidden.index_select(0, rows), ids, embedding)
            chosen = chosen.index_copy(0, rows, clusters[:, number - 1].index_select(0, rows) - loss)
        return total - chosen

    def _losses_within(self, number: int, hidden: Tensor, ids: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Cross entropy of each id, given that it is one of the band's: (T, d), (T,) -> (T,)."""
        total, logit = self._normalize(number, self._project(number, hidden, embedding), ids, embedding)
        return total - logit

    def _normalize(
        self, number: int, projected: Tensor, ids: Tensor, embedding: AdaptiveEmbedding
    ) -> tuple[Tensor, Tensor]:
        """The normaliser of a band's ids and the logit of one of them: (T, w), (T,) -> (T,), (T,)."""
        table, bias = self._table(number, embedding), self.biases[number]
        return normalize(projected, table, bias, ids, spare=self.spare[number], recompute=self.recompute)

    def log_probs(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Log-probabilities of all tokens: (T, d) -> (T, V), float32 at least."""
        if len(self.bands) == 1:
            return _exact(self._logits(0, hidden, embedding)).log_softmax(-1)
        head, clusters, total = self._head(hidden, embedding)
        parts = [head - total[:, None]]
        for number in range(1, len(self.bands)):
            reached = clusters[:, number - 1] - total
            parts.append(reached[:, None] + self._within(number, hidden, embedding))
        return torch.cat(parts, dim=-1)

    def likeliest(self, hidden: Tensor, count: int, embedding: AdaptiveEmbedding) -> tuple[Tensor, Tensor]:
        """The log-probabilities and the ids of the `count` likeliest tokens after one position, likeliest first.

        A tail band is computed only while its cluster is likelier than the last of those found so far.

        Args:
            hidden: (1, d).
            count: how many; all of the vocabulary where it is less.
            embedding: the model's.
        """
        if len(self.bands) == 1:
            scores = self.log_probs(hidden, embedding)[0]
            return scores.topk(min(count, len(scores)))
        head, clusters, total = self._head(hidden, embedding)
        scores, tokens = (head[0] - total).topk(min(count, self.bands[0].size))
        reached = clusters[0] - total  # (C,)
        for tail in reached.argsort(descending=True).tolist():
            if len(scores) == count and reached[tail] <= scores[-1]:
                break
            log_probs = reached[tail] + self._within(tail + 1, hidden, embedding)[0]
            more, ids = log_probs.topk(min(count, len(log_probs)))
            tokens = torch.cat([tokens, ids + self.bands[tail + 1].first])
            scores = torch.cat([scores, more])
            scores, order = scores.topk(min(count, len(scores)))
            tokens = tokens[order]
        return scores, tokens

    def _head(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the head's ids (T, n) and of the clusters (T, C), with the logarithm of their total (T,)."""
        projected = self._project(0, hidden, embedding)
        head = _exact(linear(projected, self._table(0, embedding), self.biases[0]))
        clusters = self._clusters(projected)
        return head, clusters, torch.logaddexp(head.logsumexp(-1), clusters.logsumexp(-1))

    def _clusters(self, projected: Tensor) -> Tensor:
        """Logits of the clusters: (T, w) -> (T, C)."""
        assert self.cluster_weight is not None
        return _exact(linear(projected, self.cluster_weight, self.cluster_bias))

    def _within(self, number: int, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Log-probabilities of a band's ids, given that it is that band: (T, d) -> (T, n)."""
        return _exact(self._logits(number, hidden, embedding)).log_softmax(-1)

    def _logits(self, number: int, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Logits of a band's ids: (T, d) -> (T, n)."""
        projected = self._project(number, hidden, embedding)
        return linear(projected, self._table(number, embedding), self.biases[number])

    def _project(self, number: int, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """(T, d) -> (T, w)."""
        projection = self._projection(number, embedding)
        return hidden if projection is None else linear(hidden, projection.mT)

    def _projection(self, number: int, embedding: AdaptiveEmbedding) -> Tensor | None:
        """The matrix (d, w) of a band, the embedding's where it is shared; None where the band has none."""
        band = self.bands[number]
        if band.projection is None:
            return None
        return embedding.projections[str(band.projection)] if band.shared else self.projections[str(number)]

    def _table(self, number: int, embedding: AdaptiveEmbedding) -> Tensor:
        """The matrix (n, w) of a band, the embedding's where they are tied."""
        return self.tables[number] if len(self.tables) else embedding.tables[number]


def _exact(logits: Tensor) -> Tensor:
    """Logits that a softmax may be taken of: never in 16 bits."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
