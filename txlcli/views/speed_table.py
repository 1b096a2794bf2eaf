"""Shows the result of `txl speed` as tables or curves."""

from pathlib import Path
from typing import Any

from txlcli import console
from txlcli.paper import metrics
from txlcli.workflows.speed import PERCENTILES


def show(result: dict[str, Any]) -> None:
    """Write the tables to stdout."""
    if result["slowdown"]:
        _show_slowdown(result)
    _show_throughput(result)


def _show_slowdown(result: dict[str, Any]) -> None:
    title = f"{result['model']} on {result['device']}, {result['precision']}"
    lines = [
        [
            f"{row['attn_len']:,}",
            _spread(row["xl_ms_per_token"], row["xl_low_high_ms"]),
            _spread(row["vanilla_ms_per_token"], row["vanilla_low_high_ms"]),
            metrics.format_ratio(row["slowdown"]),
            f"{row['paper_slowdown']:,}x" if row["paper_slowdown"] else "-",
        ]
        for row in result["slowdown"]
    ]
    notes = [
        f"Table 9, median (low-high) of {result['repeat']}. XL: one lane, M = attention, "
        f"L = {result['slowdown'][0]['seg_len']}.",
        "vanilla: the same weights without memory, recomputing one window per prediction.",
    ]
    console.show_table(title, ("attention", "XL ms/token", "vanilla ms/token", "slowdown", "paper"), lines, notes)
    others = [
        [
            f"{row['attn_len']:,}",
            f"{_short(row['vanilla_batched_ms_per_token'])} ({row['windows']})",
            metrics.format_ratio(row["slowdown_batched"]),
            _short(row["xl_single_ms_per_token"]),
            metrics.format_ratio(row["slowdown_single"]),
        ]
        for row in result["slowdown"]
    ]
    headings = ("attention", "vanilla batched", "slowdown", "XL at L = 1", "slowdown")
    note = "batched: with the fastest number of windows at once (in brackets); L = 1: token by token, vs. one window."
    console.show_table("vanilla batched, and XL one token at a time, ms/token", headings, others, [note])
    rates = [
        [
            f"{row['attn_len']:,}",
            f"{row['xl_tokens_per_s']:,.0f}",
            f"{row['xl_share_of_peak']:.1%}",
            _in_mib(row["xl_peak_memory_bytes"]),
            f"{row['xl_single_tokens_per_s']:,.0f}",
        ]
        for row in result["slowdown"]
    ]
    headings = ("attention", "XL tokens/s", "of peak", "peak MiB", "tokens/s at L = 1")
    console.show_table("one lane with memory, by attention length", headings, rates)


def _show_throughput(result: dict[str, Any]) -> None:
    works = [
        [
            row["work"],
            f"{row['tokens_per_s']:,.0f}",
            _spread(row["ms_per_token"], row["low_high_ms"]),
            f"{row['share_of_peak']:.1%}",
            _in_mib(row["peak_memory_bytes"]),
        ]
        for row in result["throughput"]
    ]
    notes = [
        f"of peak: share of the {result['peak_gflops_per_s']:,.0f} GFLOP/s of a large matrix product, counting visible "
        "keys and distinct distances only.",
        "peak MiB: the whole process on a CPU, tensors on CUDA.",
    ]
    headings = ("work", "tokens/s", "ms/token", "of peak", "peak MiB")
    title = "throughput" if result["slowdown"] else f"{result['model']} on {result['device']}, {result['precision']}"
    console.show_table(title, headings, works, notes)
    latencies = [
        [
            row["work"],
            f"{row['steps_timed']:,}",
            *(_short_or_dash(row[f"latency_p{percent}_ms"]) for percent in PERCENTILES),
        ]
        for row in result["throughput"]
    ]
    note = "A step: a training step, a segment of all lanes, or a token. p99: 99 % of the steps took no longer."
    columns = ("work", "steps", *(f"p{percent}" for percent in PERCENTILES))
    console.show_table("latency, ms per step", columns, latencies, [note])


def _in_mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:,.0f}"


def _spread(median: float, ends: list[float]) -> str:
    return f"{_short(median)} ({'-'.join(_short(end, like=median) for end in ends)})"


def _short_or_dash(number: float | None) -> str:
    return "-" if number is None else _short(number)


def _short(number: float, *, like: float | None = None) -> str:
    """Format a time with digits according to its size, or to that of `like`."""
    size = number if like is None else like
    if size < 1:
        return f"{number:.3f}"
    return f"{number:.2f}" if size < 100 else f"{number:.0f}"


def plot_times(path: Path, result: dict[str, Any]) -> None:
    """Plot the times per token over the attention length."""
    from txlcli.views import plots

    rows = sorted(result["slowdown"], key=lambda row: row["attn_len"])
    x = [row["attn_len"] for row in rows]
    curves = {
        "Transformer-XL": (x, [row["xl_ms_per_token"] for row in rows]),
        "Transformer-XL, one token at a time": (x, [row["xl_single_ms_per_token"] for row in rows]),
        "vanilla": (x, [row["vanilla_ms_per_token"] for row in rows]),
        "vanilla, batched": (x, [row["vanilla_batched_ms_per_token"] for row in rows]),
    }
    plots.plot_curves(
        path, curves, x_label="attention length (tokens)", y_label="ms per token", title=result["model"], log_y=True
    )
