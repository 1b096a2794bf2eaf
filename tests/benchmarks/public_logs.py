"""What the public logs in `curves/` say, and our numbers next to them."""

import csv
from pathlib import Path

CURVES = Path(__file__).with_name("curves")
WIDENED = 0.02
"""Share by which the band of the logs is widened for a perplexity."""


def read_logs(name):
    """Return what the logs say at each step or epoch: {step: {log: value}}."""
    with (CURVES / f"{name}.tsv").open() as file:
        rows = list(csv.reader(file, delimiter="\t"))
    logs = rows[0][1:]
    return {int(row[0]): dict(zip(logs, map(float, row[1:]), strict=True)) for row in rows[1:]}


def beside(ours, logs, *, widened=0.0):
    """Return one row for each step or epoch that both have: our value, theirs, the band, and if ours is in it."""
    rows = []
    for at, value in ours.items():
        if at not in logs:
            continue
        low = min(logs[at].values()) * (1 - widened)
        high = max(logs[at].values()) * (1 + widened)
        rows.append({"at": at, "ours": value, "logs": logs[at], "band": [low, high], "inside": low <= value <= high})
    return rows


def read_losses(name):
    """Return the mean training losses of the logs, as read_logs does; nothing if they have none.

    The first one is corrected: the script adds up 201 steps there, and divides by 200.
    """
    if not (CURVES / f"{name}_losses.tsv").exists():
        return {}
    losses = read_logs(f"{name}_losses")
    first = min(losses)
    losses[first] = {log: loss * first / (first + 1) for log, loss in losses[first].items()}
    return losses
