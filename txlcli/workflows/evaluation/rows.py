"""Scores a text with one setting: with a memory, in windows without memory, or document by document.

Axes: N window length, S stride, M memory length, T tokens.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.measures.timing import Repetitions, time_evaluation, time_vanilla
from txlcli.core.reading.documents import score_spans, score_spans_in_windows
from txlcli.core.reading.scoring import Scores, attention_span
from txlcli.core.reading.windows import score_windows, windows_at_once
from txlcli.core.training.validation import add_shares, check_lanes, score_in_processes
from txlcli.errors import TrainingError
from txlcli.paper import metrics
from txlcli.system.processors import is_trusted
from txlcli.workflows.evaluation.options import SLOWDOWN_REPETITIONS
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.settings import RowSetting
from txlcli.workflows.result import Result


@dataclass(frozen=True, kw_only=True)
class EvalRow(Result):
    """Result for one setting."""

    mem_len: int
    """Memory length M in tokens; 0 in windows."""
    attn_len_min: int | None
    """Smallest number of keys that a query sees; None for a recurrent state."""
    attn_len_max: int | None
    tokens: int
    """Number of scored tokens."""
    lanes: int
    loss_nats: float
    """Mean loss in nats per token."""
    measures: dict[str, float | None]
    """bpc and ppl per token, and ppl_per_word and bits_per_byte if their counts are known; None if they overflow."""
    ms_per_token: float
    """Wall time per token, all lanes together."""
    one_lane_ms_per_token: float | None = None
    """Time per token of one lane with memory; None if not measured."""
    vanilla_ms_per_token: float | None = None
    """Time per token of the vanilla model, which recomputes a window of as many keys; None if not measured."""
    attn_len: int | None = None
    """Window length N; None with memory."""
    stride: int | None = None
    """Tokens predicted per window; None with memory."""
    temperature: float = 1.0
    """Number that the logits were divided by."""
    protocol: str | None = None
    """Name in a comparison of protocols."""
    change: float | None = None
    """Relative change of the metric from the first protocol; None if a perplexity overflows."""
    documents: int | None = None
    """Number of documents that were read from an empty memory each; None in other evaluations."""
    method: str | None = None
    """Way of adaptation, such as "model", "cache 2,000" or "dynamic"; None in other evaluations."""
    adaptation: dict[str, float] = field(default_factory=dict)
    """Parameters of the method."""
    processor_share: float | None = None
    """Share of a processor that rank 0 got while it was scored and timed; None on a GPU."""
    best: bool = False
    """True for the lowest loss of the result."""
    losses_nats: NDArray[np.float32] = field(repr=False)
    """Loss of each token, (T,)."""
    settings: EvalSettings = field(repr=False)
    """Settings with which the text was read."""

    @property
    def bpc(self) -> float:
        """Mean loss in bits per token (per character or byte for models of these)."""
        return metrics.bits(self.loss_nats)

    @property
    def ppl(self) -> float | None:
        """Perplexity per token; None if it overflows."""
        return self.measures["ppl"]

    @property
    def slowdown(self) -> float | None:
        """Time of the vanilla model divided by the time with memory (section 4.5); None if not measured."""
        if self.vanilla_ms_per_token is None or self.one_lane_ms_per_token is None:
            return None
        return self.vanilla_ms_per_token / self.one_lane_ms_per_token

    @property
    def in_windows(self) -> bool:
        """True if the text was read in windows without memory."""
        return self.attn_len is not None

    @property
    def has_state(self) -> bool:
        """True if a recurrent state was carried along the text, instead of a memory of some length."""
        return self.attn_len_max is None

    @property
    def times_trusted(self) -> bool:
        """True unless other programs used the processors so much that times and slowdowns mean little."""
        return is_trusted(self.processor_share)

    def to_json(self) -> dict[str, Any]:
        """Return the row of `--json`, which has the keys of its kind of evaluation only."""
        absent = {"losses_nats", "measures", "settings"}
        if self.temperature == 1:
            absent.add("temperature")
        if not self.in_windows:
            absent.update(("attn_len", "stride"))
        if self.protocol is None:
            absent.update(("protocol", "change"))
        if self.documents is None:
            absent.add("documents")
        if self.method is None:
            absent.update(("method", "adaptation"))
        row = vars(self) | self.measures | {"slowdown": self.slowdown, "times_trusted": self.times_trusted}
        if self.protocol and self.in_windows:
            row |= {"seg_len": None, "same_length": None}  # which are settings of recurrence
        return {key: value for key, value in row.items() if key not in absent}


class EvalRows(list[EvalRow], Result):
    """Rows of an evaluation, one for each setting."""

    def to_json(self) -> dict[str, Any]:
        """Return the rows as `txl eval --json` has them."""
        return {"rows": self.table()}

    def table(self) -> list[dict[str, Any]]:
        """Return the measures and settings of each row."""
        return [row.to_json() for row in self]


def score_row(scoring: Scoring, setting: RowSetting) -> EvalRow:
    """Score the text with one setting."""
    if setting.attn_len is None:
        row = score_with_memory(scoring, setting.mem_len)
    else:
        row = score_in_windows(scoring, setting.attn_len, setting.stride)
    return replace(row, protocol=setting.protocol)


def score_with_memory(scoring: Scoring, mem_len: int) -> EvalRow:
    """Score the text with a memory length; each of its documents, if it has any, from an empty memory.

    In a split, the first token of a document is predicted from one token, the last one of the document before.
    """
    scoring = scoring.changed(mem_len=mem_len)
    title = "evaluation" if scoring.opened.model.settings.recurrent_state else f"M = {mem_len}"
    spans = scoring.text.document_spans
    if spans:
        scores = scoring.score(partial(score_spans, spans=spans), title)
        longest = max(end - first for first, end in spans)
        # A document is not cut into lanes: `batch_size` is the number of documents that are read side by side.
        keys = _keys_seen(scoring.changed(batch_size=1), longest)
        return make_row(scoring, scores, keys=keys, documents=len(spans))
    check_lanes(len(scoring.text.targets), scoring.settings, scoring.world.size)
    scores = scoring.score(partial(score_in_processes, world=scoring.world), title)
    return make_row(scoring, scores)


def with_times(scoring: Scoring, row: EvalRow) -> EvalRow:
    """Return the row with the times of one lane with memory, and of the vanilla model: rank 0 takes them."""
    times = scoring.world.from_rank_0(partial(_times, scoring, row.settings))
    if times is None:
        return row
    one_lane, vanilla = times
    return replace(row, one_lane_ms_per_token=one_lane, vanilla_ms_per_token=vanilla)


def score_in_windows(scoring: Scoring, length: int, stride: int) -> EvalRow:
    """Score the text with a window length, without memory; by default, the device decides how many at once."""
    model = scoring.opened.model
    world = scoring.world
    text = scoring.text
    tokens = max(end - first for first, end in text.spans)  # of the longest document
    windows = scoring.options.batch_size or windows_at_once(model, min(length, tokens))
    scoring = scoring.changed(mem_len=0, seg_len=length, batch_size=windows)
    if text.document_spans:
        score_all = partial(score_spans_in_windows, spans=text.spans, stride=stride)
        scores = scoring.score(score_all, f"N = {length}")
    else:
        score_share = partial(score_windows, stride=stride, share=(world.rank, world.size))
        scores = add_shares(scoring.score(score_share, f"N = {length}"), world)
    longest = min(length, tokens, model.settings.attention_window or length)
    # The last S positions of a window count: the first of them sees N - S + 1 keys, the last one all N.
    keys = (min(length - stride + 1, longest), longest)
    documents = len(text.document_spans) or None
    return make_row(scoring, scores, keys=keys, attn_len=length, stride=stride, documents=documents)


def _times(scoring: Scoring, settings: EvalSettings) -> tuple[float, float] | None:
    """Time one lane with memory, and the vanilla model with as many keys; return ms per token.

    None if the text is shorter than the memory, or if the model has fewer learned positions.
    """
    model = scoring.opened.model
    tokens = len(scoring.text.targets)
    one_lane = replace(settings, batch_size=1, seg_len=min(settings.seg_len, tokens))
    _, attn_len = attention_span(model, one_lane)
    longest = model.settings.longest_window
    if one_lane.mem_len == 0 or one_lane.mem_len > tokens:
        return None
    if longest is not None and attn_len > longest:
        return None
    xl = time_evaluation(model, one_lane, Repetitions(SLOWDOWN_REPETITIONS))
    windows = one_lane.with_windows(attn_len)
    vanilla = time_vanilla(model, windows, Repetitions(SLOWDOWN_REPETITIONS))
    return xl.median, vanilla.median


def make_row(
    scoring: Scoring,
    scores: Scores,
    *,
    keys: tuple[int | None, int | None] | None = None,
    next_step: str = "train it again",
    **fields: Any,
) -> EvalRow:
    """Return the row of scores.

    Args:
        scoring: the text, and the settings with which it was scored.
        scores: losses of the text.
        keys: smallest and largest number of keys that a query sees; None computes them for a stream with a memory.
        next_step: advice of the error if the loss is not finite, not even in fp32.
        fields: more fields of the row.
    """
    opened = scoring.opened
    text = scoring.text
    if not math.isfinite(scores.total_nats):
        advice = non_finite_advice(opened.precision, next_step)
        raise TrainingError(f"{opened.subject}: the loss of {text.title} is not finite; {advice}")
    fewest, most = keys or _keys_seen(scoring, len(text.targets))
    tokens = len(scores.losses_nats)
    measures = metrics.measures(scores.total_nats, tokens=tokens, words=text.words, size=text.size)
    return EvalRow(
        mem_len=scoring.settings.mem_len,
        attn_len_min=fewest,
        attn_len_max=most,
        tokens=tokens,
        lanes=scores.lanes,
        loss_nats=scores.total_nats / tokens,
        measures={name: metrics.finite(value) for name, value in measures.items()},
        ms_per_token=scores.ms_per_token,
        temperature=scoring.temperature,
        losses_nats=scores.losses_nats,
        settings=scoring.settings,
        **fields,
    )


def _keys_seen(scoring: Scoring, tokens: int) -> tuple[int | None, int | None]:
    """Return the smallest and the largest number of keys of a query in a text; None for a recurrent state."""
    model = scoring.opened.model
    if model.settings.recurrent_state:
        return None, None
    return attention_span(model, scoring.settings, tokens)


def non_finite_advice(precision: str, next_step: str) -> str:
    """Return the next step after a non-finite loss; fp32 can help only if 16 bits were used."""
    if precision in ("fp32", "tf32"):
        return next_step
    return f"evaluate with `precision` fp32, or {next_step}"
