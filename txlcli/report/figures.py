"""The figure of each result: RECL, times, probes, evaluations, curves of training."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlcli.errors import RunError, UsageError
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.runs.history import History

if TYPE_CHECKING:
    from txlcli.workflows.evaluation.result import EvalResult
    from txlcli.workflows.evaluation.rows import EvalRow
    from txlcli.workflows.probe import ProbeResult
    from txlcli.workflows.recl import ReclResult
    from txlcli.workflows.speed import SlowdownRow, SpeedResult

TIME = "ms per token"
STYLES: dict[str, dict[str, Any]] = {
    "train": {"marker": "", "linewidth": 1.0, "alpha": 0.45},
    "valid": {"markersize": 4.0},
}
"""Curves of a run by split."""
START = 0.2
"""Share of the steps whose losses may lie above a figure: a loss falls from log V at once."""


def plot_evaluation(path: Path, result: "EvalResult") -> None:
    """Plot the metric over the memory length or the window length, and times per token that were compared."""
    from txlcli.report import plots

    opened = result.scoring.opened
    in_windows = result.rows[0].in_windows
    rows = sorted(result.rows, key=lambda row: row.attn_len or row.mem_len)
    lengths = [row.attn_len or row.mem_len for row in rows]
    losses = [row.measures[opened.metric] for row in rows]
    loss_curve: plots.Curves = {opened.name: (lengths, losses)}
    panels = {metrics.METRIC_TITLES[opened.metric]: loss_curve}
    timed = [row for row in rows if row.slowdown is not None]
    time_label = _time_label(f"{TIME}, batch size 1", timed)
    if timed:
        mem_lens = [row.mem_len for row in timed]
        panels[time_label] = {
            "recomputed": (mem_lens, [row.vanilla_ms_per_token for row in timed]),
            "with memory": (mem_lens, [row.one_lane_ms_per_token for row in timed]),
        }
    x_label = "attention length (tokens)" if in_windows else "memory length M (tokens)"
    plots.plot_panels(path, panels, x_label=x_label, title=result.scoring.text.title, log_y=[time_label])


def _time_label(label: str, rows: Iterable["EvalRow | SlowdownRow"]) -> str:
    """Return the label of an axis of times, which says if other programs used the processors."""
    return label if all(row.times_trusted for row in rows) else f"{label}, busy machine"


def plot_gains(path: Path, result: "ReclResult") -> None:
    """Plot the unnormalized gain of perplexity at each context length, for the first r (Figure 3)."""
    from txlcli.report import plots

    curves: dict[str, plots.Curve] = {}
    for name, model in result.models_by_name.items():
        gains = model.recl[0].gains
        curves[name] = ([gain.from_tokens for gain in gains], [gain.ppl_gain for gain in gains])
    y_label = f"perplexity gained by {result.step_tokens:,} more tokens"
    title = f"{result.text}, r = {result.models[0].recl[0].top_r:g}"
    plots.plot_panels(path, {y_label: curves}, x_label="context length (tokens)", title=title)


def plot_perplexities(path: Path, result: "ReclResult") -> None:
    """Plot the perplexity of all positions at each context length, without the baseline of the group (Figure 4)."""
    from txlcli.report import plots

    curves = {name: (result.context_tokens, model.ppl) for name, model in result.models_by_name.items()}
    y_label = f"perplexity per {result.unit}"
    plots.plot_panels(path, {y_label: curves}, x_label="context length (tokens)", title=result.text)


def plot_times(path: Path, result: "SpeedResult") -> None:
    """Plot the times per token over the attention length."""
    from txlcli.report import plots

    rows = sorted(result.slowdown, key=lambda row: row.attn_len)
    lengths = [row.attn_len for row in rows]
    curves = {
        "Transformer-XL": (lengths, [row.xl_ms_per_token for row in rows]),
        "Transformer-XL, one token at a time": (lengths, [row.xl_single_ms_per_token for row in rows]),
        "vanilla": (lengths, [row.vanilla_ms_per_token for row in rows]),
        "vanilla, batched": (lengths, [row.vanilla_batched_ms_per_token for row in rows]),
    }
    y_label = _time_label(TIME, rows)
    panels = {y_label: curves}
    plots.plot_panels(path, panels, x_label="attention length (tokens)", title=result.model, log_y=[y_label])


def plot_probes(path: Path, result: "ProbeResult") -> None:
    """Plot the bits that repetitions save, and the losses of words, over the distance."""
    from txlcli.report import plots

    rows = {row.distance: row for row in result.rows if isinstance(row.distance, int)}

    def curve(losses_nats: Iterable[float | None]) -> tuple[list[float], list[float | None]]:
        return list(rows), [None if loss is None else metrics.bits(loss) for loss in losses_nats]

    saved = {
        "copy": curve(row.copy_saved_nats for row in rows.values()),
        "recall": curve(row.recall_saved_nats for row in rows.values()),
    }
    scoring = result.scoring
    word_bits = {}
    if not result.has_state:
        word_bits["M = 0"] = curve(row.word_nats_without_memory for row in rows.values())
    word_bits[result.memory] = curve(row.word_nats for row in rows.values())
    plots.plot_panels(
        path,
        {"bits saved per token": saved, "bits per word": word_bits},
        x_label="distance (tokens)",
        title=f"{scoring.opened.name} on {scoring.text.title}, L = {scoring.settings.seg_len}, {result.memory}",
        log_x=True,
    )


def plot_curves(path: Path, histories: Sequence[History]) -> None:
    """Plot the losses of runs of one metric: training as thin lines, validation with markers."""
    runs = [past.run for past in histories]
    if len({run.metric for run in runs}) > 1:
        raise UsageError("`plot` needs one metric, but some of these runs have bpc, others ppl; leave one kind out")
    names = run_directory.short_names([run.subject for run in runs])
    curves = {}
    styles = {}
    for number, (name, past) in enumerate(zip(names, histories, strict=True)):
        if not past.reports:
            raise RunError(f"{past.run.directory} has no training reports to plot; give a run that has")
        for split, style in STYLES.items():
            reports = past.reports_of(split)
            if not reports:
                continue
            steps = [report["step"] for report in reports]
            losses = [metrics.in_metric(report["loss_nats"], past.run.metric) for report in reports]
            curves[f"{name}, {split}"] = (steps, losses)
            styles[f"{name}, {split}"] = {"color": f"C{number}", **style}
            if len(reports) == 1:
                styles[f"{name}, {split}"]["marker"] = "."  # a line of one point is invisible
    from txlcli.report import plots

    metric = runs[0].metric
    plots.plot_panels(
        path,
        {metrics.METRIC_TITLES[metric]: curves},
        x_label="steps",
        title=", ".join(dict.fromkeys(run.settings.corpus.store for run in runs)),
        log_y=[metrics.METRIC_TITLES["ppl"]],
        styles=styles,
        focus_x=START * max(past.reports[-1]["step"] for past in histories),
    )
