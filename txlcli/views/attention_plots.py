"""The pictures of Appendix D: attention by distance, in all and by term; attention of chosen heads by place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from txlcli.views import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

Numbers = NDArray[np.floating[Any]]

MOST_LAYER_LABELS = 16
SHADES = "YlGnBu"
UNSEEN, SEEN, MARKED = "#dfe7f2", "0.25", "#d62728"
FAINTEST = 30  # colours begin at this part of uniform attention
FAINT_RED = 0.15  # a marked place without any attention is still seen to be marked
FULL = 8  # times uniform attention: the strongest grey or red
LONGEST_LABEL = 14
LEGEND = "red: the fifth of its context that a target attends to most; darker: more attention; blue: out of reach"
TERM_TITLES = {
    "a": "(a) content addressing",
    "b": "(b) content-dependent position bias",
    "d": "(d) global position bias",
}
NAMES = {" ": "␣", "\\n": "⏎", "\\t": "⇥", "\\r": "␍"}


@dataclass(frozen=True)
class HeadPicture:
    """One head of Figure 6."""

    title: str
    attention: Numbers
    """(R, C) by place, NaN where there is nothing to see."""
    marked: NDArray[np.bool_]
    """(R, C): drawn in red."""


def draw_by_distance(path: Path, attention: Numbers, *, title: str) -> None:
    """Figure 5: a row per head, layers from bottom to top, distance 0 at the right end as the text has it.

    Args:
        path: the ending decides the format.
        attention: (N, H, n), distances rising from 0.
        title: above the picture.
    """
    figure = _figure(9.6, _height(attention))
    axes = figure.add_subplot()
    image = _draw_heads(axes, attention, _uniform_scale([attention]))
    axes.set_title(title, fontsize=11)
    _add_scale(figure, image, [axes], attention.shape[2])
    plots.save(figure, path)


def draw_terms(path: Path, terms: dict[str, Numbers], *, title: str) -> None:
    """Figure 7: the picture of Figure 5 for each term, side by side on one scale of colours."""
    height = _height(next(iter(terms.values())))
    figure = _figure(2.2 + 4.2 * len(terms), height)
    row = figure.subplots(1, len(terms), sharey=True, squeeze=False)[0]
    scale = _uniform_scale(list(terms.values()))
    for number, (axes, (name, attention)) in enumerate(zip(row, terms.items(), strict=True)):
        image = _draw_heads(axes, attention, scale, labelled=number == 0)
        axes.set_title(TERM_TITLES[name], fontsize=10)
    figure.suptitle(title, fontsize=11)
    _add_scale(figure, image, list(row), attention.shape[2])
    plots.save(figure, path)


def draw_heads(
    path: Path, heads: Sequence[HeadPicture], *, targets: Sequence[str], context: Sequence[str], title: str
) -> None:
    """Figure 6: a panel per head; a row per target token, a column per token of the context of the first.

    Args:
        path: the ending decides the format.
        heads: at least one; R rows and C columns each.
        targets: R names of tokens.
        context: C names of tokens, the nearest last; they are written below where there is room.
        title: above the picture.
    """
    wide = len(context) > 100
    width = 13.0 if wide else max(7.0, 2.2 + 0.13 * len(context))
    panel = 0.55 + 0.17 * len(targets)
    figure = _figure(width, 1.1 + (0.0 if wide else 0.6) + panel * len(heads))
    column = figure.subplots(len(heads), 1, sharex=True, squeeze=False)[:, 0]
    names = [_label(token) for token in targets]
    for axes, head in zip(column, heads, strict=True):
        _draw_head(axes, head)
        axes.set_title(head.title, fontsize=9, loc="left")
        axes.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
        axes.tick_params(axis="both" if not wide else "y", length=0)
    last = column[-1]
    if wide:
        ticks = [1, *_round_distances(len(context) + 1)[1:]]
        last.set_xticks([len(context) - tick for tick in ticks], [str(tick) for tick in ticks], fontsize=8)
        last.set_xlabel("context (tokens before the first target)")
    else:
        labels = [_label(token) for token in context]
        size, turn = (7, 0) if max(map(len, labels)) <= 1 else (6, 90)
        last.set_xticks(range(len(labels)), labels, fontsize=size, rotation=turn, parse_math=False)
        last.set_xlabel("context, up to the first target")
    figure.supylabel("target token", fontsize=10)
    figure.suptitle(f"{title}\n{LEGEND}", fontsize=10)
    plots.save(figure, path)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _height(attention: Numbers) -> float:
    """Inches for a row per head: room for all labels, and for the eye where there are few."""
    layers, heads, _ = attention.shape
    return min(12.0, max(3.4, 1.4 + 0.06 * layers * heads))


def _uniform_scale(pictures: Sequence[Numbers]) -> Any:
    """Colours by the logarithm of attention, from well below uniform attention to the most there is."""
    from matplotlib.colors import LogNorm

    uniform = 1 / pictures[0].shape[2]
    most = max(float(picture.max()) for picture in pictures)
    return LogNorm(vmin=min(uniform / FAINTEST, most / FAINTEST), vmax=max(most, 2 * uniform), clip=True)


def _draw_heads(axes: "Axes", attention: Numbers, scale: Any, *, labelled: bool = True) -> "ScalarMappable":
    layers, heads, distances = attention.shape
    rows = attention.reshape(layers * heads, distances)[:, ::-1]
    edges = (-(distances - 0.5), 0.5, -0.5, layers * heads - 0.5)
    image = axes.imshow(
        rows, aspect="auto", origin="lower", interpolation="nearest", cmap=SHADES, norm=scale, extent=edges
    )
    for border in range(1, layers):
        axes.axhline(border * heads - 0.5, color="0.3", linewidth=0.6)
    ticks = [-tick for tick in _round_distances(distances)]
    axes.set_xticks(ticks, [str(-tick) for tick in ticks])
    axes.set_xlabel("distance (tokens before the query)")
    if labelled:
        every = -(-layers // MOST_LAYER_LABELS)
        named = [layer for layer in range(layers) if layer % every == 0 or layer == layers - 1]
        axes.set_yticks([(layer + 0.5) * heads - 0.5 for layer in named], [str(layer + 1) for layer in named])
        axes.set_ylabel(f"layer ({heads} heads each)" if heads > 1 else "layer")
    axes.tick_params(axis="y", length=0)
    return image


def _draw_head(axes: "Axes", head: HeadPicture) -> None:
    """Grey by attention, red where it is marked; a shade means the same multiple of uniform attention everywhere."""
    from matplotlib.colors import to_rgb

    attention = head.attention
    strength = np.sqrt(np.clip(np.nan_to_num(attention) * attention.shape[1] / FULL, 0, 1))[..., None]  # (R, C, 1)
    white, grey, red, unseen = (np.array(to_rgb(colour)) for colour in ("white", SEEN, MARKED, UNSEEN))
    picture = white + (grey - white) * strength
    picture = np.where(
        head.marked[..., None], white + (red - white) * (FAINT_RED + (1 - FAINT_RED) * strength), picture
    )
    axes.imshow(np.where(np.isnan(attention)[..., None], unseen, picture), aspect="auto", interpolation="nearest")


def _add_scale(figure: "Figure", image: "ScalarMappable", axes: "Sequence[Axes]", distances: int) -> None:
    bar = figure.colorbar(image, ax=list(axes), pad=0.01, fraction=0.05)
    bar.set_label("average attention (line: uniform)", fontsize=9)
    bar.ax.axhline(1 / distances, color="black", linewidth=1.5)


def _round_distances(distances: int) -> list[int]:
    """About eight round numbers from 0 to n - 1."""
    rough = max(1.0, (distances - 1) / 8)
    power = 10 ** math.floor(math.log10(rough))
    step = next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= rough)
    return list(range(0, distances, step))


def _label(token: str) -> str:
    """A token's name in letters that the font has, no longer than there is room."""
    from matplotlib import font_manager

    token = NAMES.get(token, token)
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    known = "".join(letter if font.get_char_index(ord(letter)) else "□" for letter in token)
    return known if len(known) <= LONGEST_LABEL else known[: LONGEST_LABEL - 1] + "…"
