"""Shows the result of `txl eval` as a table or a curve."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txlcli import console
from txlcli.paper import metrics
from txlcli.workflows.evaluation.lengths import SHORT_LANE
from txlcli.workflows.evaluation.record import describe_settings


def show(result: dict[str, Any], *, verbose: bool = False) -> None:
    """Write the table to stdout."""
    rows = result["rows"]
    names = metrics.wanted_measures(result["unit"], rows[0])
    timed = _has_slowdown(result)
    columns = [_first_column(rows[0]), "attention", *(metrics.METRIC_TITLES[name] for name in names)]
    columns += ["ms/token", *(["one lane", "vanilla", "slowdown"] if timed else [])]
    lines = [
        [
            f"{_label(row)} *" if row["best"] and len(rows) > 1 else _label(row),
            attention_cell(row["attn_len_min"], row["attn_len_max"]),
            *(metrics.format_measure(row[name]) for name in names),
            f"{row['ms_per_token']:.3f}",
            *(_slowdown_cells(row) if timed else []),
        ]
        for row in rows
    ]
    title = f"{result['run']} on {result['text']}, {rows[0]['tokens']:,} tokens scored"
    console.show_table(title, columns, lines, _notes(result), verbose=verbose)


def _slowdown_cells(row: dict[str, Any]) -> list[str]:
    if row["slowdown"] is None:
        return ["-", "-", "-"]
    return [
        f"{row['one_lane_ms_per_token']:.3f}",
        f"{row['vanilla_ms_per_token']:.2f}",
        metrics.format_ratio(row["slowdown"]),
    ]


def _first_column(row: dict[str, Any]) -> str:
    if "method" in row:
        return "method"
    return "N" if "stride" in row else "M"


def _label(row: dict[str, Any]) -> str:
    """Return the method, the window length N, or the memory length M; a recurrent state has none of them."""
    if "method" in row:
        return str(row["method"])
    if "stride" in row:
        return str(row["attn_len"])
    return "-" if row["attn_len_max"] is None else str(row["mem_len"])


def attention_cell(fewest: int | None, most: int | None) -> str:
    """Return the number of keys per query; a recurrent state has none."""
    if most is None:
        return "state"
    return f"{most}" if fewest == most else f"{fewest}-{most}"


def _notes(result: dict[str, Any]) -> list[str]:
    """Return the notes, the most important first: settings, what limits the result, how it was obtained."""
    rows = result["rows"]
    star = "* best. " if len(rows) > 1 else ""
    notes = [f"{star}{describe_settings(result)}"]
    if not result["complete"]:
        notes.append("Stopped before the last row.")
    if result["search"] is not None:
        notes.append(_describe_search(result["search"]))
    if any(_has_short_lanes(row) for row in rows):
        notes.append("The lanes are short compared with M: with --batch-size 1 every token has its full context.")
    if any(_exceeds_text(row) for row in rows):
        windows = "stride" in rows[0]
        length, ending = ("N", ".") if windows else ("M", ", and no slowdown is measured.")
        notes.append(f"{length} is longer than the text in some rows: no query sees that many tokens{ending}")
    notes += _adaptations(result)
    if result["paper"] is not None:
        notes.append(f"The paper's result for this recipe: {result['paper']} {result['metric']}.")
    if _has_slowdown(result):
        notes += [
            "one lane: ms/token with memory, one lane; slowdown: vanilla / one lane, as in Table 9.",
            "vanilla: ms/token of the same weights without memory, recomputing one window per prediction (median of "
            f"{result['slowdown_windows']} windows).",
        ]
    if result["processes"] > 1:
        alone = "; one lane and vanilla: rank 0 alone, with its own threads" if _has_slowdown(result) else ""
        notes.append(f"ms/token: {result['processes']} processes together{alone}.")
    return [*notes, *(f"{key}: {value}" for key, value in result["conventions"].items())]


def _exceeds_text(row: dict[str, Any]) -> bool:
    """True if the memory or the window is longer than the text."""
    if "stride" in row:
        return bool(row["attn_len"] > row["tokens"])
    return row["attn_len_max"] is not None and row["mem_len"] > row["tokens"]


def _has_short_lanes(row: dict[str, Any]) -> bool:
    return "stride" not in row and row["lanes"] > 1 and row["tokens"] < SHORT_LANE * row["mem_len"] * row["lanes"]


def _has_slowdown(result: dict[str, Any]) -> bool:
    """True if the slowdown of any row was measured."""
    return any(row["slowdown"] is not None for row in result["rows"])


def _adaptations(result: dict[str, Any]) -> list[str]:
    """Return the parameters of the cache and of dynamic evaluation, one line each."""
    lines = []
    for row in result["rows"]:
        if row.get("adaptation"):
            values = ", ".join(f"{key} = {value:g}" for key, value in row["adaptation"].items() if key != "searched_on")
            tokens = row["adaptation"]["searched_on"]
            lines.append(f"{row['method']}: {values}, searched on {tokens:,} tokens of valid.")
    return lines


def _describe_search(search: dict[str, Any]) -> str:
    tried = [trial["length"] for trial in search["tried"]]
    ending = "" if search["gains_ended"] else f"; {max(tried)}, the longest one tried, still lowers it"
    return (
        f"{search['option']} {search['found']} is the shortest of {len(tried)} lengths up to {max(tried)} beyond which "
        f"perplexity on {search['split']} falls by less than {search['threshold']:.1%}{ending}."
    )


def in_a_sentence(result: dict[str, Any]) -> str:
    """Return what memory gains in loss and in time, from a sweep over memory lengths that begins with 0."""
    metric = metrics.wanted_measures(result["unit"], result["rows"][0])[0]
    name = {"bpc": "bits per byte" if result["unit"] == "byte" else "bits per character"}.get(metric, "perplexity")
    without, best = result["rows"][0], next(row for row in result["rows"] if row["best"])
    change = "lowered" if best is not without else "did not lower"
    sentence = f"Memory {change} {name} from {metrics.format_measure(without[metric])} without memory"
    if best is not without:
        sentence += f" to {metrics.format_measure(best[metric])} with M = {best['mem_len']}"
    if best["slowdown"] is not None:
        times = metrics.format_ratio(best["slowdown"]).removesuffix("x")
        sentence += f"; reading with memory is {times} times as fast as recomputing"
    return f"{sentence}."


def plot_loss_and_time(path: Path, result: dict[str, Any]) -> None:
    """Plot the metric, and the time per token with and without memory, over the memory length."""
    from txlcli.commands import plots

    metric = metrics.wanted_measures(result["unit"], result["rows"][0])[0]
    rows = sorted(result["rows"], key=lambda row: row["mem_len"])
    timed = [row for row in rows if row["slowdown"] is not None]
    figure = plots.new_figure(9.6, 4.2)
    loss, time = figure.subplots(1, 2)
    loss.plot([row["mem_len"] for row in rows], [row[metric] for row in rows], marker="o")
    loss.set_ylabel(metrics.METRIC_TITLES[metric])
    for key, label in (("vanilla_ms_per_token", "recomputed"), ("one_lane_ms_per_token", "with memory")):
        time.plot([row["mem_len"] for row in timed], [row[key] for row in timed], marker="o", label=label)
    time.set_ylabel("ms per token, one batch lane")
    if timed:
        time.set_yscale("log")
        time.legend(frameon=False)
    for axes in (loss, time):
        axes.set_xlabel("memory length M (tokens)")
        axes.grid(alpha=0.3)
    figure.suptitle(plots.literal(result["text"]))
    plots.save(figure, path)


def plot_curve(path: Path, result: dict[str, Any]) -> None:
    """Plot the metric over the memory length, or over the window length."""
    from txlcli.commands import plots

    metric = metrics.wanted_measures(result["unit"], result["rows"][0])[0]
    windows = "stride" in result["rows"][0]
    length = "attn_len" if windows else "mem_len"
    ordered: Sequence[dict[str, Any]] = sorted(result["rows"], key=lambda row: row[length])
    curve = ([row[length] for row in ordered], [row[metric] for row in ordered])
    plots.plot_curves(
        path,
        {Path(result["run"]).name: curve},
        x_label="attention length (tokens)" if windows else "memory length M (tokens)",
        y_label=metrics.METRIC_TITLES[metric],
        title=result["text"],
    )
