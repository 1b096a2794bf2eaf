"""Shows what `txl eval` found: the JSON object, the table, the curve."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.config.encodings import scores_distances
from txlcli.config.model_settings import TransformerSettings
from txlcli.paper import metrics
from txlcli.workflows.evaluation.memory import SLOWDOWN_WINDOWS
from txlcli.workflows.evaluation.texts import ScoredText

if TYPE_CHECKING:
    from txlcli.config.settings import EvalSettings
    from txlcli.runs.loading import OpenRun

LONG_ENOUGH = 10
"""Times the memory: in shorter lanes what is missing at their start moves the result."""


def as_result(
    opened: "OpenRun",
    source: ScoredText,
    reading: "EvalSettings",
    rows: list[dict[str, Any]],
    search: dict[str, Any] | None = None,
    *,
    complete: bool = True,
) -> dict[str, Any]:
    """The object that --json prints, and that the table is made of."""
    model = opened.run.settings.model
    attends = not model.recurrent_state
    in_segments = not any("stride" in row for row in rows)  # else in windows, each of its own length
    return {
        "run": str(opened.run.folder),
        "step": opened.checkpoint.state["step"],
        "text": source.title,
        "unit": source.unit,
        "metric": opened.run.metric,
        "conventions": source.conventions,
        "split_sha256": source.digest,
        "may_be_learned": source.may_be_learned,
        "seg_len": reading.seg_len if in_segments else None,
        "batch_size": reading.batch_size,
        "position": model.position if isinstance(model, TransformerSettings) else None,
        "max_distance": reading.max_distance if attends else None,
        "same_length": reading.same_length if attends and in_segments else None,
        "precision": opened.precision,
        "attention": opened.model.attention_kind if attends else None,
        "slowdown_windows": SLOWDOWN_WINDOWS,
        "paper": source.paper,
        "search": search,
        "complete": complete,
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    """Write the table to stdout."""
    rows = result["rows"]
    names = metrics.wanted_measures(result["unit"], rows[0])
    columns = [_first_column(rows[0]), "attention", *(metrics.METRIC_TITLES[name] for name in names)]
    timed = _timed(result)
    columns += ["ms/token", *(["one lane", "vanilla", "slowdown"] if timed else [])]
    lines = []
    for row in rows:
        cost = ["-", "-", "-"] if timed else []
        if row["slowdown"] is not None:
            cost = [
                f"{row['one_lane_ms_per_token']:.3f}",
                f"{row['vanilla_ms_per_token']:.2f}",
                metrics.format_ratio(row["slowdown"]),
            ]
        lines.append(
            [
                f"{_name(row)} *" if row["best"] and len(rows) > 1 else _name(row),
                _attention(row["attn_len_min"], row["attn_len_max"]),
                *(metrics.format_measure(row[name]) for name in names),
                f"{row['ms_per_token']:.3f}",
                *cost,
            ]
        )
    title = f"{result['run']} on {result['text']}, {rows[0]['tokens']:,} tokens scored"
    console.show_table(title, columns, lines, caption=_caption(result))


def _first_column(row: dict[str, Any]) -> str:
    """What rows are told from each other by."""
    if "method" in row:
        return "method"
    return "N" if "stride" in row else "M"


def _name(row: dict[str, Any]) -> str:
    """How a row is told from others: by its method, the window's N, or else M, which a state has none of."""
    if "method" in row:
        return str(row["method"])
    if "stride" in row:
        return str(row["attn_len"])
    return "-" if row["attn_len_max"] is None else str(row["mem_len"])


def _attention(fewest: int | None, most: int | None) -> str:
    if most is None:
        return "state"
    return f"{most}" if fewest == most else f"{fewest}-{most}"


def how_read(result: dict[str, Any]) -> str:
    """The conventions of a reading, in a sentence."""
    first, precision = result["rows"][0], result["precision"]
    far = f"max_distance = {result['max_distance'] or 'none'}, " if scores_distances(result["position"]) else ""
    if "stride" in first:
        stride = first["stride"]
        how = "one prediction per window" if stride == 1 else f"the last {stride} predictions of each window"
        return f"Without memory: windows of the text computed anew, {how}, {far}{precision}."
    if first["attn_len_max"] is None:
        return f"A state is carried along the text. L = {result['seg_len']}, {precision}; {_lanes(result)}"
    mem_len = f"M = {first['mem_len']}, " if "method" in first else ""
    how = f"{mem_len}L = {result['seg_len']}, same_length = {result['same_length']}"
    return f"{how}, {far}{precision}; {_lanes(result)}"


def _caption(result: dict[str, Any]) -> str:
    star = "* best. " if len(result["rows"]) > 1 else ""
    said = [f"{star}{how_read(result)}", *_adaptations(result)]
    if not result["complete"]:
        said.append("It ended before the last row.")
    if _timed(result):
        said += _of_slowdown(result)
    if any(_in_short_lanes(row) for row in result["rows"]):
        said.append("The lanes are short beside M: --batch-size 1 gives every token all of its context.")
    if any(_overlong(row) for row in result["rows"]):
        windows = "stride" in result["rows"][0]
        ending = "." if windows else ", and no slowdown is timed."
        length = "N" if windows else "M"
        said.append(f"{length} is longer than the text in some rows: no query sees as many tokens of it{ending}")
    return "\n".join([*said, *_context_of(result)])


def _overlong(row: dict[str, Any]) -> bool:
    """Whether more tokens are asked for, by a memory or a window, than the text has."""
    if "stride" in row:
        return bool(row["attn_len"] > row["tokens"])
    return row["attn_len_max"] is not None and row["mem_len"] > row["tokens"]


def _in_short_lanes(row: dict[str, Any]) -> bool:
    return "stride" not in row and row["lanes"] > 1 and row["tokens"] < LONG_ENOUGH * row["mem_len"] * row["lanes"]


def _timed(result: dict[str, Any]) -> bool:
    """Whether the slowdown of any row is known."""
    return any(row["slowdown"] is not None for row in result["rows"])


def _of_slowdown(result: dict[str, Any]) -> list[str]:
    return [
        "vanilla: ms/token of the same weights without memory, each window computed anew, one at a time (median of "
        f"{result['slowdown_windows']} windows);",
        "one lane: ms/token with memory, one lane; slowdown: vanilla / one lane, as in Table 9.",
    ]


def _lanes(result: dict[str, Any]) -> str:
    lanes = result["rows"][0]["lanes"]
    return f"{lanes} lanes, of which {lanes - 1} start without context." if lanes > 1 else "one lane."


def _adaptations(result: dict[str, Any]) -> list[str]:
    """What a search on valid found for each way of adapting."""
    said = []
    for row in result["rows"]:
        if row.get("adaptation"):
            found = ", ".join(f"{key} = {value:g}" for key, value in row["adaptation"].items() if key != "searched_on")
            said.append(f"{row['method']}: {found}, searched on {row['adaptation']['searched_on']:,} tokens of valid.")
    return said


def _context_of(result: dict[str, Any]) -> list[str]:
    """What the numbers are to be compared with."""
    said = [f"{key}: {value}" for key, value in result["conventions"].items()]
    if result["search"] is not None:
        said.insert(0, _of_search(result["search"]))
    if result["paper"] is not None:
        said.insert(0, f"The paper's result for this recipe: {result['paper']} {result['metric']}.")
    return said


def _of_search(search: dict[str, Any]) -> str:
    tried = [one["length"] for one in search["tried"]]
    ending = "" if search["gains_ended"] else f"; {max(tried)}, the longest that could be tried, still gained"
    return (
        f"{search['option']} {search['found']} is the shortest of {len(tried)} lengths up to {max(tried)} whose "
        f"perplexity on {search['split']} no longer one lowers by {search['threshold']:.1%}{ending}."
    )


def plot_curve(path: Path, result: dict[str, Any]) -> None:
    """Draw the metric over the lengths that were asked for: of the memory, or of windows."""
    from txlcli.views import plots

    metric = metrics.wanted_measures(result["unit"], result["rows"][0])[0]
    windows = "stride" in result["rows"][0]
    length = "attn_len" if windows else "mem_len"
    ordered: Sequence[dict[str, Any]] = sorted(result["rows"], key=lambda row: row[length])
    curve = ([row[length] for row in ordered], [row[metric] for row in ordered])
    plots.draw_curves(
        path,
        {Path(result["run"]).name: curve},
        x_label="attention length (tokens)" if windows else "memory length M (tokens)",
        y_label=metrics.METRIC_TITLES[metric],
        title=result["text"],
    )
    console.say(f"drawn to {path}")
