"""Measures the attention of a run on a split, for Figures 5 to 7 (Appendix D)."""

import random
from dataclasses import dataclass

from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.measures.attention_maps import AttentionMaps, first_query, observe, terms_of
from txlcli.errors import UsageError
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.workspace import Workspace

FIGURES = (5, 6, 7)
POSITIONS = 5_000
ROWS = 16
WIDEST = 3
MAX_HEADS = 24  # that one figure has room for

Head = tuple[int, int]
"""(layer, head), both from 1."""


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """Figures, heads and text of a measurement."""

    figures: tuple[int, ...] | None = None
    """Figures of the paper; None selects all that the model's encoding allows."""
    heads: tuple[Head, ...] = ()
    """Heads of Figure 6; the widest ones if empty."""
    widest: int | None = None
    """Number of widest heads to select; None is WIDEST, or all heads if there are fewer."""
    split: str = "valid"
    positions: int | None = None
    """Number of queries to average over; None is POSITIONS, or all of the split if there are fewer."""
    at: int | None = None
    """First token of Figure 6; None selects a random one."""
    seed: int = 1111
    mem_len: int | None = None
    seg_len: int | None = None


@dataclass(frozen=True)
class AttentionResult:
    """Attention of a run on a text."""

    opened: OpenRun
    text: ScoredText
    settings: EvalSettings
    figures: tuple[int, ...]
    """Figures that were requested."""
    heads: tuple[Head, ...]
    """Heads of Figure 6."""
    maps: AttentionMaps

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        """Names of the R target tokens, and of the C tokens before the first of them."""
        at, rows, length = self.maps.at, self.maps.rows.shape[2], self.maps.distances
        symbol = self.opened.vocab.symbol
        targets = [symbol(int(token)) for token in self.text.targets[at : at + rows]]
        context = range(at - length + 1, at + 1)  # without same_length it may begin before the text
        return targets, [symbol(int(self.text.inputs[index])) if index >= 0 else "" for index in context]


def check_figures(run: Run, options: AttentionOptions) -> tuple[int, ...]:
    """Return the figures to make, before any weights are loaded.

    Raises:
        UsageError: the model has no attention, or lacks the heads, the score terms or the memory.
    """
    settings = run.settings.model
    if not isinstance(settings, TransformerSettings):
        has = f'has a recurrent state (arch = "{settings.arch}") and' if settings.recurrent_state else "has"
        raise UsageError(f'{run.directory} {has} no attention; give a run with arch = "transformer"')
    if not settings.keys_are_tokens:
        raise UsageError(
            f'{run.directory} has arch = "{settings.arch}", some of whose keys are no single tokens; give a run with '
            'arch = "transformer"'
        )
    has_terms = bool(terms_of(settings.position))
    if options.figures is not None and 7 in options.figures and not has_terms:
        raise UsageError(
            f'{run.directory} has position = "{settings.position}", whose score is term (a) alone, so Figure 7 has '
            "nothing to compare; give --figure 5,6"
        )
    _check_heads(run, settings, options)
    _eval_settings(run, options)
    return options.figures or (FIGURES if has_terms else FIGURES[:-1])


def _check_heads(run: Run, settings: TransformerSettings, options: AttentionOptions) -> None:
    layers, heads = settings.n_layers, settings.n_heads
    for layer, head in options.heads:
        if not (1 <= layer <= layers and 1 <= head <= heads):
            raise UsageError(
                f"--heads {layer}.{head}: {run.directory} has {layers} layers of {heads} heads; write layer.head, "
                f"1.1 to {layers}.{heads}"
            )
    widest = options.widest or 0
    if widest > layers * heads:
        raise UsageError(f"--auto {widest}: {run.directory} has {layers * heads} heads; give at most that")
    if max(len(options.heads), widest) > MAX_HEADS:
        raise UsageError(f"Figure 6 has room for {MAX_HEADS} heads; select fewer with --heads or --auto")


@dataclass(frozen=True)
class Measurement:
    """A run and a text on which its attention can be measured: all options are checked, nothing is computed yet."""

    opened: OpenRun
    text: ScoredText
    positions: int
    """Number of queries to average over."""
    settings: EvalSettings
    figures: tuple[int, ...]
    """Figures that were requested."""
    options: AttentionOptions

    def run(self, reporter: Reporter) -> AttentionResult:
        """Measure the attention."""
        opened, text, settings, options = self.opened, self.text, self.settings, self.options
        reporter.say(
            f"measuring attention on {self.positions:,} tokens of {text.title} with {opened.run.directory} "
            f"({opened.run.best_or_last.name}, step {opened.checkpoint.state['step']:,}), L = {settings.seg_len}, "
            f"M = {settings.mem_len}"
        )
        rows = min(ROWS, self.positions)
        at = options.at
        if at is None:
            at = random.Random(options.seed).randrange(first_query(settings), len(text.inputs) - rows + 1)
        with reporter.progress("attention", total=len(text.inputs), unit="tokens") as bar:
            maps = observe(
                opened.transformer,
                text.inputs,
                settings,
                at=at,
                rows=rows,
                by_term=7 in self.figures,
                precision=opened.precision,
                on_tokens=bar.reach,
            )
        heads = options.heads or tuple((layer + 1, head + 1) for layer, head in maps.widest(options.widest or WIDEST))
        return AttentionResult(opened, text, settings, self.figures, heads, maps)


def prepare_measurement(run_name: str, options: AttentionOptions, workspace: Workspace) -> Measurement:
    """Open a run and a split on which to measure its attention.

    Raises:
        UsageError: see `check_figures`; or the split has fewer positions.
    """
    opened = workspace.open_run(run_name)
    figures = check_figures(opened.run, options)
    settings = _eval_settings(opened.run, options)
    text, positions = _text(opened, options, settings, workspace)
    return Measurement(opened, text, positions, settings, figures, options)


def measure(run_name: str, options: AttentionOptions, workspace: Workspace) -> AttentionResult:
    """Measure the attention of a run on a split.

    Raises:
        UsageError: see `prepare_measurement`.
    """
    return prepare_measurement(run_name, options, workspace).run(workspace.reporter)


def _eval_settings(run: Run, options: AttentionOptions) -> EvalSettings:
    """Return the settings of `txl eval` with one lane.

    Raises:
        UsageError: the model was not trained with memory and cannot use it.
    """
    lengths = {"mem_len": options.mem_len, "seg_len": options.seg_len}
    changes = {key: value for key, value in lengths.items() if value is not None}
    settings = run.settings.evaluation_settings(batch_size=1, **changes)
    run.settings.check_memory(settings.mem_len, run=run.directory, instead="give --mem-len 0")
    return settings


def _text(
    opened: OpenRun, options: AttentionOptions, settings: EvalSettings, workspace: Workspace
) -> tuple[ScoredText, int]:
    """Return the text, and the number of its queries to average over."""
    first = first_query(settings)
    text = texts.split_text(opened, options.split, first + (options.positions or POSITIONS), workspace)
    available = len(text.inputs) - first
    if available < 1:
        raise UsageError(
            f"{text.title} has {len(text.inputs):,} tokens to predict, too few for a full memory of "
            f"{settings.mem_len:,}; give a shorter --mem-len or --seg-len"
        )
    if options.positions is not None and options.positions > available:
        raise UsageError(
            f"--positions {options.positions}: {text.title} has {available:,} with a full memory of "
            f"{settings.mem_len:,}; give at most that"
        )
    if options.at is not None and not first <= options.at < len(text.inputs):
        raise UsageError(
            f"--at {options.at}: give one of the tokens measured, {first} to {len(text.inputs) - 1}, or change "
            "--positions"
        )
    return text, available
