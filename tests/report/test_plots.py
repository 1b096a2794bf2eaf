"""Figures are written in the format of the extension."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from txlcli.errors import TxlError, UsageError
from txlcli.report import plots
from txlcli.system.escapes import on_one_line
from txlcli.workflows.options import FIGURE_FORMATS, PlotOptions

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def draw(path, **changed):
    curves = {
        "Transformer-XL": ([160, 640, 1600], [24.2, 23.4, 23.1]),
        "vanilla": ([160, 320, 640], [30.0, None, 29.0]),
    }
    plots.plot_panels(path, {"ppl": curves}, x_label="attention length", title="wt103 valid", **changed)


@pytest.mark.parametrize("ending", [*FIGURE_FORMATS, ".PNG"])
def test_the_extension_selects_the_format(tmp_path, ending):
    path = tmp_path / f"curve{ending}"
    assert PlotOptions(plot=path).plot == path
    draw(path)
    assert path.read_bytes().startswith(MAGIC[ending.lower()])


def marks_in(path):
    """Return the names in an SVG file, and the number of markers of each line."""
    root = ElementTree.parse(path).getroot()
    groups = [(group.get("id", ""), group) for group in root.iter("{http://www.w3.org/2000/svg}g")]
    marks = [len(list(group.iter("{http://www.w3.org/2000/svg}use"))) for name, group in groups if "line2d_" in name]
    return [name for name, _ in groups], marks


def test_every_point_of_every_curve_is_in_the_figure_and_a_missing_value_is_a_gap(tmp_path):
    draw(tmp_path / "curve.svg")
    names, marks = marks_in(tmp_path / "curve.svg")
    assert "legend_1" in names
    assert {3, 2} <= set(marks)
    draw(tmp_path / "curve.svg", styles={"vanilla": {"marker": ""}})
    _, marks = marks_in(tmp_path / "curve.svg")
    assert 3 in marks
    assert 2 not in marks


def test_the_curves_of_a_panel_differ_in_their_markers(tmp_path):
    draw(tmp_path / "curve.svg")
    points = re.findall(r'<use xlink:href="#(\w+)"[^>]*fill: #(\w+);', (tmp_path / "curve.svg").read_text())
    assert sorted(dict(points).values()) == ["1f77b4", "ff7f0e"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        *((name, "use the extension") for name in ("curve.txt", "curve")),
        ("nowhere/curve.png", "the folder nowhere is missing"),
    ],
)
def test_a_path_that_no_figure_can_be_written_to_is_rejected(path, message):
    with pytest.raises(UsageError, match=message):
        PlotOptions(plot=Path(path))


def test_a_figure_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "curve.png").mkdir()
    with pytest.raises(TxlError, match="cannot be written"):
        draw(tmp_path / "curve.png")


@pytest.mark.parametrize("name", ["a$\\bad$", "$x", "$\\frac{$", "two\nlines", "\x1b[31m", "語"])
def test_names_are_no_formulas(tmp_path, name, recwarn):
    curves = {name: ([1], [2]), "b": ([1], [2])}
    plots.plot_panels(tmp_path / "c.svg", {"y": curves}, x_label="x", title=name)
    assert f"<!-- {on_one_line(name)} -->" in (tmp_path / "c.svg").read_text()
    assert not recwarn.list


def test_a_high_start_does_not_take_half_of_a_figure():
    axes = plots.new_figure(5, 5).subplots()
    curves = {"a": ([1, 2, 3], [100.0, 2.0, 1.0]), "b": ([2, 3], [None, 1.5])}
    for x, y in curves.values():
        axes.plot(x, np.array(y, dtype=float))
    whole = axes.get_ylim()
    plots.limit_y(axes, curves, 4)
    assert axes.get_ylim() == whole
    plots.limit_y(axes, curves, 2)
    assert axes.get_ylim() == pytest.approx((0.95, 3))


def test_equal_values_keep_the_limits_of_the_whole(recwarn):
    axes = plots.new_figure(5, 5).subplots()
    axes.plot([1, 2, 3], [9.0, 2.0, 2.0])
    whole = axes.get_ylim()
    plots.limit_y(axes, {"run": ([1, 2, 3], [9.0, 2.0, 2.0])}, 2)
    assert axes.get_ylim() == whole
    assert not recwarn.list
