"""What the figures of results show, by the texts of their SVG."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from txlcli.report import figures


def labels_of_times(path):
    """Return the labels of axes of times in an SVG figure, whose texts matplotlib writes as comments."""
    return re.findall(r"<!-- (ms per token.*?) -->", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("trusted", "ending"), [(True, ""), (False, ", busy machine")])
def test_the_axis_of_times_says_that_the_machine_was_busy(tmp_path, trusted, ending):
    times = {"vanilla_ms_per_token": 7.0, "one_lane_ms_per_token": 0.5, "slowdown": 14.0, "times_trusted": trusted}
    row = SimpleNamespace(in_windows=False, attn_len=None, mem_len=13, measures={"bpc": 2.5}, **times)
    scoring = SimpleNamespace(opened=SimpleNamespace(name="a", metric="bpc"), text=SimpleNamespace(title="t"))
    figures.plot_evaluation(tmp_path / "f.svg", SimpleNamespace(scoring=scoring, rows=[row]))
    assert labels_of_times(tmp_path / "f.svg") == ["ms per token, batch size 1" + ending]
    names = ("xl", "xl_single", "vanilla", "vanilla_batched")
    row = SimpleNamespace(attn_len=13, times_trusted=trusted, **{f"{name}_ms_per_token": 3.5 for name in names})
    figures.plot_times(tmp_path / "s.svg", SimpleNamespace(model="m", slowdown=[row]))
    assert labels_of_times(tmp_path / "s.svg") == ["ms per token" + ending]


def test_the_curves_of_a_run_without_a_validation_are_its_training_alone(tmp_path):
    reports = [{"step": 11, "loss_nats": 2.5}]
    settings = SimpleNamespace(corpus=SimpleNamespace(store="s"))
    run = SimpleNamespace(name="a", subject=Path("runs/a"), metric="bpc", settings=settings)
    past = SimpleNamespace(run=run, reports=reports, reports_of={"train": reports, "valid": []}.get)
    figures.plot_curves(tmp_path / "f.svg", [past])
    svg = (tmp_path / "f.svg").read_text(encoding="utf-8")
    assert "valid" not in svg
    assert svg.count('style="fill: #1f77b4;') == 1  # the only point has a marker
