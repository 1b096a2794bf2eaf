"""Measures the attention of a run on a split, for Figures 5 to 7 (Appendix D)."""

import math
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.registry import ARCHITECTURES
from txlcli.core.measures.attention_maps import AttentionMaps, Numbers, first_query, observe, strongest
from txlcli.errors import UsageError
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.workflows.attention_options import DEFAULT_QUERIES, AttentionOptions, Head
from txlcli.workflows.evaluation.scoring import Scoring, one_lane
from txlcli.workflows.evaluation.texts import ScoredText, split_text
from txlcli.workflows.result import Result
from txlcli.workflows.workspace import Workspace

ROWS = 16
WIDEST = 3
"""Heads of Figure 6, unless the user selects others."""
DIGITS = 7  # significant digits in JSON, as many as float32 has


@dataclass(frozen=True)
class AttentionResult(Result):
    """Attention of a run on a text."""

    opened: OpenRun
    text: ScoredText
    settings: EvalSettings
    shown: tuple[Head, ...]
    """Heads of Figure 6."""
    maps: AttentionMaps

    @property
    def heads(self) -> dict[str, Numbers]:
        """Averages over the queries of each head, (N, H), by name; widths are exp of the entropy of the average."""
        maps = self.maps
        return {
            "mean_distance_tokens": maps.mean_distance,
            "width_tokens": maps.width,
            "entropy_nats": maps.entropy_nats,
            "memory_share": maps.memory_share,
        }

    @property
    def attention_of_shown(self) -> dict[Head, Numbers]:
        """Attention of the R target tokens to the n tokens before the first of them, (R, n), NaN without a key."""
        return {(layer, head): self.maps.rows[layer - 1, head - 1] for layer, head in self.shown}

    @property
    def target_names(self) -> list[str]:
        """Names of the R target tokens."""
        at = self.maps.at
        rows = self.maps.rows.shape[2]
        return self._names(self.text.targets[at : at + rows])

    @property
    def context_names(self) -> list[str]:
        """Names of the n tokens before the first target token; empty before the text begins."""
        at = self.maps.at
        length = self.maps.distances
        names = self._names(self.text.inputs[max(0, at - length + 1) : at + 1])
        before_text = length - len(names)  # without same_length
        return [""] * before_text + names

    def _names(self, ids: NDArray[np.integer]) -> list[str]:
        return [self.opened.vocab.symbol(id_) for id_ in ids.tolist()]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl attention --json` prints, apart from the paths of the figures.

        "figure5" and the terms of "figure7" are [layer][head][distance], shares that sum to 1 over the distances.
        "figure6" has "attention" per head, [row][column], null where a query sees no key, and "top", the columns in
        red. "figure7" is null if the score has one term. Columns and tokens of the split are counted from 0.
        """
        maps = self.maps
        settings = self.settings
        return {
            **self.opened.facts,
            "text": self.text.title,
            "unit": self.text.unit,
            "position": self.opened.transformer.settings.position,
            "seg_len": settings.seg_len,
            "mem_len": settings.mem_len,
            "attn_len_max": maps.distances,
            "max_distance": settings.max_distance,
            "same_length": settings.same_length,
            "precision": self.opened.precision,
            "first_position": maps.first,
            "positions": maps.queries,
            "heads": self.table(),
            "figure5": _to_lists(maps.by_distance),
            "figure6": self._figure6(),
            "figure7": {name: _to_lists(term) for name, term in maps.by_term.items()} or None,
        }

    def table(self) -> list[dict[str, Any]]:
        """Return the averages of each head, by name."""
        averages = self.heads
        heads = []
        for layer, head in np.ndindex(self.maps.width.shape):
            measures: dict[str, Any] = {"layer": layer + 1, "head": head + 1}
            for name, values in averages.items():
                measures[name] = _rounded(float(values[layer, head]))
            heads.append(measures)
        return heads

    def _figure6(self) -> dict[str, Any]:
        heads = []
        for (layer, head), attention in self.attention_of_shown.items():
            top = [np.flatnonzero(row).tolist() for row in strongest(attention)]
            heads.append({"layer": layer, "head": head, "attention": _to_lists(attention), "top": top})
        return {
            "at": self.maps.at,
            "targets": self.target_names,
            "context": self.context_names,
            "heads": heads,
        }


def _to_lists(numbers: Numbers) -> list[Any]:
    """Convert an array to nested lists, NaN to None."""
    if numbers.ndim > 1:
        return [_to_lists(row) for row in numbers]
    return [None if math.isnan(number) else _rounded(number) for number in numbers.tolist()]


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def figures_of(run: Run) -> tuple[int, ...]:
    """Return the figures that a run allows: Figure 7 compares several terms of the score."""
    return (5, 6, 7) if run.settings.model.encoding.score_terms else (5, 6)


def check_options(run: Run, options: AttentionOptions) -> None:
    """Reject options that do not suit the run, before any weights are loaded."""
    settings = run.settings.model
    if not (isinstance(settings, TransformerSettings) and settings.keys_are_tokens):
        raise UsageError(
            f'{run.directory} has no attention to single tokens (arch = "{settings.arch}"); give a run with arch = '
            '"transformer"'
        )
    if ARCHITECTURES[settings.arch].reader != "keys":
        raise UsageError(
            f'{run.directory} has arch = "{settings.arch}", which is not read by the reader "keys"; give a run of '
            'another architecture, or register this one with reader="keys" if it keeps the memory of TransformerXL'
        )
    layers = settings.n_layers
    heads = settings.n_heads
    for layer, head in options.heads or ():
        if not (1 <= layer <= layers and 1 <= head <= heads):
            raise UsageError(
                f"{run.directory} has {layers} layers of {heads} heads, 1.1 to {layers}.{heads}; select some of these "
                "with `heads`"
            )
    one_lane(run, mem_len=options.mem_len)


def measure_attention(run: Run, options: AttentionOptions, workspace: Workspace) -> AttentionResult:
    """Measure the attention of a run on a split."""
    check_options(run, options)
    opened = workspace.open_run(run)
    settings = one_lane(run, mem_len=options.mem_len, seg_len=options.seg_len)
    first = first_query(settings)
    positions = first + (options.positions or DEFAULT_QUERIES)
    text = split_text(opened, options.split, positions, workspace)
    count = len(text.inputs)
    at = options.at
    if count - first < (options.positions or 1):
        raise UsageError(
            f"{text.title} has {count:,} tokens to predict, {first:,} of them without a full memory; give "
            "fewer `positions`, or a shorter `mem_len` or `seg_len`"
        )
    if at is not None and not first <= at < count:
        raise UsageError(f"`at` {at}: give one of the tokens measured, {first} to {count - 1}, or change `positions`")
    workspace.reporter.say(
        f"measuring attention on {count - first:,} tokens of {text.title} with {opened.subject} "
        f"({opened.weights_title}), L = {settings.seg_len}, M = {settings.mem_len}"
    )
    rows = min(ROWS, count - first)
    if at is None:
        at = random.Random(options.seed).randrange(first, count - rows + 1)
    scoring = Scoring(opened, text, settings, workspace)
    maps = scoring.score(partial(observe, at=at, rows=rows), "attention")
    shown = options.heads or tuple(maps.widest(WIDEST))
    return AttentionResult(opened, text, settings, shown, maps)
