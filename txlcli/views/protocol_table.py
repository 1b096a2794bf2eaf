"""Shows the protocols that `txl eval --protocols` compares."""

from typing import Any

from txlcli import console
from txlcli.paper import metrics
from txlcli.views.eval_table import attention_cell
from txlcli.workflows.evaluation.record import describe_settings

WINDOWS = (
    "windows: each is computed anew and predicts its last S tokens; S is N for disjoint and 1 for sliding windows."
)


def show(result: dict[str, Any], *, verbose: bool = False) -> None:
    """Write the table to stdout."""
    rows, metric = result["rows"], result["metric"]
    names = [metric, "ppl_per_word", "bits_per_byte"]
    columns = ["protocol", "attention", *(metrics.METRIC_TITLES[name] for name in names), "change", "ms/token"]
    lines = [
        [
            f"{_label(row)} *" if row["best"] and len(rows) > 1 else _label(row),
            attention_cell(row["attn_len_min"], row["attn_len_max"]),
            *(metrics.format_measure(row[name]) if name in row else "-" for name in names),
            "-" if row is rows[0] or row["change"] is None else f"{row['change']:+.1%}",
            f"{row['ms_per_token']:.3f}",
        ]
        for row in rows
    ]
    title = f"{result['run']} on {result['text']}, {rows[0]['tokens']:,} tokens scored"
    console.show_table(title, columns, lines, _notes(result), verbose=verbose)


def _label(row: dict[str, Any]) -> str:
    """Return the protocol with its lengths; a recurrent state has none."""
    if "stride" not in row:
        return "recurrence" if row["attn_len_max"] is None else f"recurrence, M = {row['mem_len']}"
    stride = f", S = {row['stride']}" if row["protocol"] == "strided" else ""
    return f"{row['protocol']}, N = {row['attn_len']}{stride}"


def _notes(result: dict[str, Any]) -> list[str]:
    """Return the notes, the most important first."""
    rows, title = result["rows"], metrics.METRIC_TITLES[result["metric"]]
    in_windows = [row for row in rows if "stride" in row]
    in_segments = [row for row in rows if "stride" not in row]
    notes = [
        f"{'* best. ' if len(rows) > 1 else ''}change: of {title}, from the first row; the same weights and tokens."
    ]
    notes += [f"no {name}: {reason}." for name, reason in result["lacking"].items()]
    if not result["complete"]:
        notes.append("Stopped before the last row.")
    if in_windows:
        notes.append(WINDOWS)
    if in_segments:
        notes.append(f"recurrence: {describe_settings({**result, 'rows': in_segments})}")
    if "ppl_per_word" not in rows[0]:
        notes.append("ppl/word: only whole texts have a known number of words.")
    if "bits_per_byte" not in rows[0]:
        notes.append("bits/byte: not every byte of this text is scored.")
    return [*notes, *(f"{key}: {value}" for key, value in result["conventions"].items())]
