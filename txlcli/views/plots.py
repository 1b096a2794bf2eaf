"""Figures: curves on paper-white, as PNG, SVG or PDF."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlcli.errors import TxlError, UsageError
from txlcli.system.atomic_files import check_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
LEGEND_WIDTH = 56
"""Characters of all names beside each other in a legend that still fits under the curves."""


def check_path(path: Path, option: str = "--plot") -> None:
    """Refuse a file that cannot become a figure, before anything is computed for it.

    Args:
        path: of the figure.
        option: what named it.

    Raises:
        UsageError: unknown ending, or a folder that is not there or cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{option} {path}: the ending decides the format; use one of {', '.join(FORMATS)}")
    check_folder(path, f"{option} {path}")


def draw_curves(
    path: Path,
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    title: str,
    log_x: bool = False,
    log_y: bool = False,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Draw named curves, each (x values, y values), into a file; `styles` are matplotlib's words for a curve's line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    columns = 2 if 2 * max(map(len, curves), default=0) <= LEGEND_WIDTH else 1
    legend_rows = math.ceil(len(curves) / columns) if len(curves) > 1 else 0
    figure = Figure(figsize=(6.4, 4.2 + 0.25 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (x, y) in curves.items():
        axes.plot(x, y, **{"marker": "o", "label": name, **(styles or {}).get(name, {})})
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if legend_rows:  # below, where it hides no curve
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    save(figure, path)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure into a file; the ending decides the format.

    Raises:
        TxlError: it cannot be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise TxlError(f"{path}: the figure cannot be written ({error.strerror}); check the folder") from error
