"""A text with the loss of each token by memory length, and the tokens that the model found likeliest.

Axes: R memory lengths, T tokens, P pieces, K likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.core.reading.scoring import score_with_likeliest
from txlcli.data.vocabulary import Vocab
from txlcli.paper import metrics
from txlcli.runs.loading import OpenModel
from txlcli.workflows.evaluation.result import EvalResult
from txlcli.workflows.evaluation.rows import EvalRow
from txlcli.workflows.evaluation.texts import ScoredText

Numbers = NDArray[np.number[Any]]
LIKELIEST = 4
"""Number of tokens that are named at each position, K."""


@dataclass(frozen=True)
class Pieces:
    """Tokens (T,) joined to pieces that can be seen, (P,)."""

    before: str
    """Text of a first token that was read, but not predicted."""
    texts: list[str]
    lasts: NDArray[np.int64]
    """The last token of each piece, (P,)."""

    @classmethod
    def of(cls, vocab: Vocab, text: ScoredText) -> "Pieces":
        """Join the tokens of a text."""
        before, *spelled, rest = vocab.spell([int(text.inputs[0]), *text.targets.tolist()])
        spelled[-1] += rest  # of a character that is not complete
        is_visible = [bool(piece) for piece in spelled]
        is_visible[-1] = True
        lasts = np.flatnonzero(is_visible)
        if vocab.boundary is not None:
            before = ""
        return cls(before, [spelled[token] for token in lasts], lasts)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The first token of each piece, (P,)."""
        return np.append(0, self.lasts[:-1] + 1)

    def sums(self, losses: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Add up the losses of the tokens of each piece: R times (T,) -> (R, P)."""
        return np.add.reduceat(np.stack(losses).astype(np.float64), self.firsts, axis=1)


@dataclass(frozen=True, kw_only=True)
class AnnotatedText:
    """A text in visible pieces, with whole numbers for each piece."""

    title: str
    settings: str
    """Settings of the evaluation in sentences."""
    metric: str
    """Name of the metric."""
    rows: list[dict[str, float | None]]
    """Results by memory length, the shortest first: "mem_len", None for a state, "bits" per token, "measure"."""
    before: str
    """Text of a first token that was read, but not predicted."""
    text: str
    lengths: Numbers
    """Length of each piece in UTF-16 units, (P,)."""
    tokens: Numbers
    """Number of tokens of each piece, (P,)."""
    bits: Numbers
    """Loss of each piece as a multiple of `scale` bits, (R, P)."""
    scale: float
    names: list[str]
    """Printable tokens, which the indices of `targets` and `likeliest` point to."""
    targets: Numbers
    """The last token of each piece, (P,)."""
    likeliest: Numbers
    """The likeliest tokens in its place, read with the longest memory, the likeliest first, (K, P)."""
    probabilities: Numbers
    """Probabilities of these, 255 is 1, (K, P)."""


def annotate(result: EvalResult) -> AnnotatedText:
    """Join the tokens of an evaluated text to visible pieces, and read it once more for the likeliest tokens."""
    rows = sorted(result.rows, key=lambda row: row.mem_len)
    scoring = result.scoring
    opened = scoring.opened
    text = scoring.text
    longest = rows[-1]
    at_longest = replace(scoring, settings=longest.settings, temperature=longest.temperature)
    count = min(LIKELIEST, opened.vocab.size)
    _, likeliest, probabilities = at_longest.score(partial(score_with_likeliest, count=count), "likeliest tokens")
    pieces = Pieces.of(opened.vocab, text)
    lasts = pieces.lasts
    shown = np.vstack([text.targets, likeliest])[:, lasts]  # (1 + K, P)
    ids, indices = np.unique(shown, return_inverse=True)
    indices = indices.reshape(shown.shape)
    bits = pieces.sums([row.losses_nats for row in rows]) / np.log(2)
    scale = max(float(bits.max()), 1.0) / np.iinfo(np.uint16).max
    return AnnotatedText(
        title=f"{opened.name} on {text.title}",
        settings=f"{rows[0].tokens:,} tokens scored. {result.describe_settings(longest)}",
        metric=metrics.METRIC_TITLES[opened.metric],
        rows=[_result_of(row, opened) for row in rows],
        before=pieces.before,
        text="".join(pieces.texts),
        lengths=np.array([len(piece.encode("utf-16-le")) // 2 for piece in pieces.texts]),
        tokens=lasts - pieces.firsts + 1,
        bits=np.rint(bits / scale),
        scale=scale,
        names=[opened.vocab.symbol(id_) for id_ in ids.tolist()],
        targets=indices[0],
        likeliest=indices[1:],
        probabilities=np.rint(255 * probabilities[:, lasts]),
    )


def _result_of(row: EvalRow, opened: OpenModel) -> dict[str, float | None]:
    """Return the result of a row, as `AnnotatedText.rows` has it."""
    return {
        "mem_len": None if opened.model.settings.recurrent_state else row.mem_len,
        "bits": metrics.bits(row.loss_nats),
        "measure": row.measures[opened.metric],
    }
