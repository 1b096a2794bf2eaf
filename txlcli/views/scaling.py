"""Shows the forecast of a training on several GPUs, and the table of a recipe on 1 to 512 of them."""

from typing import Any

from txlcli import console
from txlcli.system.memory import format_size
from txlcli.views.training import duration, format_rate
from txlcli.workflows.training import plan as plans

PURPOSES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "buckets": "buckets",
    "gathered": "gathered weights",
    "optimizer": "optimizer state",
    "average": "averaged weights",
    "memory": "memory (recurrence)",
    "activations": "activations",
    "logits": "logits",
    "total": "total",
}


def show_devices(forecast: dict[str, Any]) -> None:
    """Print the plan of a training on several GPUs as one line, and its cost on each as a table."""
    console.show_line(f"would train {plans.in_words(forecast)}")
    sizes, is_one = forecast["device_bytes"], forecast["devices"] == 1
    rows = [["batch of each GPU", f"{forecast['batch_size_per_device']:,}"]]
    rows += [[f"memory of each GPU, {PURPOSES[part]}", format_size(size)] for part, size in sizes.items() if size]
    if not is_one:
        if forecast["parallel"] != "fsdp":
            rows.append(["DistributedDataParallel's buckets", f"{forecast['buckets']:,}"])
        sent = "gradients" if forecast["parallel"] == "ddp" else "weights and gradients"
        rows.append([f"{sent} sent per GPU and step", format_size(forecast["exchanged_bytes"])])
    rows.append(["operations per token", f"{forecast['training_flops_per_token'] / 1e9:,.3f} GFLOP"])
    if forecast["seconds"] is not None:
        rows.append(["tokens/s expected", format_rate(forecast["tokens_per_s"])])
        rows.append([f"time of {forecast['steps']:,} steps", duration(forecast["seconds"])])
    if forecast["fits"] is not None:
        rows.append([f"fits {format_size(forecast['device_memory_bytes'])}", _fit(forecast)])
    console.show_table("", ("", ""), rows, _notes(forecast))


def show_scale(scale: dict[str, Any]) -> None:
    """Print the cost of a recipe on different numbers of GPUs as a table."""
    rows = scale["by_devices"]
    parts = [part for part in PURPOSES if any(row["device_bytes"][part] for row in rows)]
    headings = ["GPUs", "batch of each", *(PURPOSES[part] for part in parts), "sent per step"]
    is_timed, is_checked = rows[0]["seconds"] is not None, rows[0]["fits"] is not None
    headings += ["tokens/s", "days"] if is_timed else []
    headings += ["fits"] if is_checked else []
    lines = []
    for row in rows:
        line = [f"{row['devices']}", f"{row['batch_size_per_device']:,}"]
        line += [format_size(row["device_bytes"][part]) for part in parts]
        line.append(format_size(row["exchanged_bytes"]))
        line += [format_rate(row["tokens_per_s"]), f"{row['seconds'] / 86_400:,.2f}"] if is_timed else []
        lines.append([*line, *([_fit(row)] if is_checked else [])])
    title = (
        f"{scale['recipe']}: {scale['parameters']:,} parameters, batches of {scale['batch_size']}, "
        f"{scale['steps']:,} steps, {scale['precision']}; memory of each GPU"
    )
    console.show_table(title, headings, lines, _notes(scale))


def _fit(row: dict[str, Any]) -> str:
    if row["fits"]:
        return "yes"
    if row["would_fit"] is None:
        return "no"
    return f"no; with {row['would_fit']}: {format_size(row['would_fit_bytes'])}"


def _notes(forecast: dict[str, Any]) -> list[str]:
    notes = ["Memory: without the workspace of single operations."]
    if forecast["device_memory_bytes"] is not None:
        notes[0] += f" It fits up to {forecast['usable_share']:.0%} of {format_size(forecast['device_memory_bytes'])}."
    if forecast["device_flops_per_s"] is not None:
        speed = f"{forecast['share_of_peak']:.0%} of {forecast['device_flops_per_s'] / 1e12:,.4g} TFLOP/s"
        exchange = (
            "exchange during the backward pass, but for the embedding's gradients"
            if forecast["bandwidth_bytes_per_s"]
            else "without the gradient exchange; add --bandwidth"
        )
        notes.append(f"Time: at {speed}, {exchange}.")
    return notes
