"""Draws the diagrams of concepts.md as SVG: `python docs/figures/make_figures.py [DIRECTORY]`.

Backgrounds are transparent and all colours have a middle lightness, so that the figures can be read on white and on
black.
"""

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TEXT, MEMORY, SEGMENT, HIDDEN, REACH = "#7a7a7a", "#3f8f5f", "#3b7dd8", "#9a9a9a", "#d0752a"
STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "txl",
    "font.family": "sans-serif",
    "font.size": 13,
    "text.color": TEXT,
    "savefig.transparent": True,
}
LAYERS, SEG_LEN, SEGMENTS = 3, 4, 3
MEM_LEN = 4


def _node(axes: Axes, x: float, y: float, colour: str, *, filled: bool = True) -> None:
    axes.plot(x, y, "o", markersize=11, color=colour, markerfacecolor=colour if filled else "none", zorder=3)


def _label(axes: Axes, x: float, y: float, text: str, colour: str = TEXT, **style: object) -> None:
    axes.text(x, y, text, color=colour, **{"ha": "center", "va": "center", **style})


def memory_across_segments() -> Figure:
    """Draw what the last position of three segments depends on in three layers, if each query sees M keys."""
    figure, axes = plt.subplots(figsize=(7.8, 4.2))
    target = SEG_LEN * SEGMENTS - 1
    back = MEM_LEN - 1  # a query sees MEM_LEN keys, its own position among them
    reached = {layer: range(target - back * (LAYERS - layer), target + 1) for layer in range(LAYERS + 1)}
    for layer in range(1, LAYERS + 1):
        for x in reached[layer]:
            for source in range(x - back, x + 1):
                crosses = source // SEG_LEN != x // SEG_LEN
                colour = MEMORY if crosses else REACH
                axes.plot([source, x], [layer - 1, layer], color=colour, linewidth=1.1, alpha=0.65, zorder=1)
    for segment in range(SEGMENTS):
        start = segment * SEG_LEN
        if segment:
            axes.plot([start - 0.5] * 2, [-0.45, LAYERS + 0.45], color=TEXT, linewidth=1, linestyle=(0, (4, 4)))
        _label(axes, start + 1.5, LAYERS + 0.75, f"segment {segment + 1}", SEGMENT if segment == 2 else TEXT)
        for x in range(start, start + SEG_LEN):
            for layer in range(LAYERS + 1):
                in_reach = x in reached[layer]
                colour = (SEGMENT if segment == SEGMENTS - 1 else MEMORY) if in_reach else HIDDEN
                _node(axes, x, layer, colour, filled=in_reach)
    _node(axes, target, LAYERS, REACH)
    for layer in range(LAYERS + 1):
        _label(axes, -0.6, layer, "tokens" if layer == 0 else f"layer {layer}", ha="right")
    note = f"M = {MEM_LEN} keys per query: each layer reaches {back} positions further back"
    _label(axes, 3.5, -0.6, "memory: cached, without gradient", MEMORY, va="top", fontsize=12.5)
    _label(axes, 9.5, -0.6, "computed now", SEGMENT, va="top", fontsize=12.5)
    _label(axes, 5.5, -1.1, note, REACH, va="top", fontsize=12.5)
    axes.set_xlim(-2.2, target + 0.7)
    axes.set_ylim(-1.5, LAYERS + 1.05)
    axes.axis("off")
    return figure


def distances() -> Figure:
    """Draw the distance between each query of a segment and each key of memory and segment."""
    figure, axes = plt.subplots(figsize=(7.8, 4.0))
    for query in range(SEG_LEN):
        for key in range(MEM_LEN + SEG_LEN):
            distance = MEM_LEN + query - key
            x, y = key, SEG_LEN - 1 - query
            seen_m = 0 <= distance < MEM_LEN
            colour = HIDDEN if distance < 0 else MEMORY if key < MEM_LEN else SEGMENT
            if distance >= 0:
                axes.add_patch(plt.Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, color=colour, alpha=0.22, linewidth=0))
            if seen_m:
                axes.add_patch(
                    plt.Rectangle((x - 0.43, y - 0.43), 0.86, 0.86, fill=False, edgecolor=REACH, linewidth=1.6)
                )
            _label(axes, x, y, str(distance) if distance >= 0 else "-", colour if distance >= 0 else HIDDEN)
    for query in range(SEG_LEN):
        _label(axes, -0.8, SEG_LEN - 1 - query, f"query {query + 1}", ha="right")
    for key in range(MEM_LEN + SEG_LEN):
        in_memory = key < MEM_LEN
        name = f"m{key + 1}" if in_memory else f"x{key - MEM_LEN + 1}"
        _label(axes, key, SEG_LEN - 0.2, name, MEMORY if in_memory else SEGMENT)
    _label(axes, 1.5, SEG_LEN + 0.35, f"memory, M = {MEM_LEN}", MEMORY)
    _label(axes, 5.5, SEG_LEN + 0.35, f"segment, L = {SEG_LEN}", SEGMENT)
    _label(axes, 3.5, -0.95, "number: distance.  -: a later token, never seen.", fontsize=12.5)
    _label(axes, 3.5, -1.4, f"outlined: the {MEM_LEN} keys that each query sees with same_length", REACH, fontsize=12.5)
    axes.set_xlim(-2.4, MEM_LEN + SEG_LEN - 0.4)
    axes.set_ylim(-1.75, SEG_LEN + 0.65)
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


FIGURES = {"memory-across-segments": memory_across_segments, "distances": distances}


def main(directory: Path) -> None:
    """Write all figures into a directory."""
    with mpl.rc_context(STYLE):
        for name, draw in FIGURES.items():
            figure = draw()
            figure.savefig(directory / f"{name}.svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
            plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
