"""The losses behind `txl recl`: those that a file has, and those that must be computed."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.errors import TrainingError
from txlcli.workflows.evaluation import memory
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.recl.group import Member

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from txlcli.data.context_file import ContextFile


@dataclasses.dataclass(frozen=True)
class Work:
    """What one model has to read: for each context length, the positions without a known loss."""

    member: Member
    facts: dict[str, Any]
    missing: Mapping[int, "NDArray[np.int64]"]

    @property
    def tokens(self) -> int:
        """Tokens to read."""
        return sum(context_len * len(positions) for context_len, positions in self.missing.items())

    @property
    def losses(self) -> int:
        """Losses to compute."""
        return sum(map(len, self.missing.values()))


def group_losses(
    group: Sequence[Member],
    text: ScoredText,
    positions: "NDArray[np.int64]",
    contexts: Sequence[int],
    *,
    context_file: "ContextFile",
    windows: int | None,
    shown: bool,
) -> "NDArray[np.float32]":
    """The losses l_i(c, t) of all models, (N models, C context lengths, P positions).

    What the file lacks is computed, and kept there even if something stops it midway.

    Raises:
        StoreError: the losses cannot be kept.
        TrainingError: a loss is not finite.
    """
    import numpy as np

    from txlcli.core.measures.contexts import read_length
    from txlcli.data.context_file import key_of

    digest = hashlib.sha256(text.inputs[:1].tobytes() + text.targets.tobytes()).hexdigest()
    works = []
    for member in group:
        facts = member.facts(digest)
        lengths = dict.fromkeys(read_length(member.model, member.how, context_len) for context_len in contexts)
        missing = {length: context_file.missing(key_of(facts), length, positions) for length in lengths}
        works.append(Work(member, facts, {length: left for length, left in missing.items() if len(left)}))
    _announce(works, text, positions, contexts, context_file=context_file, windows=windows)
    for work in works:
        _compute(work, text, context_file=context_file, windows=windows, shown=shown)
    return np.array(
        [
            [
                context_file.losses(
                    key_of(work.facts), read_length(work.member.model, work.member.how, context_len), positions
                )
                for context_len in contexts
            ]
            for work in works
        ]
    )


def _announce(
    works: Sequence[Work],
    text: ScoredText,
    positions: "NDArray[np.int64]",
    contexts: Sequence[int],
    *,
    context_file: "ContextFile",
    windows: int | None,
) -> None:
    """Say what it will cost, after a short measurement."""
    models = f"{len(works)} model{'s' if len(works) > 1 else ''}"
    console.say(
        f"RECL on {text.title}: {len(positions):,} positions x {len(contexts)} context lengths "
        f"({contexts[0]:,} to {contexts[-1]:,} tokens) x {models}"
    )
    tokens = sum(work.tokens for work in works)
    if not tokens:
        console.say(f"every loss is known from {context_file.path}: nothing to compute")
        return
    context_file.check_writable()
    seconds = sum(work.tokens * _ms_per_token(work, text, windows) / 1e3 for work in works if work.tokens)
    losses = sum(work.losses for work in works)
    console.say(
        f"{losses:,} losses to compute, {tokens:,} tokens to read, about {_duration(seconds)}; kept in "
        f"{context_file.path}"
    )


def _ms_per_token(work: Work, text: ScoredText, windows: int | None) -> float:
    from txlcli.core.measures.contexts import measure_ms_per_token
    from txlcli.core.reading.windows import windows_at_once

    # Attention makes a token's time linear in c, so the time at the mean of c over tokens is the mean time.
    mean = sum(context_len**2 * len(positions) for context_len, positions in work.missing.items()) / work.tokens
    typical, member = min(work.missing, key=lambda context_len: abs(context_len - mean)), work.member
    return measure_ms_per_token(
        member.model,
        text.inputs,
        member.how,
        context_len=typical,
        windows=windows or windows_at_once(member.model.device, typical),
        precision=member.precision,
    )


def _duration(seconds: float) -> str:
    for limit, size, unit in ((5400, 3600, "h"), (90, 60, "min")):
        if seconds >= limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} s"


def _compute(work: Work, text: ScoredText, *, context_file: "ContextFile", windows: int | None, shown: bool) -> None:
    """Compute what is missing for one model, the shortest context first; kept after each context length."""
    with console.progress(str(work.member.run.folder), total=work.tokens, unit="tokens", shown=shown) as bar:
        for context_len in work.missing:
            try:
                for positions, losses in _computed(work, text, context_len, windows):
                    context_file.add(work.facts, context_len, positions, losses)
                    bar.advance(context_len * len(positions), f"context {context_len:,}")
            finally:  # what stops it midway costs nothing, what kills it one context length at most
                context_file.save()


def _computed(
    work: Work, text: ScoredText, context_len: int, windows: int | None
) -> "Iterator[tuple[NDArray[np.integer], NDArray[np.float32]]]":
    """The missing losses at one context length, batch by batch: positions and nats.

    Raises:
        TrainingError: a loss is not finite.
    """
    import numpy as np

    from txlcli.core.measures.contexts import context_losses
    from txlcli.core.reading.windows import windows_at_once

    member = work.member
    for positions, losses in context_losses(
        member.model,
        text.inputs,
        text.targets,
        work.missing[context_len],
        member.how,
        context_len=context_len,
        windows=windows or windows_at_once(member.model.device, context_len),
        precision=member.precision,
    ):
        if not np.isfinite(losses).all():
            step = memory.without_finite_loss(member.precision, "train it again")
            raise TrainingError(
                f"{member.run.folder}: a loss is not finite at a context of {context_len:,} tokens; {step}"
            )
        yield positions, losses
