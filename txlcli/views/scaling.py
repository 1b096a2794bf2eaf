"""Shows the forecast of a training run on several GPUs, and the table of a recipe on 1 to 512 of them."""

from txlcli import console
from txlcli.system.memory import format_size
from txlcli.views.training import duration, format_rate
from txlcli.workflows.training import plan as plans
from txlcli.workflows.training.scaling import DeviceCost, DevicesForecast

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


def show_devices(forecast: DevicesForecast) -> None:
    """Print the plan of a training run on several GPUs as one line, and its cost on each as a table."""
    plan, (cost,) = forecast.subject, forecast.by_devices
    console.show_line(f"would train {plans.in_words(plan)}")
    rows = [["batch of each GPU", f"{cost.batch_size_per_device:,}"]]
    rows += [
        [f"memory of each GPU, {PURPOSES[part]}", format_size(size)] for part, size in cost.device_bytes.items() if size
    ]
    if cost.devices > 1:
        if forecast.parallel != "fsdp":
            rows.append(["DistributedDataParallel's buckets", f"{forecast.buckets:,}"])
        sent = "gradients" if forecast.parallel == "ddp" else "weights and gradients"
        rows.append([f"{sent} sent per GPU and step", format_size(cost.exchanged_bytes)])
    rows.append(["operations per token", f"{forecast.training_flops_per_token / 1e9:,.3f} GFLOP"])
    if cost.tokens_per_s is not None and cost.seconds is not None:
        rows.append(["tokens/s expected", format_rate(cost.tokens_per_s)])
        rows.append([f"time of {plan['steps']:,} steps", duration(cost.seconds)])
    if forecast.device_memory_bytes is not None:
        rows.append([f"fits {format_size(forecast.device_memory_bytes)}", _fit(cost)])
    console.show_table("", ("", ""), rows, _notes(forecast))


def show_scale(scale: DevicesForecast) -> None:
    """Print the cost of a recipe on different numbers of GPUs as a table."""
    rows, recipe = scale.by_devices, scale.subject
    parts = [part for part in PURPOSES if any(row.device_bytes[part] for row in rows)]
    headings = ["GPUs", "batch of each", *(PURPOSES[part] for part in parts), "sent per step"]
    headings += ["tokens/s", "days"] if scale.device_flops_per_s else []
    headings += ["fits"] if scale.device_memory_bytes else []
    lines = []
    for row in rows:
        line = [f"{row.devices}", f"{row.batch_size_per_device:,}"]
        line += [format_size(row.device_bytes[part]) for part in parts]
        line.append(format_size(row.exchanged_bytes))
        if row.tokens_per_s is not None and row.seconds is not None:
            line += [format_rate(row.tokens_per_s), f"{row.seconds / 86_400:,.2f}"]
        lines.append([*line, *([_fit(row)] if row.fits is not None else [])])
    title = (
        f"{recipe['recipe']}: {recipe['parameters']:,} parameters, batches of {recipe['batch_size']}, "
        f"{recipe['steps']:,} steps, {recipe['precision']}; memory of each GPU"
    )
    console.show_table(title, headings, lines, _notes(scale))


def _fit(cost: DeviceCost) -> str:
    if cost.fits:
        return "yes"
    if cost.would_fit is None or cost.would_fit_bytes is None:
        return "no"
    return f"no; with {cost.would_fit}: {format_size(cost.would_fit_bytes)}"


def _notes(forecast: DevicesForecast) -> list[str]:
    notes = ["Memory: without the workspace of single operations."]
    if forecast.device_memory_bytes is not None:
        notes[0] += f" It fits up to {forecast.usable_share:.0%} of {format_size(forecast.device_memory_bytes)}."
    if forecast.device_flops_per_s is not None:
        speed = f"{forecast.share_of_peak:.0%} of {forecast.device_flops_per_s / 1e12:,.4g} TFLOP/s"
        exchange = (
            "exchange during the backward pass, but for the embedding's gradients"
            if forecast.bandwidth_bytes_per_s
            else "without the gradient exchange; add --bandwidth"
        )
        notes.append(f"Time: at {speed}, {exchange}.")
    return notes
