"""Plots curves, and writes figures as PNG, SVG or PDF."""

import itertools
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from txlcli.system.atomic_files import errors_of_writing, replacing
from txlcli.system.escapes import on_one_line
from txlcli.system.written_files import MARK

matplotlib.rcdefaults()  # a matplotlibrc in the working directory could change the figures, or have LaTeX run
matplotlib.rcParams["font.size"] = 12

Curve = tuple[Sequence[float], Sequence[float | None]]
"""x and y values; None leaves a gap."""
Curves = Mapping[str, Curve]
"""Curves by their names."""
GENERATORS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}
"""Key of the metadata for the program that wrote a figure, by extension."""
MARKERS = "osD^vPX*"
"""Markers of the curves of a panel in their order, so that they differ without colour."""
NO_STYLES: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, which needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def literal(text: str) -> str:
    """Return a name or another text from a file on one line, with its dollars, which would begin a formula."""
    return on_one_line(text).replace("$", r"\$")


def plot_panels(
    path: Path,
    panels: Mapping[str, Curves],
    *,
    x_label: str,
    title: str,
    log_x: bool = False,
    log_y: Collection[str] = (),
    styles: Mapping[str, Mapping[str, Any]] = NO_STYLES,
    focus_x: float | None = None,
) -> None:
    """Plot sets of curves side by side to a file; `panels` has them by the label of their y axis.

    `log_y` has the labels of logarithmic axes, `styles` matplotlib's properties of lines by their names. The y axis
    covers the values from `focus_x` on; earlier ones may lie above it.
    """
    max_curves = max(map(len, panels.values()))
    columns = 2 if max_curves > 2 else 1
    height = 4.4
    if max_curves > 1:
        height += 0.3 * -(-max_curves // columns)  # for the legend
    figure = new_figure(max(6.4, 5.2 * len(panels)), height)
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (y_label, curves) in zip(row, panels.items(), strict=True):
        for marker, (name, (x, y)) in zip(itertools.cycle(MARKERS), curves.items(), strict=False):
            style: dict[str, Any] = {"marker": marker, "label": literal(name), **styles.get(name, {})}
            axes.plot(x, np.array(y, dtype=float), **style)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
        if log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,g}")
        if y_label in log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.yaxis.set_minor_formatter("")
        if len(curves) > 1:  # below the axes, so that it hides no curve
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False, ncols=columns)
        if focus_x is not None:
            limit_y(axes, curves, focus_x)
    figure.suptitle(literal(title))
    save(figure, path)


def limit_y(axes: Axes, curves: Curves, focus_x: float) -> None:
    """Let a linear y axis cover the values from `focus_x` on, and above them at most as much again of earlier ones.

    All values are shown if those from there on are the same.
    """
    values = []
    later = []
    for x, y in curves.values():
        for at, value in zip(x, y, strict=True):
            if value is None:
                continue
            values.append(value)
            if at >= focus_x:
                later.append(value)
    if not later or axes.get_yscale() == "log":
        return
    span = max(later) - min(values)
    if not span:
        return
    margin = 0.05 * span
    axes.set_ylim(min(values) - margin, min(max(values) + margin, max(later) + span))


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file; the extension selects the format."""
    with errors_of_writing(path), replacing(path) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        extension = path.suffix.lower()
        metadata = {GENERATORS[extension]: MARK}
        figure.savefig(draft, dpi=150, format=extension.removeprefix("."), metadata=metadata)
