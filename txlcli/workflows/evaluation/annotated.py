"""A text with the loss of each token by memory length, and the tokens that the model found likeliest.

Axes: R memory lengths, T tokens, P pieces, K likeliest tokens, N bins of positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from txlcli.core.measures.likeliest import score_with_likeliest
from txlcli.data.vocabulary import Vocab
from txlcli.workflows.evaluation.evaluate import EvalResult, describe_settings
from txlcli.workflows.evaluation.sweep import EvalRow
from txlcli.workflows.evaluation.texts import ScoredText

LIKELIEST = 4
"""Number of tokens that are named at each position, K."""
BINS = 100
"""Largest number of bins of positions, N."""


@dataclass(frozen=True, kw_only=True)
class AnnotatedText:
    """The visible pieces of a text, (P,): tokens, or characters that several tokens form together."""

    title: str
    settings: str
    """Settings of the evaluation in sentences."""
    metric: str
    """bpc or ppl."""
    rows: Sequence[EvalRow]
    """Evaluations by memory length, the shortest first, (R,)."""
    before: str
    """Text of a first token that was read, but not predicted."""
    pieces: list[str]
    tokens: NDArray[np.int64]
    """Number of tokens of each piece, (P,)."""
    loss_nats: NDArray[np.float64]
    """Sum over the tokens of each piece, (R, P)."""
    targets: NDArray[np.int64]
    """Id of the last token of each piece, (P,)."""
    likeliest: NDArray[np.int64]
    """Ids of the likeliest tokens in its place, read with the longest memory, the likeliest first, (K, P)."""
    probabilities: NDArray[np.float32]
    """Probabilities of these, (K, P)."""
    symbol: Callable[[int], str]
    """Returns the printable form of an id."""

    def by_position(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the first piece of each bin, (N,), and the mean loss of its tokens in nats, (R, N)."""
        firsts = np.arange(0, len(self.pieces), -(-len(self.pieces) // BINS))
        return firsts, np.add.reduceat(self.loss_nats, firsts, axis=1) / np.add.reduceat(self.tokens, firsts)


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
        before, *spelled = vocab.spell([int(text.inputs[0]), *text.targets.tolist()])
        spelled[len(text.targets) - 1 :] = ["".join(spelled[len(text.targets) - 1 :])]
        lasts = np.flatnonzero([*map(bool, spelled[:-1]), True])
        return cls(before if vocab.boundary is None else "", [spelled[last] for last in lasts], lasts)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The first token of each piece, (P,)."""
        return np.append(0, self.lasts[:-1] + 1)

    def sums(self, losses: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Add up the losses of the tokens of each piece: R times (T,) -> (R, P)."""
        return np.add.reduceat(np.stack(losses).astype(np.float64), self.firsts, axis=1)


def annotate(result: EvalResult) -> AnnotatedText:
    """Join the tokens of an evaluated text to visible pieces, and read it once more for the likeliest tokens."""
    scoring, rows = result.scoring, sorted(result.rows, key=lambda row: row.mem_len)
    opened, text = scoring.opened, scoring.text
    _, likeliest, probabilities = scoring.changed(mem_len=rows[-1].mem_len).score(
        partial(score_with_likeliest, count=min(LIKELIEST, opened.vocab.size)), "likeliest tokens"
    )
    pieces = Pieces.of(opened.vocab, text)
    return AnnotatedText(
        title=f"{opened.run.name} on {text.title}",
        settings=f"{rows[0].tokens:,} tokens scored. {describe_settings(result, rows[-1])}",
        metric=opened.run.metric,
        rows=rows,
        before=pieces.before,
        pieces=pieces.texts,
        tokens=pieces.lasts - pieces.firsts + 1,
        loss_nats=pieces.sums([row.losses_nats for row in rows]),
        targets=text.targets[pieces.lasts].astype(np.int64),
        likeliest=likeliest[:, pieces.lasts],
        probabilities=probabilities[:, pieces.lasts],
        symbol=opened.vocab.symbol,
    )
