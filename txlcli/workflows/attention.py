"""What `txl attention` does: reads a split, looks where the heads look, draws Figures 5 to 7."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.errors import RunError, UsageError
from txlcli.views.attention_result import Found, Head
from txlcli.workflows.evaluation import texts

if TYPE_CHECKING:
    from txlcli.config.model_settings import TransformerSettings
    from txlcli.config.settings import EvalSettings
    from txlcli.core.measures.attention_maps import AttentionMaps
    from txlcli.core.model.transformer_xl import TransformerXL
    from txlcli.runs.loading import OpenRun
    from txlcli.workflows.evaluation.texts import ScoredText

FIGURES = (5, 6, 7)
POSITIONS = 5_000
ROWS = 16
WIDEST = 3
MOST_HEADS = 24  # that one picture can show


@dataclass(frozen=True, kw_only=True)
class AttentionWishes:
    """What somebody wants to see of a run."""

    figures: tuple[int, ...] | None = None
    """Of the paper; None is all that the model has the terms for."""
    heads: tuple[Head, ...] = ()
    """(layer, head), from 1, for Figure 6; none are the widest."""
    widest: int | None = None
    """How many heads to choose, where none are named; WIDEST, or all there are, where it is left out."""
    split: str = "valid"
    positions: int | None = None
    """Queries to average over; POSITIONS, or what the split has, where it is left out."""
    at: int | None = None
    """Token of the split that the rows of Figure 6 begin with; drawn where it is left out."""
    seed: int = 1111
    mem_len: int | None = None
    seg_len: int | None = None


def make(
    opened: "OpenRun", wishes: AttentionWishes, *, folder: Path, ending: str, force: bool, data_dir: Path, shown: bool
) -> dict[str, Any]:
    """Measure and draw; gives the object that --json prints, with the paths of the figures as "files".

    Args:
        opened: the run.
        wishes: what to look at.
        folder: for figure5, figure6, figure7; it is made where it is not there.
        ending: "png", "svg" or "pdf".
        force: overwrite figures that are there.
        data_dir: of the token stores.
        shown: show a bar while the text is read.

    Raises:
        UsageError: the model attends to nothing, lacks the heads or the terms, or the split the positions.
        RunError: figures are there already.
        TxlError: a figure cannot be written.
    """
    model = _attending(opened)
    figures = _figures(opened, model.settings.position, wishes)
    _check_heads(opened, model.settings, wishes)
    paths = {figure: folder / f"figure{figure}.{ending}" for figure in figures}
    reading = _reading(opened, wishes)
    source, positions = _source(opened, wishes, reading, data_dir)
    _check_free(folder, list(paths.values()), force=force)
    maps = _observe(opened, model, source, reading, wishes, positions, by_term=7 in figures, shown=shown)
    shown_heads = wishes.heads or tuple((layer + 1, head + 1) for layer, head in maps.widest(wishes.widest or WIDEST))
    found = Found(opened, source, reading, figures, shown_heads, maps)
    _make_folder(folder)
    for figure, path in paths.items():
        found.draw(figure, path)
        console.say(f"Figure {figure} drawn to {path}")
    return {**found.as_result(), "files": [str(path) for path in paths.values()]}


def _attending(opened: "OpenRun") -> "TransformerXL":
    from txlcli.core.model.transformer_xl import TransformerXL

    if not isinstance(opened.model, TransformerXL):
        arch = opened.run.settings.model.arch
        raise UsageError(
            f'{opened.run.folder} carries a state (arch = "{arch}") and has no attention; name a run with '
            'arch = "transformer"'
        )
    return opened.model


def _figures(opened: "OpenRun", position: str, wishes: AttentionWishes) -> tuple[int, ...]:
    """The figures to draw."""
    from txlcli.core.measures.attention_maps import terms_of

    has_terms = bool(terms_of(position))
    if wishes.figures is None:
        return FIGURES if has_terms else FIGURES[:-1]
    if 7 in wishes.figures and not has_terms:
        raise UsageError(
            f'{opened.run.folder} has position = "{position}", whose score is term (a) alone, so there is nothing for '
            "Figure 7 to compare; give --figure 5,6"
        )
    return wishes.figures


def _check_heads(opened: "OpenRun", settings: "TransformerSettings", wishes: AttentionWishes) -> None:
    layers, heads = settings.n_layers, settings.n_heads
    for layer, head in wishes.heads:
        if not (1 <= layer <= layers and 1 <= head <= heads):
            raise UsageError(
                f"--heads {layer}.{head}: {opened.run.folder} has {layers} layers of {heads} heads; write layer.head, "
                f"1.1 to {layers}.{heads}"
            )
    widest = wishes.widest or 0
    if widest > layers * heads:
        raise UsageError(f"--auto {widest}: {opened.run.folder} has {layers * heads} heads; give at most that")
    if max(len(wishes.heads), widest) > MOST_HEADS:
        raise UsageError(f"Figure 6 has room for {MOST_HEADS} heads; choose fewer by --heads or --auto")


def _check_free(folder: Path, paths: list[Path], *, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder}: is a file; name a folder")
    taken = [path for path in paths if path.exists()]
    if taken and not force:
        raise RunError(f"{taken[0]} exists; choose another --out, or overwrite it with --force")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror}); choose another --out") from error


def _reading(opened: "OpenRun", wishes: AttentionWishes) -> "EvalSettings":
    """How the split is read: as `txl eval` would, in one lane."""
    lengths = {"mem_len": wishes.mem_len, "seg_len": wishes.seg_len}
    changes = {key: value for key, value in lengths.items() if value is not None}
    reading = opened.run.settings.evaluation_settings(batch_size=1, **changes)
    opened.run.settings.check_memory(reading.mem_len, run=opened.run.folder, instead="give --mem-len 0")
    return reading


def _source(
    opened: "OpenRun", wishes: AttentionWishes, reading: "EvalSettings", data_dir: Path
) -> "tuple[ScoredText, int]":
    """The text to read, and how many of its queries count."""
    from txlcli.core.measures.attention_maps import first_query

    first = first_query(reading)
    source = texts.of_split(opened, wishes.split, first + (wishes.positions or POSITIONS), data_dir)
    available = len(source.inputs) - first
    if available < 1:
        raise UsageError(
            f"{source.title} has {len(source.inputs):,} tokens to predict, too few for a full memory of "
            f"{reading.mem_len:,}; give a shorter --mem-len or --seg-len"
        )
    if wishes.positions is not None and wishes.positions > available:
        raise UsageError(
            f"--positions {wishes.positions}: {source.title} has {available:,} with a full memory of "
            f"{reading.mem_len:,}; give at most that"
        )
    if wishes.at is not None and not first <= wishes.at < len(source.inputs):
        raise UsageError(
            f"--at {wishes.at}: the tokens looked at are {first} to {len(source.inputs) - 1}; name one of these, or "
            "change --positions"
        )
    return source, available


def _observe(
    opened: "OpenRun",
    model: "TransformerXL",
    source: "ScoredText",
    reading: "EvalSettings",
    wishes: AttentionWishes,
    positions: int,
    *,
    by_term: bool,
    shown: bool,
) -> "AttentionMaps":
    from txlcli.core.measures.attention_maps import first_query, observe

    first = first_query(reading)
    console.say(
        f"looking at {positions:,} tokens of {source.title} with {opened.run.folder} "
        f"({opened.run.best_or_last.name}, step {opened.checkpoint.state['step']:,}), L = {reading.seg_len}, "
        f"M = {reading.mem_len}"
    )
    rows = min(ROWS, positions)
    at = wishes.at
    if at is None:
        at = random.Random(wishes.seed).randrange(first, len(source.inputs) - rows + 1)
    with console.progress("attention", total=len(source.inputs), unit="tokens", shown=shown) as bar:
        return observe(
            model,
            source.inputs,
            reading,
            at=at,
            rows=rows,
            by_term=by_term,
            precision=opened.precision,
            on_tokens=bar.reach,
        )
