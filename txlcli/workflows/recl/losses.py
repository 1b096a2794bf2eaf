"""Losses for `txl recl`: reads those that its file has, computes the others."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.core.measures.contexts import context_losses, measure_ms_per_token, read_length
from txlcli.core.reading.windows import windows_at_once
from txlcli.data.context_file import ContextFile, key_of
from txlcli.errors import TrainingError
from txlcli.workflows.evaluation.record import non_finite_advice
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.recl.group import Member
from txlcli.workflows.reporter import Reporter


@dataclasses.dataclass(frozen=True)
class ReclTask:
    """Losses that are needed, and the file that keeps them."""

    text: ScoredText
    positions: NDArray[np.int64]
    """Positions to score, (P,)."""
    contexts: Sequence[int]
    """Context lengths."""
    file: ContextFile
    batch_size: int | None
    """Contexts evaluated at once; None lets the device decide."""
    reporter: Reporter


@dataclasses.dataclass(frozen=True)
class MissingLosses:
    """Losses of one model that its file does not have."""

    member: Member
    facts: dict[str, Any]
    positions: Mapping[int, NDArray[np.int64]]
    """Positions to score, by context length."""

    @property
    def tokens(self) -> int:
        """Number of tokens to read."""
        return sum(context_len * len(positions) for context_len, positions in self.positions.items())

    @property
    def count(self) -> int:
        """Number of losses to compute."""
        return sum(map(len, self.positions.values()))


def group_losses(group: Sequence[Member], task: ReclTask) -> NDArray[np.float32]:
    """Return the losses l_i(c, t) of all models, (N models, C context lengths, P positions).

    Losses that the file does not have are computed and added to it, also if the computation is interrupted.

    Raises:
        StoreError: the losses cannot be saved.
        TrainingError: a loss is not finite.
    """
    text, file, positions = task.text, task.file, task.positions
    digest = hashlib.sha256(text.inputs[:1].tobytes() + text.targets.tobytes()).hexdigest()
    all_missing, needed = [], []
    for member in group:
        facts = member.facts(digest)
        key = key_of(facts)
        lengths = [read_length(member.model, member.settings, context_len) for context_len in task.contexts]
        missing = {length: file.missing(key, length, positions) for length in dict.fromkeys(lengths)}
        needed.append((key, lengths))
        all_missing.append(
            MissingLosses(member, facts, {length: part for length, part in missing.items() if len(part)})
        )
    _announce(all_missing, task)
    for missing_losses in all_missing:
        _compute(missing_losses, task)
    return np.array([[file.losses(key, length, positions) for length in lengths] for key, lengths in needed])


def _announce(all_missing: Sequence[MissingLosses], task: ReclTask) -> None:
    """Report the work to do and its expected duration, after a short measurement."""
    say, contexts = task.reporter.say, task.contexts
    models = f"{len(all_missing)} model{'s' if len(all_missing) > 1 else ''}"
    say(
        f"RECL on {task.text.title}: {len(task.positions):,} positions x {len(contexts)} context lengths "
        f"({contexts[0]:,} to {contexts[-1]:,} tokens) x {models}"
    )
    tokens = sum(missing.tokens for missing in all_missing)
    if not tokens:
        say(f"nothing to compute: {task.file.path} has every loss")
        return
    task.file.check_writable()
    seconds = sum(missing.tokens * _ms_per_token(missing, task) / 1e3 for missing in all_missing if missing.tokens)
    count = sum(missing.count for missing in all_missing)
    say(
        f"{count:,} losses to compute, {tokens:,} tokens to read, about {_duration(seconds)}; saved in {task.file.path}"
    )


def _ms_per_token(missing: MissingLosses, task: ReclTask) -> float:
    # Attention makes a token's time linear in c, so the time at the mean of c over tokens is the mean time.
    mean = sum(context_len**2 * len(positions) for context_len, positions in missing.positions.items()) / missing.tokens
    typical, member = min(missing.positions, key=lambda context_len: abs(context_len - mean)), missing.member
    return measure_ms_per_token(
        member.model,
        task.text.inputs,
        member.settings,
        context_len=typical,
        windows=task.batch_size or windows_at_once(member.model.device, typical),
        precision=member.precision,
    )


def _duration(seconds: float) -> str:
    for limit, size, unit in ((5400, 3600, "h"), (90, 60, "min")):
        if seconds >= limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} s"


def _compute(missing: MissingLosses, task: ReclTask) -> None:
    """Compute the missing losses of one model, the shortest context first; saved after each context length.

    Raises:
        TrainingError: a loss is not finite.
    """
    member = missing.member
    with task.reporter.progress(str(member.run.directory), total=missing.tokens, unit="tokens") as bar:
        for context_len, all_positions in missing.positions.items():
            try:
                for positions, losses in context_losses(
                    member.model,
                    task.text.inputs,
                    task.text.targets,
                    all_positions,
                    member.settings,
                    context_len=context_len,
                    windows=task.batch_size or windows_at_once(member.model.device, context_len),
                    precision=member.precision,
                ):
                    _check_finite(losses, member, context_len)
                    task.file.add(missing.facts, context_len, positions, losses)
                    bar.advance(context_len * len(positions), f"context {context_len:,}")
            finally:  # an exception loses nothing, a killed process at most one context length
                task.file.save()


def _check_finite(losses: NDArray[np.float32], member: Member, context_len: int) -> None:
    if not np.isfinite(losses).all():
        advice = non_finite_advice(member.precision, "train it again")
        raise TrainingError(
            f"{member.run.directory}: a loss is not finite at a context of {context_len:,} tokens; {advice}"
        )
