"""Tables of the result of a training run, and of its forecast, on this machine or on other GPUs."""

from collections.abc import Sequence

from txlcli import console
from txlcli.core.measures.profiling import StepProfile
from txlcli.paper import metrics
from txlcli.system.memory import format_size
from txlcli.workflows.training.execution import TrainingResult
from txlcli.workflows.training.forecast import BackendForecast, TrainingForecast
from txlcli.workflows.training.scaling import DeviceCost, DevicesForecast

UNITS = (("years", 365 * 86_400.0), ("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))

MAX_KERNELS, MAX_NAME = 20, 60
"""Kernels of a profile to list, and characters of their names."""
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


def show_forecast(forecast: TrainingForecast) -> None:
    """Print the plan of a training run as one line and its cost as a table."""
    plan = forecast.plan
    console.show_line(f"would train {plan}")
    memory = "memory of a step" if plan.processes == 1 else "memory of a process"
    extent = "the whole recipe" if plan.steps == plan.max_steps else f"{plan.steps:,} steps"
    parts, sizes, published = forecast.parameters_by_part, forecast.step_bytes.to_json(), forecast.published
    rows = [
        *([f"parameters, {part}", f"{count:,}"] for part, count in parts.items() if count),
        ["parameters", f"{plan.parameters:,}"],
        *([f"{memory}, {purpose}", format_size(size)] for purpose, size in sizes.items() if size),
        ["memory of the host, copy for saving", format_size(forecast.snapshot_bytes)],
        ["operations per token", f"{forecast.training_flops_per_token / 1e9:,.3f} GFLOP"],
        [f"operations of {extent}", f"{forecast.training_flops:.3g} FLOP"],
        ["tokens/s expected", format_rate(forecast.tokens_per_s)],
        [f"time of {extent}", duration(forecast.seconds)],
        *([f"the paper's {split} result", f"{published[split]}"] for split in ("valid", "test") if split in published),
    ]
    console.show_table("", ("", ""), rows, _notes(forecast))
    if forecast.by_attention:
        _show_backends(forecast.by_attention)


def _show_backends(rows: Sequence[BackendForecast]) -> None:
    """Print the memory of a step with each attention backend."""
    lines = [
        [
            f"{row.attention}, train.recompute={str(row.recompute).lower()}",
            row.device,
            format_size(row.step_bytes),
            "refused" if row.refused else "",
        ]
        for row in rows
    ]
    refused = [f"{row.attention}: {row.refused}" for row in rows if row.refused and not row.recompute]
    notes = [console.with_flags(f"refused: {'; '.join(refused)}.")] if refused else []
    console.show_table("by attention backend", ("--attention", "counted for", "memory of a step", "here"), lines, notes)


def format_rate(tokens_per_s: float) -> str:
    """Return a rate without decimals, or with two significant digits if it is small."""
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.2g}"


def _notes(forecast: TrainingForecast) -> list[str]:
    peak = f"{forecast.peak_flops_per_s / 1e9:,.0f} GFLOP/s"
    source = f", as for {forecast.share_source}" if forecast.share_source else " measured just now"
    timed = ", as in training steps timed just now" if forecast.step_was_timed else source
    return [
        f"Expected on an idle machine: {_percent(forecast.share_of_peak)} of the {peak} of a matrix product{timed}. "
        "Memory: without the libraries and, on a GPU, the workspace of single operations.",
        *([f"Share of tokens in each tail band: from {forecast.tails_by}."] if forecast.tails else []),
    ]


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def duration(seconds: float) -> str:
    """Return a time span in a suitable unit."""
    for unit, length in UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} seconds"


def show_devices(forecast: DevicesForecast) -> None:
    """Print the cost of a training run or of a recipe on different numbers of GPUs as a table."""
    if forecast.is_plan:
        console.show_line(f"would train {forecast.title}")
    rows = forecast.by_devices
    parts = [part for part in PURPOSES if part != "total" and any(row.device_bytes[part] for row in rows)]
    headings = ["GPUs", "batch of each"]  # then what decides, since a narrow terminal lacks the last columns
    headings += ["tokens/s", "days"] if forecast.device_flops_per_s else []
    headings += ["fits"] if forecast.device_memory_bytes else []
    headings += ["total memory", "sent per step", *(PURPOSES[part] for part in parts)]
    lines = []
    for row in rows:
        line = [f"{row.devices}", f"{row.batch_size_per_device:,}"]
        if row.tokens_per_s is not None and row.seconds is not None:
            line += [format_rate(row.tokens_per_s), f"{row.seconds / 86_400:,.2f}"]
        line += [_fit(row)] if row.fits is not None else []
        line += [format_size(row.device_bytes["total"]), format_size(row.exchanged_bytes)]
        lines.append([*line, *(format_size(row.device_bytes[part]) for part in parts)])
    title = "" if forecast.is_plan else forecast.title
    console.show_table(title, headings, lines, _notes_on_gpus(forecast))


def _fit(cost: DeviceCost) -> str:
    if cost.fits:
        return "yes"
    if cost.would_fit is None or cost.would_fit_bytes is None:
        return "no"
    return f"no; with {cost.would_fit}: {format_size(cost.would_fit_bytes)}"


def _notes_on_gpus(forecast: DevicesForecast) -> list[str]:
    notes = ["Memory: without the workspace of single operations."]
    if forecast.device_memory_bytes is not None:
        notes[0] += f" It fits up to {forecast.usable_share:.0%} of {format_size(forecast.device_memory_bytes)}."
    if forecast.device_flops_per_s is not None:
        sources = {row.share_source: _percent(row.share_of_peak) for row in forecast.by_devices}
        shares = " or ".join(f"{share} (as for {source})" for source, share in sources.items())
        speed = f"{shares} of {forecast.device_flops_per_s / 1e12:,.4g} TFLOP/s"
        exchange = (
            "exchange during the backward pass, but for the embedding's gradients"
            if forecast.bandwidth_bytes_per_s
            else "without the gradient exchange; add --bandwidth"
        )
        notes.append(f"Time: at {speed}, {exchange}.")
    return notes


def show_result(result: TrainingResult) -> None:
    """Print steps, best validation and next command of a training run as a table."""
    run = result.run
    best = metrics.format_measure(metrics.in_metric(result.best_nats, run.metric))
    rows = [
        ["run", str(run.directory)],
        ["steps", f"{result.step:,} of {run.settings.train.max_steps:,}"],
        ["epochs", f"{result.epoch:.2f}"],
        [f"best valid {run.metric}", best if result.best_nats < float("inf") else "-"],
        *([["of the GPU's peak", _percent(result.mfu)]] if result.mfu is not None else []),
        ["next", result.next_command],
    ]
    console.show_table(f"{run.name}: {run.parameters:,} parameters", ("", ""), rows)
    if result.profile is not None:
        _show_profile(result.profile)


def _show_profile(profile: StepProfile) -> None:
    """Print the kernels that take the most time in a step as a table."""
    rows = [
        [kernel.name[:MAX_NAME], f"{kernel.calls_per_step:,.1f}", f"{kernel.ms_per_step:,.3f}", f"{kernel.share:.1%}"]
        for kernel in profile.kernels[:MAX_KERNELS]
    ]
    steps = f"steps {profile.first_step:,} to {profile.first_step + profile.steps - 1:,}"
    all_kernels = f"{profile.calls_per_step:,.0f} kernels a step, {profile.ms_per_step:,.2f} ms"
    notes = [f"All: {all_kernels}. Trace: {profile.trace}; open it at https://ui.perfetto.dev."]
    console.show_table(f"kernels of {steps}", ("kernel", "calls a step", "ms a step", "share"), rows, notes)
