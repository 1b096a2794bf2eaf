"""Probes how far back a model finds what it has read: copies, keys, and words that occurred before.

Axes: B texts of t tokens, n distance, R memory lengths, P pieces, W words.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.core.reading.scoring import score_with_likeliest
from txlcli.data.vocabulary import Vocab
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.workflows.evaluation.annotated import Pieces
from txlcli.workflows.evaluation.rows import score_with_memory
from txlcli.workflows.evaluation.scoring import Scoring, one_lane
from txlcli.workflows.evaluation.texts import split_text
from txlcli.workflows.probe_options import ProbeOptions
from txlcli.workflows.result import Result
from txlcli.workflows.workspace import Workspace

Ids = NDArray[np.int64]
FARTHER = "farther"
NEW = "new"


@dataclass(kw_only=True)
class ProbeRow:
    """Results at one distance; None where there is nothing to measure."""

    distance: int | str
    """In tokens. For words, the farthest of a range, words from "farther" back than all, or "new" words."""
    copied: float | None = None
    """Share of the tokens of a copy that the model finds likeliest."""
    copy_saved_nats: float | None = None
    """Loss per token that the first occurrence saves, compared with control texts."""
    recalled: float | None = None
    """Share of the values that the model finds likeliest after their key."""
    recall_saved_nats: float | None = None
    words: int
    """Number of words that last occurred so far back."""
    word_nats: float | None = None
    """Mean loss per word."""
    word_nats_without_memory: float | None = None


@dataclass(frozen=True)
class ProbeResult(Result):
    """Results of a run by distance."""

    scoring: Scoring
    rows: tuple[ProbeRow, ...]

    @property
    def has_state(self) -> bool:
        """True for a recurrent state, which has no memory length."""
        return self.scoring.opened.model.settings.recurrent_state

    @property
    def memory(self) -> str:
        """The memory of the model, in words."""
        return "recurrent state" if self.has_state else f"M = {self.scoring.settings.mem_len}"

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each distance."""
        return list(map(vars, self.rows))

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl probe --json` prints."""
        opened = self.scoring.opened
        settings = self.scoring.settings
        return {
            **opened.facts,
            "text": self.scoring.text.title,
            "seg_len": settings.seg_len,
            "mem_len": None if self.has_state else settings.mem_len,
            "precision": opened.precision,
            "rows": self.rows,
        }


def probe_run(run: Run, options: ProbeOptions, workspace: Workspace) -> ProbeResult:
    """Probe a run."""
    opened = workspace.open_run(run)
    settings = one_lane(opened.run, mem_len=options.mem_len)
    text = split_text(opened, options.split, options.positions, workspace)
    scoring = Scoring(opened, text, settings, workspace)
    marks = [id_ for id_ in (opened.vocab.boundary, opened.vocab.unknown) if id_ is not None]
    symbols = np.setdiff1d(text.targets, marks)
    if len(symbols) < 2:
        raise UsageError(
            f"{text.title}: its first {len(text.targets):,} tokens have fewer than 2 symbols, of which the generated "
            "texts are made; give more `positions`, or another `split`"
        )
    rng = np.random.default_rng(options.seed)
    distances = sorted(options.distances or default_distances(settings.seg_len + settings.mem_len))
    rows = _word_rows(scoring, distances)
    for row, distance in zip(rows, distances, strict=False):  # the last two rows are of words only
        copies = copy_texts(symbols, options.texts, distance, rng)
        row.copied, row.copy_saved_nats = _repeat(scoring, copies, distance - 1, f"copy at {distance}")
        recalls = recall_texts(symbols, options.texts, distance, rng)
        row.recalled, row.recall_saved_nats = _repeat(scoring, recalls, 1, f"recall at {distance}")
    return ProbeResult(scoring, tuple(rows))


def default_distances(reach: int) -> tuple[int, ...]:
    """Return powers of two from 4 up to the first beyond `reach` tokens."""
    last_power = max(2, reach.bit_length())
    return tuple(1 << power for power in range(2, last_power + 1))


def copy_texts(symbols: Ids, count: int, distance: int, rng: np.random.Generator) -> Ids:
    """Return B texts of n random tokens, twice, then B controls with other tokens the first time: (2B, 2n)."""
    once, other = rng.choice(symbols, (2, count, distance))
    copies = np.hstack([once, once])
    controls = np.hstack([other, once])
    return np.vstack([copies, controls])


def recall_texts(symbols: Ids, count: int, distance: int, rng: np.random.Generator) -> Ids:
    """Return B texts: a key, its value, n - 2 random tokens that are not the key, key and value; then B controls.

    The value of a control is another one the first time. The result is (2B, n + 2); n is at least 2.
    """
    size = len(symbols)
    keys, values = rng.integers(size, size=(2, count, 1))
    other_values = (values + rng.integers(1, size, size=values.shape)) % size
    others = rng.integers(size - 1, size=(count, distance - 2))
    others += others >= keys
    recalls = np.hstack([keys, values, others, keys, values])
    controls = np.hstack([keys, other_values, others, keys, values])
    return symbols[np.vstack([recalls, controls])]


def _repeat(scoring: Scoring, generated: Ids, counted: int, title: str) -> tuple[float, float]:
    """Score the last tokens of B texts and their B controls, (2B, t), each text in a lane of its own.

    Return the share of tokens that are the likeliest, and the nats per token that the texts save.
    """
    inputs = generated[:, :-1]
    targets = generated[:, 1:]
    text = replace(scoring.text, inputs=inputs.ravel(), targets=targets.ravel())
    lanes = replace(scoring, text=text).changed(batch_size=len(generated))
    scores, likeliest, _ = lanes.score(partial(score_with_likeliest, count=1), title)
    all_losses = scores.losses_nats.reshape(targets.shape)[:, -counted:].astype(np.float64)
    losses, control = np.split(all_losses, 2)
    all_hits = likeliest.reshape(targets.shape) == targets
    hits, _ = np.split(all_hits[:, -counted:], 2)
    return float(hits.mean()), float(control.mean() - losses.mean())


def _word_rows(scoring: Scoring, distances: list[int]) -> list[ProbeRow]:
    """Return a row about the words for each distance, then for words farther back, then for new words."""
    vocab = scoring.opened.vocab
    has_state = scoring.opened.model.settings.recurrent_state
    mem_lens = dict.fromkeys((scoring.settings.mem_len, 0))
    evaluated = [score_with_memory(scoring, mem_len) for mem_len in mem_lens]
    pieces = Pieces.of(vocab, scoring.text)
    losses = pieces.sums([row.losses_nats for row in evaluated])
    back, nats = word_losses(pieces, losses, vocab)
    labels: list[int | str] = [*distances, FARTHER, NEW]
    groups = np.where(back == 0, labels.index(NEW), np.searchsorted(distances, back))
    rows = []
    for group, label in enumerate(labels):
        group_nats = nats[:, groups == group]  # (R, W)
        row = ProbeRow(distance=label, words=group_nats.shape[1])
        if row.words:
            means = group_nats.mean(axis=1).tolist()
            row.word_nats = means[0]
            if not has_state:
                row.word_nats_without_memory = means[-1]
        rows.append(row)
    return rows


def word_losses(pieces: Pieces, losses: NDArray[np.float64], vocab: Vocab) -> tuple[Ids, NDArray[np.float64]]:
    """Return for each word how many tokens back it last began, 0 if it is new, (W,), and its loss, (R, W).

    A word is a token of a word vocabulary, otherwise letters, digits and underscores, whose pieces add up. `losses` are
    those of the pieces, (R, P).
    """
    pattern = r"\w+"
    unknown = None
    if vocab.tokenizer == "word":
        pattern = r"\S+"
        if vocab.unknown is not None:
            unknown = vocab.symbols[vocab.unknown]
    matches = re.finditer(pattern, "".join(pieces.texts))
    words_of_text = [match for match in matches if match[0] != unknown]
    ends = np.cumsum([len(text) for text in pieces.texts])
    firsts = np.searchsorted(ends, [match.start() for match in words_of_text], side="right")
    lasts = np.searchsorted(ends, [match.end() - 1 for match in words_of_text], side="right")
    totals = np.pad(losses.cumsum(axis=1), ((0, 0), (1, 0)))
    seen: dict[str, int] = {}
    back = []
    for match, first in zip(words_of_text, pieces.firsts[firsts].tolist(), strict=True):
        back.append(first - seen.get(match[0], first))
        seen[match[0]] = first
    return np.array(back, dtype=np.int64), totals[:, lasts + 1] - totals[:, firsts]
