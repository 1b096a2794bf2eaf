"""Probes how far back a model finds what it has read: copies, keys, and words that occurred before.

Axes: B texts of t tokens, n distance, R memory lengths, P pieces, W words.
"""

import re
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.measures.likeliest import score_with_likeliest
from txlcli.core.reading.scoring import score
from txlcli.data.vocabulary import Vocab
from txlcli.errors import UsageError
from txlcli.runs import history
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.annotated import Pieces
from txlcli.workflows.evaluation.texts import ScoredText, Scoring
from txlcli.workflows.options import ProbeOptions
from txlcli.workflows.workspace import Workspace

Ids = NDArray[np.int64]
MIN_SYMBOLS = 4
"""Fewest different tokens that texts are generated from."""


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """Tokens of generated texts that occurred before, at a distance."""

    tokens: int
    loss_nats: float
    """Mean loss per token."""
    control_nats: float
    """Mean loss of the same tokens in control texts, where other tokens occurred instead."""
    correct: float
    """Share of the tokens that the model found likeliest."""


@dataclass(frozen=True, kw_only=True)
class WordLosses:
    """Words of the split whose last occurrence has a similar distance."""

    words: int
    loss_nats: float | None
    """Mean loss per word; None without words."""
    without_memory_nats: float | None
    """The same with M = 0."""


@dataclass(frozen=True, kw_only=True)
class ProbeRow:
    """Results at one distance."""

    distance: int
    """In tokens."""
    copy: Repetition
    """Texts of n random tokens, twice; the first token of the repetition does not count."""
    recall: Repetition
    """Texts of a key and a value, other tokens, and both again n tokens later; the second value counts."""
    words: WordLosses
    """Words that last occurred at most this far back, and farther back than the distance before."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Results of a run by distance."""

    opened: OpenRun
    text: ScoredText
    settings: EvalSettings
    rows: tuple[ProbeRow, ...]
    farther: WordLosses
    """Words that last occurred even farther back."""
    new: WordLosses
    """Words that occur for the first time."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl probe --json` prints."""
        return {
            "run": str(self.opened.run.directory),
            "step": self.opened.checkpoint.state["step"],
            "text": self.text.title,
            "seg_len": self.settings.seg_len,
            "mem_len": self.settings.mem_len,
            "precision": self.opened.precision,
            "rows": [asdict(row) for row in self.rows],
            "farther": asdict(self.farther),
            "new": asdict(self.new),
        }


def run(run_name: str | None, options: ProbeOptions, workspace: Workspace) -> ProbeResult:
    """Probe a run, by default the most recent one."""
    opened = workspace.open_run(run_name)
    if not options.unfinished:
        history.check_finished(opened.run)
    settings = opened.run.settings.evaluation_settings(batch_size=1)
    if options.mem_len is not None:
        opened.run.settings.check_memory(options.mem_len, run=opened.run.directory, instead="leave out `mem_len`")
        settings = replace(settings, mem_len=options.mem_len)
    distances = options.distances or default_distances(settings.seg_len + settings.mem_len)
    text = texts.split_text(opened, options.split, options.positions, workspace)
    scoring = Scoring(opened, text, settings, workspace.reporter)
    marks = [number for number in (opened.vocab.boundary, opened.vocab.unknown) if number is not None]
    symbols = np.setdiff1d(text.targets, marks)
    if len(symbols) < MIN_SYMBOLS:
        raise UsageError(
            f"{text.title} has {len(symbols)} different tokens, too few to generate texts; "
            "give `positions` or another `split`"
        )
    rng = np.random.default_rng(options.seed)
    words = _words(scoring, np.array(sorted(distances)))
    rows = []
    for distance, of_distance in zip(sorted(distances), words, strict=False):
        copies = copy_texts(symbols, options.texts, distance, rng)
        recalls = recall_texts(symbols, options.texts, distance, rng)
        row = ProbeRow(
            distance=distance,
            copy=_repetition(scoring, copies, distance - 1, f"copy at {distance}"),
            recall=_repetition(scoring, recalls, 1, f"recall at {distance}"),
            words=of_distance,
        )
        rows.append(row)
    return ProbeResult(opened=opened, text=text, settings=settings, rows=tuple(rows), farther=words[-2], new=words[-1])


def default_distances(reach: int) -> tuple[int, ...]:
    """Return powers of two from 4 up to the first beyond `reach` tokens."""
    return tuple(1 << power for power in range(2, max(3, reach.bit_length() + 1)))


def copy_texts(symbols: Ids, count: int, distance: int, rng: np.random.Generator) -> Ids:
    """Return B texts of n random tokens, twice, then B controls with other tokens the first time: (2B, 2n)."""
    once, other = rng.choice(symbols, (2, count, distance))
    return np.vstack([np.hstack([once, once]), np.hstack([other, once])])


def recall_texts(symbols: Ids, count: int, distance: int, rng: np.random.Generator) -> Ids:
    """Return B texts: a key, its value, n - 2 random tokens that are not the key, key and value; then B controls.

    The value of a control is another one the first time. The result is (2B, n + 2); n is at least 2.
    """
    size = len(symbols)
    keys, values = rng.integers(size, size=(2, count, 1))
    controls = (values + rng.integers(1, size, size=values.shape)) % size
    others = rng.integers(size - 1, size=(count, distance - 2))
    others += others >= keys
    return np.vstack([symbols[np.hstack([keys, first, others, keys, values])] for first in (values, controls)])


def _repetition(scoring: Scoring, generated: Ids, counted: int, title: str) -> Repetition:
    """Score the last tokens of B texts and their B controls, (2B, t), each text in a lane of its own."""
    inputs, targets = generated[:, :-1], generated[:, 1:]
    text = replace(scoring.text, inputs=inputs.ravel(), targets=targets.ravel())
    lanes = replace(scoring, text=text).changed(batch_size=len(generated))
    scores, likeliest, _ = lanes.score(partial(score_with_likeliest, count=1), title)
    losses, control = np.split(scores.losses_nats.reshape(targets.shape)[:, -counted:], 2)
    hits, _ = np.split((likeliest.reshape(targets.shape) == targets)[:, -counted:], 2)
    return Repetition(
        tokens=losses.size,
        loss_nats=float(losses.mean(dtype=np.float64)),
        control_nats=float(control.mean(dtype=np.float64)),
        correct=float(hits.mean()),
    )


def _words(scoring: Scoring, distances: Ids) -> list[WordLosses]:
    """Return the losses of words at each distance, then of those farther back, then of new words."""
    vocab, text = scoring.opened.vocab, scoring.text
    mem_lens = dict.fromkeys((scoring.settings.mem_len, 0))
    losses = [scoring.changed(mem_len=mem_len).score(score, f"words, M = {mem_len}") for mem_len in mem_lens]
    pieces = Pieces.of(vocab, text)
    back, nats = word_losses(pieces, pieces.sums([scores.losses_nats for scores in losses]), vocab)
    groups = np.where(back == 0, len(distances) + 1, np.searchsorted(distances, back))
    return [_mean(nats[:, groups == group]) for group in range(len(distances) + 2)]


def _mean(nats: NDArray[np.float64]) -> WordLosses:
    """Return the means of losses per word (R, W), the first with memory, the last without."""
    means = nats.mean(axis=1).tolist() if nats.size else [None]
    return WordLosses(words=nats.shape[1], loss_nats=means[0], without_memory_nats=means[-1])


def word_losses(pieces: Pieces, losses: NDArray[np.float64], vocab: Vocab) -> tuple[Ids, NDArray[np.float64]]:
    """Return for each word how many tokens back it last began, 0 if it is new, (W,), and its loss, (R, W).

    A word is a token of a word vocabulary, otherwise letters, digits and underscores, whose pieces add up. `losses` are
    those of the pieces, (R, P).
    """
    is_word = vocab.tokenizer == "word"
    unknown = vocab.symbols[vocab.unknown] if is_word and vocab.unknown is not None else None
    matches = re.finditer(r"\S+" if is_word else r"\w+", "".join(pieces.texts))
    found = [match for match in matches if match[0] != unknown]
    ends = np.cumsum(list(map(len, pieces.texts)))
    firsts = np.searchsorted(ends, [match.start() for match in found], side="right")
    lasts = np.searchsorted(ends, [match.end() - 1 for match in found], side="right")
    totals = np.pad(losses.cumsum(axis=1), ((0, 0), (1, 0)))
    seen: dict[str, int] = {}
    back = []
    for match, first in zip(found, pieces.firsts[firsts].tolist(), strict=True):
        back.append(first - seen.get(match[0], first))
        seen[match[0]] = first
    return np.array(back, dtype=np.int64), totals[:, lasts + 1] - totals[:, firsts]
