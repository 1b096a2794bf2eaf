"""Where the heads of a model look while it reads a text: attention by distance, in total and by term (Appendix D).

A decoder reads the text with attention by its definition, and what every layer attends from and to is observed on the
way. A query is the position at which a token is read, so distance 0 is that token itself.

Memory: the scores of one layer and segment exist at a time; for all layers only sums by distance, (N, H, n), and
the rows to show, (N, H, R, n).

Axes: L segment, M memory, K keys, H heads, D head width, N layers, n distances, l queries of a segment, R queries whose
rows are shown.
"""

import math
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.backend import ScoreTerms, at_distance
from txlcli.core.kernels.device import float64_device
from txlcli.core.model.attention import attend
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.scoring import Stream

TOP_ONE_IN = 5  # Figure 6 marks the top 20 %
TOTAL = "total"

Numbers = NDArray[np.floating[Any]]
TermScores = dict[str, Tensor]
"""The terms of 3.3 that a model has, scaled, and their TOTAL, the input of its softmax: (H, l, n) each. Column r is
distance r, -inf without a key."""


@torch.inference_mode()
def term_scores(query: Tensor, keys: Tensor, terms: ScoreTerms) -> TermScores:
    """Return the terms of the scores of queries (H, l, D) for keys (H, K, D or wider), in float32 at least.

    The last l keys are the queries' own.
    """
    _, queries, width = query.shape
    reach = min(terms.reach, keys.shape[1])
    scale = width**-0.5
    dtype = torch.promote_types(query.dtype, torch.float32)
    query = query.to(dtype) * scale
    keys = keys[..., :width].to(dtype)
    terms = terms.to(dtype)
    own = torch.arange(keys.shape[1] - queries, keys.shape[1], device=keys.device)[:, None]
    distance = torch.arange(reach, device=keys.device)
    key = own - distance  # (l, n), negative without a key
    column = key.clamp(min=0)

    def by_distance(score: Tensor) -> Tensor:  # (H, l or 1, K) -> (H, l, n)
        return score.expand(-1, queries, -1).gather(2, column.expand(len(score), -1, -1))

    scores = {"a": by_distance(query @ keys.mT)}
    if terms.position_key is not None:
        position_key = at_distance(terms.position_key, distance, dim=1)  # (H, n, D)
        scores["b"] = query @ position_key.mT
        if terms.position_bias is not None:
            scores["d"] = scale * terms.position_bias[:, None] @ position_key.mT  # (H, 1, n)
    if terms.content_bias is not None:
        scores["c"] = by_distance(scale * terms.content_bias[:, None] @ keys.mT)
    if terms.distance_bias is not None:  # like (d), it depends on the distance alone
        scores["d"] = scores.get("d", 0.0) + at_distance(terms.distance_bias, distance, dim=1)[:, None]
    scores[TOTAL] = reduce(torch.add, scores.values())
    return {name: score.masked_fill(key < 0, -math.inf) for name, score in scores.items()}


@dataclass(frozen=True)
class AttentionMaps:
    """Attention averaged over the queries of a text; distances ascend from 0 along the last axis."""

    by_distance: Numbers
    """Attention, (N, H, n): the share of each distance, averaged over the queries. A head's shares sum to 1."""
    by_term: dict[str, Numbers]
    """Attention by distance of the terms "a", "b" and "d" that the model has, each after a softmax of its own."""
    entropy_nats: Numbers
    """(N, H): mean entropy of a query's attention."""
    memory_share: Numbers
    """(N, H): share of the attention to the memory, before the segment of the query."""
    first: int
    """Position of the first query counted; earlier tokens only filled the memory."""
    queries: int
    """Number of queries averaged."""
    at: int
    """Position of the first query of `rows`."""
    rows: Numbers
    """Attention of the R queries from `at` on, (N, H, R, n), to the n positions up to the first of them, in order: the
    context of its target. NaN where a query does not see a position."""

    @property
    def distances(self) -> int:
        """n, the largest number of keys that a query sees."""
        return self.by_distance.shape[2]

    @property
    def mean_distance(self) -> Numbers:
        """(N, H): mean distance of the attention, in tokens."""
        mean: Numbers = self.by_distance @ np.arange(self.distances)
        return mean

    @property
    def width(self) -> Numbers:
        """(N, H): number of distances over which the averaged attention spreads: exp of the entropy of its row.

        A head that always looks to one distance has width 1, one that looks everywhere alike width n, and so has one
        whose queries each look to one position, if these are scattered over the whole span (head 78 of Figure 6).
        """
        logarithms = np.log(np.where(self.by_distance > 0, self.by_distance, 1))
        width: Numbers = np.exp(-(self.by_distance * logarithms).sum(axis=2))
        return width

    def widest(self, count: int) -> list[tuple[int, int]]:
        """Return the `count` widest heads as (layer, head), counted from 1, the widest first."""
        order = np.argsort(-self.width, axis=None, kind="stable")[:count]
        n_heads = self.width.shape[1]
        return [(number // n_heads + 1, number % n_heads + 1) for number in order.tolist()]


def strongest(attention: Numbers) -> NDArray[np.bool_]:
    """Mark the fifth of its context that each query attends to most, at least one position: (R, n) -> (R, n).

    Of equal weights the nearer counts as stronger; NaN is not part of the context.
    """
    marked = np.zeros(attention.shape, dtype=bool)
    for number, row in enumerate(attention):
        positions = np.flatnonzero(~np.isnan(row))
        order = np.lexsort((-positions, -row[positions]))
        count = math.ceil(len(positions) / TOP_ONE_IN)
        marked[number, positions[order[:count]]] = True
    return marked


def first_query(settings: EvalSettings) -> int:
    """Return the position of the first query whose memory is full: the segments before it fill the memory."""
    return math.ceil(settings.mem_len / settings.seg_len) * settings.seg_len


def observe(stream: Stream, *, at: int, rows: int) -> AttentionMaps:
    """Read a text (T,) with a batch of one and average the attention of all queries that have a full memory.

    Keep the rows of R queries from position `at` on, which is at least `first_query(settings)`; fewer at the end of the
    text. The model keeps the attention backend "reference": graphs would bypass the observation.
    """
    model = stream.model
    inputs = stream.inputs
    settings = stream.settings
    first = first_query(settings)
    assert isinstance(model, TransformerXL)
    assert first <= at < len(inputs), (first, at, len(inputs))
    decoder = Decoder(model.on(attention="reference"), settings)
    sums = _Sums(decoder, at=at, rows=min(rows, len(inputs) - at))
    begin = 0  # of the segment that is read

    def observe_layer(
        number: int, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0
    ) -> Tensor:
        if begin >= first:
            with torch.autocast(query.device.type, enabled=False):
                sums.add(number, begin, term_scores(query[0], key[0], terms))
        return attend(query, key, value, terms, dropout=dropout)

    for number, layer in enumerate(decoder.model.layers):
        layer.backend = replace(layer.backend, attend=partial(observe_layer, number))
    tokens = torch.from_numpy(np.asarray(inputs, dtype=np.int64)).to(decoder.device)[None]
    for segment in tokens.split(settings.seg_len, dim=1):
        decoder.read(segment)
        begin += segment.shape[1]
        stream.on_tokens(begin)
    return sums.averages(first, len(inputs) - first)


class _Sums:
    """Sums over the queries of one text."""

    def __init__(self, decoder: Decoder, *, at: int, rows: int) -> None:
        settings = decoder.model.settings
        shape = (settings.n_layers, settings.n_heads)
        self._at = at
        zeros = partial(torch.zeros, dtype=torch.float64, device=float64_device(decoder.device))
        names = (TOTAL, *settings.encoding.score_terms)
        self._by_distance = {name: zeros(*shape, decoder.reach) for name in names}
        self._shares = zeros(2, *shape)  # entropy, and attention to the memory
        self._rows = np.full((*shape, rows, decoder.reach), np.nan, dtype=np.float32)

    def add(self, layer: int, begin: int, scores: TermScores) -> None:
        """Add the scores of a segment that begins at position `begin`."""
        attention = scores[TOTAL].softmax(-1)  # (H, l, n)
        _, length, reach = attention.shape
        for name, sums in self._by_distance.items():
            weights = attention if name == TOTAL else scores[name].softmax(-1)
            sums[layer, :, :reach] += weights.sum(1).to(sums.device)
        distance = torch.arange(reach, device=attention.device)
        place = torch.arange(length, device=attention.device)[:, None]  # of the query in its segment
        is_in_memory = distance > place  # (l, n)
        entropy = torch.special.entr(attention).sum((1, 2))
        memory_share = (attention * is_in_memory).sum((1, 2))
        self._shares[:, layer] += torch.stack([entropy, memory_share]).to(self._shares.device)
        seen = attention.masked_fill(scores[TOTAL].isneginf(), math.nan)
        self._keep_rows(layer, begin, seen)

    def _keep_rows(self, layer: int, begin: int, attention: Tensor) -> None:
        """Keep the attention (H, l, n) of the queries of a segment whose rows are shown."""
        _, length, reach = attention.shape
        by_position = attention.flip(2)  # up to each query
        rows, context = self._rows.shape[2:]
        first = max(0, self._at - begin)
        end = min(length, self._at + rows - begin)
        for query in range(first, end):
            row = begin + query - self._at  # positions from the first query on are left out
            before = by_position[:, query, : max(0, reach - row)]
            self._rows[layer, :, row, row + context - reach :] = before.float().cpu().numpy()

    def averages(self, first: int, queries: int) -> AttentionMaps:
        """Return the averages over `queries` queries from position `first` on."""
        by_distance = {name: (sums / queries).cpu().numpy() for name, sums in self._by_distance.items()}
        entropy, memory = (self._shares / queries).cpu().numpy()
        total = by_distance.pop(TOTAL)
        return AttentionMaps(
            by_distance=total,
            by_term=by_distance,
            entropy_nats=entropy,
            memory_share=memory,
            first=first,
            queries=queries,
            at=self._at,
            rows=self._rows,
        )
