"""Where the heads of a model look while it reads a text: attention by distance, in all and term by term (Appendix D).

It is observed, not computed a second time from the text: the decoder of `txl eval` reads, and every attention that it
performs is looked at on the way. A query is a place of the text that a token was read at, so distance 0 is that token
itself.

What is alive at once: the scores of one layer, a few queries at a time, so that no tensor of them exceeds SCORE_BYTES
(or the scores of one query) and there are about ten; of all layers together only sums by distance, (N, H, n), and the
rows to show, (N, H, R, n).

Axes: L segment, M memory, K keys, H heads, D head width, N layers, n distances, l queries looked at together, R queries
whose rows are shown, C places of their context.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.encodings import ENCODINGS
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.distance_space import PaddedScoreBuffer
from txlcli.core.model.attention import Attention, ScoreTerms
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.decoder import Decoder
from txlcli.core.training.segments import Tokens

SCORE_BYTES = 16 << 20
TOP_ONE_IN = 5  # Figure 6 marks the top 20 %

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class TermScores:
    """The terms of 3.3, scaled, (H, l, n) each: column c is distance n - 1 - c, -inf where no key stands.

    What is None adds nothing to the model's score.
    """

    a: Tensor
    b: Tensor | None
    c: Tensor | None
    d: Tensor | None

    def total(self) -> Tensor:
        """The score that the model's softmax takes."""
        total = self.a
        for term in (self.b, self.c, self.d):
            if term is not None:
                total = total + term
        return total


@torch.inference_mode()
def term_scores(attention: Attention, query: Tensor, keys: Tensor, terms: ScoreTerms) -> TermScores:
    """The terms of the scores that `attention` gives to one lane.

    Args:
        attention: of the layer.
        query: (H, l, D), as the layer has it.
        keys: (H, K, D); the last l are the queries' own.
        terms: what the layer was given beside them.
    Returns:
        At least in float32, whatever the model multiplies in.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    terms = terms.nearest(min(terms.reach, keys.shape[1]))

    def biased(bias: Tensor | None) -> Tensor | None:  # (H, 1, D)
        return None if bias is None else (bias * attention.scale).to(query.dtype).to(dtype)[:, None]

    with torch.autocast(query.device.type, enabled=False):
        wide = (query * attention.scale).to(dtype)
        keys = keys[..., : query.shape[2]].to(dtype)  # a decoder's may end in zeros
        a = _by_distance(wide @ keys.mT, terms.reach)
        b = c = d = None
        if (u := biased(terms.content_bias)) is not None:
            c = _by_distance((u @ keys.mT).expand(-1, wide.shape[1], -1), terms.reach)
        if (every := terms.every_position_key()) is not None:
            nowhere, position_key = a.isneginf(), every.to(dtype)  # (H, n, D)
            b = (wide @ position_key.mT).masked_fill_(nowhere, -math.inf)
            if (v := biased(terms.position_bias)) is not None:
                d = (v @ position_key.mT).masked_fill(nowhere, -math.inf)
    return TermScores(a, b, c, d)


def _by_distance(score: Tensor, reach: int) -> Tensor:
    """(H, l, K) scores by key -> (H, l, n) by distance, the farthest first; -inf where no key stands."""
    heads, queries, key_len = score.shape
    space = PaddedScoreBuffer(score, rows=heads, seg_len=queries, key_len=key_len, reach=reach, fill=-math.inf)
    space.by_key.copy_(score)
    return space.by_distance


@dataclass(frozen=True)
class AttentionMaps:
    """What a reading showed, averaged over its queries; distances rise from 0 along the last axis of each."""

    by_distance: Numbers
    """Attention, (N, H, n): the share of each distance, averaged over the queries. A head's shares sum to 1."""
    by_term: dict[str, Numbers]
    """The same of "a", "b" and "d", as far as the model has them, each put through a softmax of its own."""
    entropy_nats: Numbers
    """(N, H): entropy of one query's attention, averaged."""
    memory_share: Numbers
    """(N, H): share of the attention that goes to the memory, before the segment of the query."""
    first: int
    """Place of the first query counted; those before it only filled the memory."""
    queries: int
    """Queries averaged over."""
    at: int
    """Place of the first query of `rows`."""
    rows: Numbers
    """Attention of the R queries from `at` on, (N, H, R, n); NaN where there is no key."""

    @property
    def distances(self) -> int:
        """n, the keys that a query sees at most."""
        return self.by_distance.shape[2]

    @property
    def mean_distance(self) -> Numbers:
        """(N, H): mean distance of the attention, in tokens."""
        mean: Numbers = self.by_distance @ np.arange(self.distances)
        return mean

    @property
    def width(self) -> Numbers:
        """(N, H): over how many distances the averaged attention spreads, in tokens: exp of the entropy of its row.

        A head that always looks to one distance is 1 wide, one that looks everywhere alike is n wide, and so is one
        whose queries each look to one place, if these lie scattered over the whole span (head 78 of Figure 6).
        """
        logarithms = np.log(self.by_distance, where=self.by_distance > 0, out=np.zeros_like(self.by_distance))
        width: Numbers = np.exp(-(self.by_distance * logarithms).sum(axis=2))
        return width

    def widest(self, count: int) -> list[tuple[int, int]]:
        """The `count` widest heads as (layer, head) from 0, the widest first."""
        order = np.argsort(-self.width, axis=None, kind="stable")[:count]
        n_heads = self.width.shape[1]
        return [(int(number) // n_heads, int(number) % n_heads) for number in order]

    def context_of(self, layer: int, head: int) -> Numbers:
        """Attention of the R queries by place, (R, C): the C = n places up to the first of them, in order.

        That is the context of the first query's target. NaN where a query does not see a place.
        """
        rows = self.rows[layer, head]
        places = self.distances
        by_place = np.full((len(rows), places), np.nan)
        for number, row in enumerate(rows):
            distance = places - 1 - np.arange(places) + number
            seen = distance < len(row)
            by_place[number, seen] = row[distance[seen]]
        return by_place


def strongest(attention: Numbers) -> NDArray[np.bool_]:
    """The fifth of its context that each query attends to most, (R, C) like the argument; at least one place.

    Of equal ones the nearer counts as stronger; NaN is no context.
    """
    marked = np.zeros(attention.shape, dtype=bool)
    for number, row in enumerate(attention):
        places = np.flatnonzero(~np.isnan(row))
        order = np.lexsort((-places, -row[places]))
        marked[number, places[order[: -(-len(places) // TOP_ONE_IN)]]] = True
    return marked


def first_query(how: EvalSettings) -> int:
    """Place of the first query whose memory is full: the segments before it fill the memory."""
    return -(-how.mem_len // how.seg_len) * how.seg_len


def observe(
    model: TransformerXL,
    inputs: Tokens,
    how: EvalSettings,
    *,
    at: int,
    rows: int,
    by_term: bool = True,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
) -> AttentionMaps:
    """Read a text in one lane and average the attention of all queries that have a full memory.

    Args:
        model: in any mode.
        inputs: (T,) tokens read, T above `first_query(how)`.
        how: L, M and the limits on distance; its lanes mean nothing here.
        at: place of the first query whose row is kept, at least `first_query(how)`.
        rows: R, as far as the text goes.
        by_term: put each term through a softmax of its own, too.
        precision: number format of the model's matrix products.
        on_tokens: called with the number of tokens read so far.

    Raises:
        UsageError: the model has learned fewer positions than a segment has.
    """
    first = first_query(how)
    assert first <= at < len(inputs), (first, at, len(inputs))
    decoder = Decoder(
        model,
        lanes=1,
        mem_len=how.mem_len,
        seg_len=how.seg_len,
        same_length=how.same_length,
        max_distance=how.max_distance,
        precision=precision,
    )
    sums = _Sums(decoder, at=at, rows=min(rows, len(inputs) - at), by_term=by_term)
    tokens = torch.from_numpy(np.asarray(inputs, dtype=np.int64)).to(decoder.device)[None]
    for begin in range(0, first, how.seg_len):
        decoder.read(tokens[:, begin : begin + how.seg_len])
        _report(on_tokens, begin + how.seg_len)
    with sums.observing():
        for begin in range(first, len(inputs), how.seg_len):
            sums.begin = begin
            decoder.read(tokens[:, begin : begin + how.seg_len])
            _report(on_tokens, min(begin + how.seg_len, len(inputs)))
    return sums.averages(first, len(inputs) - first)


def _report(on_tokens: Callable[[int], None] | None, done: int) -> None:
    if on_tokens:
        on_tokens(done)


class _Sums:
    """Sums over the queries of one reading, collected while the decoder attends."""

    def __init__(self, decoder: Decoder, *, at: int, rows: int, by_term: bool) -> None:
        self.begin = 0
        """Place of the first token of the segment that is being read."""
        self._decoder, model = decoder, decoder.model
        shape = (len(model.layers), model.settings.n_heads)
        exact: dict[str, Any] = {"dtype": torch.float64, "device": decoder.device}
        reach = decoder.reach
        self._attention = torch.zeros(*shape, reach, **exact)
        self._terms = {
            name: torch.zeros(*shape, reach, **exact) for name in (terms_of(model.settings.position) if by_term else ())
        }
        self._entropy, self._memory = torch.zeros(shape, **exact), torch.zeros(shape, **exact)
        self._at = at
        self._rows = np.full((*shape, rows, reach), np.nan, dtype=np.float32)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Every attention of the decoder is looked at while the block runs."""
        handles = [
            layer.attention.register_forward_hook(partial(self._see, number))
            for number, layer in enumerate(self._decoder.model.layers)
        ]
        self._decoder.watched = True
        try:
            yield
        finally:
            self._decoder.watched = False
            for handle in handles:
                handle.remove()

    def _see(self, layer: int, attention: Attention, inputs: tuple[Any, ...], _: Tensor) -> None:
        query, (keys, _values), terms, *_attend = inputs
        seg_len, key_len = query.shape[2], keys.shape[2]
        row_bytes = attention.n_heads * (key_len + seg_len) * torch.promote_types(keys.dtype, torch.float32).itemsize
        step = max(1, SCORE_BYTES // row_bytes)
        for first in range(0, seg_len, step):
            queries = query[0, :, first : first + step]
            end = key_len - seg_len + first + queries.shape[1]  # keys up to the last of these queries
            self._add(layer, first, term_scores(attention, queries, keys[0, :, :end], terms))

    def _add(self, layer: int, first: int, scores: TermScores) -> None:
        """Take the scores of the queries from number `first` of the segment on."""
        total = scores.total()
        attention = total.softmax(-1)  # (H, l, n)
        reach = attention.shape[2]
        self._attention[layer, :, -reach:] += attention.sum(1)
        self._entropy[layer] += torch.special.entr(attention).sum((1, 2))
        distance = torch.arange(reach - 1, -1, -1, device=total.device)
        number = first + torch.arange(attention.shape[1], device=total.device)[:, None]
        self._memory[layer] += (attention * (distance > number)).sum((1, 2))
        for name, sums in self._terms.items():
            sums[layer, :, -reach:] += getattr(scores, name).softmax(-1).expand_as(attention).sum(1)
        begin = self.begin + first
        shown = range(max(begin, self._at), min(begin + attention.shape[1], self._at + self._rows.shape[2]))
        if shown:
            rows = attention.masked_fill(total.isneginf(), math.nan)[:, shown.start - begin : shown.stop - begin]
            into = slice(shown.start - self._at, shown.stop - self._at)
            self._rows[layer, :, into, :reach] = rows.flip(-1).float().cpu().numpy()

    def averages(self, first: int, queries: int) -> AttentionMaps:
        """The averages over `queries` queries from place `first` on."""

        def averaged(sums: Tensor) -> Numbers:
            average: Numbers = (sums / queries).cpu().numpy()
            return average

        return AttentionMaps(
            by_distance=averaged(self._attention.flip(-1)),
            by_term={name: averaged(sums.flip(-1)) for name, sums in self._terms.items()},
            entropy_nats=averaged(self._entropy),
            memory_share=averaged(self._memory),
            first=first,
            queries=queries,
            at=self._at,
            rows=self._rows,
        )


def terms_of(position: str) -> tuple[str, ...]:
    """The terms that Figure 7 compares, as far as this encoding has them; none where the score is (a) alone."""
    return ENCODINGS[position].score_terms
