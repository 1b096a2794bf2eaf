"""Validation during training.

Axes: T tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.scoring import NewReader, Preceded, Tokens, Total, score_total


@dataclass(frozen=True)
class ValidSplit:
    """Inputs and targets of the validation split, (T,) each, as they are stored."""

    inputs: Tokens | Preceded
    targets: Tokens

    @classmethod
    def of(cls, ids: Tokens, boundary: int | None, count: int | None = None) -> "ValidSplit":
        """Return what `scored_stream` does, without a copy of the ids."""
        head = ids if count is None else ids[: count + (boundary is None)]
        return cls(head[:-1], head[1:]) if boundary is None else cls(Preceded(head, boundary), head)


class _Stopped(Exception):  # noqa: N818 - ends a validation early
    pass


def validation_settings(settings: TrainSettings) -> EvalSettings:
    """Return segments of valid_seg_len, with as much memory as gives the number of keys of a training segment.

    Without recurrence a segment is all the context there is, so validation uses the segments of training.
    """
    seg_len = (settings.valid_seg_len or settings.seg_len) if settings.mem_len else settings.seg_len
    mem_len = settings.mem_len + settings.seg_len - seg_len
    return EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=settings.valid_batch_size, same_length="off")


def validate(
    model: LanguageModel,
    split: ValidSplit,
    settings: TrainSettings,
    *,
    should_stop: Callable[[], bool],
    on_tokens: Callable[[int], None] | None,
    new_reader: NewReader | None = None,
) -> Total | None:
    """Score the validation split; return None if stopped before its end.

    Args:
        model: the model in training.
        split: to score.
        settings: of the training.
        should_stop: called between segments.
        on_tokens: called with the number of tokens scored so far.
        new_reader: makes the reader of the model.
    """

    def between_segments(tokens: int) -> None:
        if on_tokens:
            on_tokens(tokens)
        if should_stop():
            raise _Stopped

    evaluation = validation_settings(settings)
    try:
        return score_total(
            model,
            split.inputs,
            split.targets,
            evaluation,
            precision=settings.precision,
            on_tokens=between_segments,
            new_reader=new_reader,
        )
    except _Stopped:
        return None
