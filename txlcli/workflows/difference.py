"""Compares the losses of two evaluations of the same text, token by token, or word by word."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.data import loss_file
from txlcli.data.loss_file import Losses
from txlcli.errors import UsageError
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.workflows.difference_options import DifferenceOptions
from txlcli.workflows.evaluation import evaluate, words_file
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.evaluation.words_file import WordLosses
from txlcli.workflows.options import LOSS_FORMATS
from txlcli.workflows.result import Result
from txlcli.workflows.workspace import Workspace

MAX_BLOCKS = 200
"""Largest number of blocks that the text is divided into."""
BLOCK_TOKENS = 100
"""Fewest tokens of a block."""
MIN_TOKENS = 20 * BLOCK_TOKENS
SAMPLES = 10_000
SEED = 1111
"""Number and seed of the resampled texts."""


@dataclass(frozen=True, kw_only=True)
class LossSource:
    """One of two evaluations."""

    file: str | None
    """File with the losses; None for a run that was evaluated."""
    run: str | None
    """None for a file of words, which does not name it."""
    evaluation: str
    """mem_len_M, attn_len_N or "recurrent state"."""
    temperature: float | None
    """Number that the logits were divided by; None for a file of words, which does not have it."""
    loss_nats: float
    """Mean over all tokens, or words."""


@dataclass(frozen=True, kw_only=True)
class LossDifference(Result):
    """Mean loss of the second evaluation minus that of the first, in nats per token, or per word."""

    first: LossSource
    second: LossSource
    unit: str
    """Unit of the losses that are compared: "token" or "word"."""
    tokens: int
    """Number of tokens, or words."""
    difference_nats: float
    low_nats: float
    """Bounds of the 95 % interval."""
    high_nats: float
    significant: bool
    """True if the interval does not contain 0: the difference is more than chance."""

    def table(self) -> list[dict[str, Any]]:
        """Return one row, in which the values of the two evaluations have names that begin with "first" or "second"."""
        row: dict[str, Any] = {}
        for name, value in self.to_dict().items():
            if isinstance(value, dict):
                row |= {f"{name}_{key}": part for key, part in value.items()}
            else:
                row[name] = value
        return [row]


@dataclass(frozen=True)
class Compared:
    """A run, or a file of losses, that is compared with another."""

    name: str
    """Name that the user gave."""
    source: Run | Losses
    has_state: bool
    """True for a run with a recurrent state, or the losses of one: it has no memory length."""

    @classmethod
    def open(cls, name: str, workspace: Workspace) -> "Compared":
        """Find the run of a name, or read the file of losses."""
        if name.lower().endswith(LOSS_FORMATS):
            file = loss_file.read(Path(name))
            return cls(name, file, file.has_state)
        run = run_directory.find(name, workspace.runs_dir)
        return cls(name, run, run.settings.model.recurrent_state)

    @property
    def default_length(self) -> tuple[str, int]:
        """Letter and length of a run's evaluation, or of the best one of a file: "M" or "N", or "" without one."""
        if self.has_state:
            return "", 0
        if isinstance(self.source, Losses):
            prefix, _, length = _chosen_evaluation(self.name, self.source.losses_nats, None).rpartition("_")
            return "M" if prefix == "mem_len" else "N", int(length)
        return "M", self.source.settings.evaluation_settings().mem_len


def mean_interval(differences: NDArray[np.floating]) -> tuple[float, float]:
    """Return the bounds between which 95 % of the means of resampled differences (T,) are.

    Losses of neighbouring tokens depend on each other, so contiguous blocks are drawn instead of tokens (Kunsch 1989).
    Resampled means of few blocks vary too little, so the percentiles are those that make the interval as wide as with
    Student's distribution (Hesterberg 2015). T is at least 2 * BLOCK_TOKENS.
    """
    count = min(MAX_BLOCKS, len(differences) // BLOCK_TOKENS)
    blocks = np.array_split(differences.astype(np.float64), count)
    sums = np.array([block.sum() for block in blocks])
    sizes = np.array([len(block) for block in blocks])
    rng = np.random.default_rng(SEED)
    times_drawn = rng.multinomial(count, np.full(count, 1 / count), size=SAMPLES)
    means = times_drawn @ sums / (times_drawn @ sizes)
    normal = NormalDist().inv_cdf(0.975)
    student = normal + (normal**3 + normal) / (4 * (count - 1))  # of count - 1 degrees of freedom, first order
    below = 100 * NormalDist().cdf(-student * math.sqrt(count / (count - 1)))
    low, high = np.percentile(means, (below, 100 - below))
    return float(low), float(high)


def run(first: str, second: str, options: DifferenceOptions, workspace: Workspace) -> LossDifference:
    """Compare two evaluations of the same text: of runs, which are evaluated, or of files of `txl eval --losses`.

    Two files of `txl eval --words` are compared by words, which models with different tokens share.
    """
    words_files = [name for name in (first, second) if Path(name).suffix.lower() == words_file.SUFFIX]
    if len(words_files) == 2:
        return _compare_words(Path(first), Path(second), options)
    if words_files:
        raise UsageError(
            f"{words_files[0]} has losses of words, which are compared with those of another such file; write it with "
            '"txl eval RUN --text FILE --words FILE.tsv"'
        )
    compared = [Compared.open(name, workspace) for name in (first, second)]
    runs = [item.source for item in compared if isinstance(item.source, Run)]
    if not runs:
        options.exclude("split", "positions", because="files of losses have the text that they were written for")
    run_directory.check_same_text(runs)
    if options.mem_len is None:
        _check_lengths(*compared)
    elif all(item.has_state for item in compared):
        raise _length_error(first, second)
    lengths = options.mem_len or (None,)
    first_source, first_tokens, first_losses = _losses(compared[0], lengths[0], options, workspace)
    second_source, second_tokens, second_losses = _losses(compared[1], lengths[-1], options, workspace)
    if not np.array_equal(first_tokens, second_tokens):
        raise UsageError(f"{first} and {second} have losses of different tokens; evaluate both runs on the same text")
    differences = second_losses.astype(np.float64) - first_losses.astype(np.float64)
    return _summarize(first_source, second_source, differences, unit="token")


def _length_error(first: object, second: object) -> UsageError:
    """Return the error for a memory length that neither evaluation has."""
    return UsageError(f"{first} and {second} have recurrent states; leave out `mem_len`")


def _summarize(first: LossSource, second: LossSource, differences: NDArray[np.float64], *, unit: str) -> LossDifference:
    """Return the mean of differences (T,) with its interval."""
    if len(differences) < MIN_TOKENS:
        name = first.file or first.run
        raise UsageError(f"{name} has {len(differences):,} {unit}s; evaluate at least {MIN_TOKENS:,}")
    low, high = mean_interval(differences)
    return LossDifference(
        first=first,
        second=second,
        unit=unit,
        tokens=len(differences),
        difference_nats=float(differences.mean()),
        low_nats=low,
        high_nats=high,
        significant=low > 0 or high < 0,
    )


def _compare_words(first: Path, second: Path, options: DifferenceOptions) -> LossDifference:
    """Compare two files of words by the words that begin at the same places in both."""
    options.exclude("split", "positions", because="files of words have the text that they were written for")
    first_file = words_file.read(first)
    second_file = words_file.read(second)
    shared = set(first_file.places) & set(second_file.places)
    longest = max(len(first_file.words), len(second_file.words))
    if _words_at(first_file, shared) != _words_at(second_file, shared) or 2 * len(shared) < longest:
        raise UsageError(
            f"{first} and {second} have words of different texts; evaluate both models on the same text, with the same "
            "names of documents"
        )
    if options.mem_len and first_file.has_state and second_file.has_state:
        raise _length_error(first, second)
    lengths = options.mem_len or (None,)
    first_source, first_losses, first_ends = _losses_of_shared(first, first_file, shared, lengths[0])
    second_source, second_losses, second_ends = _losses_of_shared(second, second_file, shared, lengths[-1])
    if first_ends != second_ends or first_file.documents != second_file.documents:
        raise UsageError(
            f"{first} and {second} have words of different parts of a text; evaluate both models on the same documents "
            "and positions"
        )
    return _summarize(first_source, second_source, second_losses - first_losses, unit="word")


def _words_at(file: WordLosses, places: Container[tuple[str, int]]) -> list[str]:
    """Return the words of a file that begin at one of these places."""
    return [word for word, place in zip(file.words, file.places, strict=True) if place in places]


def _losses_of_shared(
    path: Path, file: WordLosses, shared: Container[tuple[str, int]], mem_len: int | None
) -> tuple[LossSource, NDArray[np.float64], dict[str, int]]:
    """Return one evaluation, the loss of each shared word, (W,), and the end of the last word by document.

    The loss of a word has those of the words after it that only this file has; words before the first shared one of a
    document are left out. A line end does not move the end of a document.
    """
    _check_unknown(path, file)
    evaluation = _chosen_evaluation(path, file.losses_nats, None if file.has_state else mem_len)
    nats = file.losses_nats[evaluation]
    sums: list[float] = []
    ends: dict[str, int] = {}
    for word, place, end, loss in zip(file.words, file.places, file.ends, nats.tolist(), strict=True):
        document, _ = place
        if place in shared:
            sums.append(0.0)
            ends.setdefault(document, 0)
        if document in ends:
            sums[-1] += loss
            if not word.isspace():
                ends[document] = end
    losses = np.array(sums)
    source = LossSource(
        file=str(path), run=None, evaluation=evaluation, temperature=None, loss_nats=float(losses.mean())
    )
    return source, losses, ends


def _check_unknown(path: Path, file: WordLosses) -> None:
    """Reject words outside the vocabulary: their bits are those of any unknown word, and too few."""
    lacking = [word for word, unknown in zip(file.words, file.unknown, strict=True) if unknown and word != "<unk>"]
    if lacking:
        raise UsageError(
            f"{path}: {len(lacking):,} words are not in the vocabulary of its model, such as {lacking[0]!r}, so that "
            "their bits cannot be compared; evaluate both models on a text without them"
        )


def _check_lengths(first: Compared, second: Compared) -> None:
    """Reject default evaluations with different memory lengths, or with windows of different lengths."""
    first_kind, first_len = first.default_length
    second_kind, second_len = second.default_length
    if first_kind and first_kind == second_kind and first_len != second_len:
        raise UsageError(
            f"{first.name} is evaluated with {first_kind} = {first_len}, and {second.name} with {second_kind} = "
            f"{second_len}; give `mem_len`, one length for both, or one for each"
        )


def _losses(
    compared: Compared, mem_len: int | None, options: DifferenceOptions, workspace: Workspace
) -> tuple[LossSource, NDArray[np.integer], NDArray[np.float32]]:
    """Return one evaluation with the ids and the losses of its tokens, (T,): of a file, or of a run that it evaluates.

    `mem_len` selects it, unless the model has a recurrent state; None is the best evaluation of a file.
    """
    if compared.has_state:
        mem_len = None
    source = compared.source
    file_name = None
    if isinstance(source, Losses):
        file_name = compared.name
        evaluation = _chosen_evaluation(file_name, source.losses_nats, mem_len)
        tokens = source.tokens
        losses = source.losses_nats[evaluation]
        temperature = source.temperatures[evaluation]
        run_name = source.run
    else:
        lengths = None if mem_len is None else (mem_len,)
        settings = EvalOptions(mem_len=lengths, split=options.split, positions=options.positions, timed=False)
        result = evaluate.evaluate_run(source, settings, workspace)
        result.raise_pending()
        (row,) = result.rows
        evaluation = f"mem_len_{row.mem_len}"
        tokens = result.scoring.text.targets
        losses = row.losses_nats
        temperature = row.temperature
        run_name = str(source.subject)
    if compared.has_state:
        evaluation = words_file.RECURRENT_STATE
    loss_source = LossSource(
        file=file_name,
        run=run_name,
        evaluation=evaluation,
        temperature=temperature,
        loss_nats=float(losses.mean(dtype=np.float64)),
    )
    return loss_source, tokens, losses


def _chosen_evaluation(name: object, losses_nats: Mapping[str, NDArray[np.floating]], mem_len: int | None) -> str:
    """Return the evaluation of a file with a memory length, or by default the one with the lowest mean loss.

    Of a file with windows alone, the length is theirs.
    """
    if mem_len is None:
        means = {evaluation: float(losses.mean(dtype=np.float64)) for evaluation, losses in losses_nats.items()}
        return min(means, key=means.__getitem__)
    has_memory = any(evaluation.startswith("mem_len") for evaluation in losses_nats)
    chosen = f"mem_len_{mem_len}" if has_memory else f"attn_len_{mem_len}"
    if chosen not in losses_nats:
        raise UsageError(f"{name} has no losses with {chosen}; it has {', '.join(losses_nats)}")
    return chosen
