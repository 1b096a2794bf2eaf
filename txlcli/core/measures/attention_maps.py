"""Where the heads of a model look while it reads a text: attention by distance, in total and by term (Appendix D).

The weights are not computed a second time from the text: the decoder of `txl eval` reads it, and a hook observes every
attention on the way. A query is the position at which a token is read, so distance 0 is that token itself.

Memory: the scores of one layer for a few queries at a time, so that no tensor of scores exceeds SCORE_BYTES (or the
scores of one query) and about ten exist at once; for all layers only sums by distance, (N, H, n), and the rows to show,
(N, H, R, n).

Axes: L segment, M memory, K keys, H heads, D head width, N layers, n distances, l queries observed together, R queries
whose rows are shown, C positions of their context.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.backend import ScoreTerms, nearest_rows
from txlcli.core.kernels.score_buffer import PaddedScoreBuffer, ScoreShape
from txlcli.core.model.attention import Attention
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.reader import Reading
from txlcli.core.reading.scoring import Tokens

SCORE_BYTES = 16 << 20
TOP_ONE_IN = 5  # Figure 6 marks the top 20 %

Numbers = NDArray[np.floating[Any]]


TOTAL = "total"
TermScores = dict[str, Tensor]
"""The terms of 3.3 that a model has, scaled, and their TOTAL, the input of its softmax: (H, l, n) each. Column c is
distance n - 1 - c, -inf without a key."""


@torch.inference_mode()
def term_scores(attention: Attention, query: Tensor, keys: Tensor, terms: ScoreTerms) -> TermScores:
    """Return the terms of the scores that `attention` computes for one lane, in float32 at least.

    Queries (H, l, D) are not scaled; the last l of the keys (H, K, D) are their own.
    """
    query_dtype, dtype = query.dtype, torch.promote_types(query.dtype, torch.float32)
    terms = terms.nearest(min(terms.reach, keys.shape[1]))

    def biased(bias: Tensor) -> Tensor:  # (H, 1, D)
        return (bias * attention.d_head**-0.5).to(query_dtype).to(dtype)[:, None]

    with torch.autocast(query.device.type, enabled=False):
        query = (query * attention.d_head**-0.5).to(dtype)
        keys = keys[..., : query.shape[2]].to(dtype)  # a decoder may pad keys with zeros
        scores = {"a": _by_distance(query @ keys.mT, terms.reach)}
        no_key = scores["a"].isneginf()
        if terms.position_key is not None:
            position_key = nearest_rows(terms.position_key, terms.reach).to(dtype)  # (H, n, D)
            scores["b"] = (query @ position_key.mT).masked_fill_(no_key, -math.inf)
        if terms.content_bias is not None:
            score = biased(terms.content_bias) @ keys.mT
            scores["c"] = _by_distance(score.expand(-1, query.shape[1], -1), terms.reach)
        # The bias by distance is like (d): it depends on the distance alone.
        biases = [] if terms.position_bias is None else [biased(terms.position_bias) @ position_key.mT]
        biases += [] if terms.distance_bias is None else [terms.distance_bias.to(dtype)[:, None]]  # (H, 1, n)
        if biases:
            scores["d"] = sum(biases[1:], biases[0]).masked_fill(no_key, -math.inf)
        scores[TOTAL] = sum(list(scores.values())[1:], scores["a"])
    return scores


def _by_distance(score: Tensor, reach: int) -> Tensor:
    """Arrange scores by key (H, l, K) by distance (H, l, n), the farthest first; -inf where there is no key."""
    heads, queries, key_len = score.shape
    shape = ScoreShape(rows=heads, seg_len=queries, key_len=key_len, reach=reach, position_keys=reach)
    buffer = PaddedScoreBuffer(score, shape, fill=-math.inf)
    buffer.by_key.copy_(score)
    return buffer.by_distance


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
    """Attention of the R queries from `at` on, (N, H, R, n); NaN where there is no key."""

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
        """Return the `count` widest heads as (layer, head), counted from 0, the widest first."""
        order, n_heads = np.argsort(-self.width, axis=None, kind="stable")[:count], self.width.shape[1]
        return [divmod(number, n_heads) for number in order.tolist()]

    def context_of(self, layer: int, head: int) -> Numbers:
        """Return attention of the R queries by position, (R, C): the C = n positions up to the first query, in order.

        They are the context of the first query's target. NaN where a query does not see a position.
        """
        rows = self.rows[layer, head].astype(np.float64)
        last = self.distances - 1
        distance = last - np.arange(self.distances) + np.arange(len(rows))[:, None]  # (R, C)
        return np.where(distance <= last, np.take_along_axis(rows, np.minimum(distance, last), axis=1), np.nan)


def strongest(attention: Numbers) -> NDArray[np.bool_]:
    """Mark the fifth of its context that each query attends to most, at least one position: (R, C) -> (R, C).

    Of equal weights the nearer counts as stronger; NaN is not part of the context.
    """
    marked = np.zeros(attention.shape, dtype=bool)
    for number, row in enumerate(attention):
        positions = np.flatnonzero(~np.isnan(row))
        order = np.lexsort((-positions, -row[positions]))
        marked[number, positions[order[: -(-len(positions) // TOP_ONE_IN)]]] = True
    return marked


def first_query(settings: EvalSettings) -> int:
    """Return the position of the first query whose memory is full: the segments before it fill the memory."""
    return -(-settings.mem_len // settings.seg_len) * settings.seg_len


def observe(
    model: TransformerXL,
    inputs: Tokens,
    settings: EvalSettings,
    *,
    at: int,
    rows: int,
    by_term: bool = True,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
    score_bytes: int = SCORE_BYTES,
) -> AttentionMaps:
    """Read a text (T,) with a batch of one and average the attention of all queries that have a full memory.

    Keep the rows of R queries from position `at` on, which is at least `first_query(settings)`; fewer at the end of the
    text. With `by_term`, also compute the attention of each term alone. A tensor of scores has at most `score_bytes`,
    or those of one query.
    """
    first = first_query(settings)
    assert first <= at < len(inputs), (first, at, len(inputs))
    decoder = Decoder(model, Reading(settings=settings, batch_size=1, precision=precision))
    sums = _Sums(decoder, at=at, rows=min(rows, len(inputs) - at), by_term=by_term, score_bytes=score_bytes)
    tokens = torch.from_numpy(np.asarray(inputs, dtype=np.int64)).to(decoder.device)[None]
    for begin in range(0, len(inputs), settings.seg_len):
        sums.begin = begin
        with sums.observing() if begin >= first else nullcontext():
            decoder.read(tokens[:, begin : begin + settings.seg_len])
        if on_tokens:
            on_tokens(min(begin + settings.seg_len, len(inputs)))
    return sums.averages(first, len(inputs) - first)


class _Sums:
    """Sums over the queries of one text, collected while the decoder attends."""

    def __init__(self, decoder: Decoder, *, at: int, rows: int, by_term: bool, score_bytes: int) -> None:
        self.begin = 0
        """Position of the first token of the segment that is being read."""
        self._decoder, self._at, self._score_bytes = decoder, at, score_bytes
        settings = decoder.model.settings
        shape, terms = (settings.n_layers, settings.n_heads), settings.encoding.score_terms if by_term else ()
        zeros = partial(torch.zeros, dtype=torch.float64, device=decoder.device)
        self._by_distance = {name: zeros(*shape, decoder.reach) for name in (TOTAL, *terms)}
        self._entropy, self._memory = zeros(shape), zeros(shape)
        self._rows = np.full((*shape, rows, decoder.reach), np.nan, dtype=np.float32)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Observe every attention of the decoder inside this block."""
        handles = [
            layer.attention.register_forward_hook(partial(self._observe, number))
            for number, layer in enumerate(self._decoder.model.layers)
        ]
        self._decoder.observed = True
        try:
            yield
        finally:
            self._decoder.observed = False
            for handle in handles:
                handle.remove()

    def _observe(self, layer: int, attention: Attention, inputs: tuple[Any, ...], _: Tensor) -> None:
        query, (keys, _values), terms, *_attend = inputs
        seg_len, key_len = query.shape[2], keys.shape[2]
        row_bytes = attention.n_heads * (key_len + seg_len) * torch.promote_types(keys.dtype, torch.float32).itemsize
        step = max(1, self._score_bytes // row_bytes)
        for first in range(0, seg_len, step):
            queries = query[0, :, first : first + step]
            end = key_len - seg_len + first + queries.shape[1]  # keys up to the last of these queries
            self._add(layer, first, term_scores(attention, queries, keys[0, :, :end], terms))

    def _add(self, layer: int, first: int, scores: TermScores) -> None:
        """Add the scores of the queries from index `first` of the segment on."""
        weights = {name: scores[name].softmax(-1) for name in self._by_distance}
        attention = weights[TOTAL]  # (H, l, n)
        _, length, reach = attention.shape
        for name, sums in self._by_distance.items():
            sums[layer, :, -reach:] += weights[name].expand_as(attention).sum(1)
        self._entropy[layer] += torch.special.entr(attention).sum((1, 2))
        distance = torch.arange(reach - 1, -1, -1, device=attention.device)
        index = first + torch.arange(length, device=attention.device)[:, None]  # in the segment
        self._memory[layer] += (attention * (distance > index)).sum((1, 2))
        begin = self.begin + first - self._at  # counted from the first query to show
        shown = slice(max(0, begin), min(begin + length, self._rows.shape[2]))
        if shown.start < shown.stop:
            rows = attention.masked_fill(scores[TOTAL].isneginf(), math.nan)[
                :, shown.start - begin : shown.stop - begin
            ]
            self._rows[layer, :, shown, :reach] = rows.flip(-1).float().cpu().numpy()

    def averages(self, first: int, queries: int) -> AttentionMaps:
        """Return the averages over `queries` queries from position `first` on."""

        def averaged(sums: Tensor) -> Numbers:
            average: Numbers = (sums / queries).cpu().numpy()
            return average

        by_distance = {name: averaged(sums.flip(-1)) for name, sums in self._by_distance.items()}
        return AttentionMaps(
            by_distance=by_distance.pop(TOTAL),
            by_term=by_distance,
            entropy_nats=averaged(self._entropy),
            memory_share=averaged(self._memory),
            first=first,
            queries=queries,
            at=self._at,
            rows=self._rows,
        )
