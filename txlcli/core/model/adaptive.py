"""Adaptive input embedding and adaptive softmax (Grave et al. 2016, Baevski & Auli 2018).

Ids are sorted by frequency and cut into bands. The head band is embedded at full width, each tail band more narrowly.
The softmax first chooses among the head's ids and one cluster per tail band, then among the ids of that band, so that
a tail is computed only where a token needs it. A single band is a plain embedding with a plain softmax.

Axes: T tokens, d model width, w width of a band, n ids of a band, C tail bands, V vocabulary.
"""

import dataclasses
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.model_settings import ModelSettings
from txlcli.core.kernels.device import send
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.normalizer import SpareGradient, normalize
from txlcli.core.model.dropout import WordDropout
from txlcli.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class Band:
    """The ids `first` .. `end` - 1, embedded `width` wide."""

    first: int
    end: int
    width: int
    projection: int | None
    """Number of the embedding's projection to model width; None where there is none."""
    shared: bool
    """Whether the softmax uses the embedding's projection."""

    @property
    def size(self) -> int:
        """Ids in the band, n."""
        return self.end - self.first


def bands(settings: ModelSettings, vocab_size: int) -> list[Band]:
    """The bands of a vocabulary, the head first.

    Raises:
        RecipeError: a cutoff lies beyond the vocabulary.
    """
    if settings.cutoffs and settings.cutoffs[-1] >= vocab_size:
        raise RecipeError(
            f"[model] cutoffs {list(settings.cutoffs)} reach beyond the vocabulary of {vocab_size:,}; each must be less"
        )
    edges = list(pairwise((0, *settings.cutoffs, vocab_size)))
    tied = settings.tie_projections or [number > 0 for number in range(len(edges))]
    all_bands = []
    for number, ((first, end), shared) in enumerate(zip(edges, tied, strict=True)):
        width = settings.embed_width // settings.div_val**number
        always = settings.div_val > 1 and settings.project_same_width
        # Bands of one width are parts of one embedding, with one projection.
        projection = (number if settings.div_val > 1 else 0) if always or width != settings.d_model else None
        all_bands.append(Band(first=first, end=end, width=width, projection=projection, shared=shared))
    return all_bands


def _matrix(rows: int, columns: int) -> nn.Parameter:
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
        self.tables = nn.ParameterList(_matrix(band.size, band.width) for band in bands)  # (n, w)
        widths = {str(band.projection): band.width for band in bands if band.projection is not None}
        self.projections = nn.ParameterDict({name: _matrix(d_model, width) for name, width in widths.items()})  # (d, w)
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
        self.tables = nn.ParameterList(() if tied else (_matrix(band.size, band.width) for band in bands))
        own = {str(i): band for i, band in enumerate(bands) if band.projection is not None and not band.shared}
        self.projections = nn.ParameterDict({i: _matrix(d_model, band.width) for i, band in own.items()})
        tails = len(bands) - 1
        self.cluster_weight = _matrix(tails, bands[0].width) if tails else None  # (C, w)
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
