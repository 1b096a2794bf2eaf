"""Tables of the result of a training run, and of its forecast, on this machine or on other GPUs."""

from txlcli import console
from txlcli.core.measures.profiling import StepProfile
from txlcli.paper import metrics
from txlcli.system.memory import format_size
from txlcli.workflows.training.forecast import TrainingForecast
from txlcli.workflows.training.out_of_memory import USABLE
from txlcli.workflows.training.run import TrainingResult
from txlcli.workflows.training.scaling import DeviceCost, ScaleForecast

UNITS = (("years", 365 * 86_400.0), ("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))

MAX_KERNELS = 20
"""Kernels of a profile to list."""
MAX_NAME = 60
"""Characters of the name of a kernel to show."""


def show_forecast(forecast: TrainingForecast) -> None:
    """Print the plan of a training run as one line and its cost as a table."""
    plan = forecast.plan
    console.show_line(f"would train {plan}")
    facts: dict[str, object] = {}
    for part, count in forecast.parameters_by_part.items():
        if count:
            facts[f"parameters, {part}"] = f"{count:,}"
    facts["parameters"] = f"{plan.run.parameters:,}"
    memory = "memory of a step" if plan.processes == 1 else "memory of a process"
    for purpose, size in forecast.step_bytes.to_json().items():
        if size:
            facts[f"{memory}, {_part_name(purpose)}"] = format_size(size)
    facts["memory of the host, copy for saving"] = format_size(forecast.snapshot_bytes)
    is_whole = plan.steps == plan.run.settings.train.max_steps
    extent = "the whole recipe" if is_whole else f"{plan.steps:,} steps"
    gflop = forecast.training_flops_per_token / 1e9
    facts["operations per token"] = f"{gflop:,.3f} GFLOP" if gflop >= 1 else f"{gflop:.3g} GFLOP"
    facts[f"operations of {extent}"] = f"{forecast.training_flops:.3g} FLOP"
    facts["tokens/s expected"] = format_rate(forecast.tokens_per_s)
    facts[f"time of {extent}"] = duration(forecast.seconds)
    facts["the paper's valid result"] = forecast.published.get("valid")
    facts["the paper's test result"] = forecast.published.get("test")
    console.show_facts("", facts, _forecast_notes(forecast))


def _part_name(part: str) -> str:
    """Return the name of a part of the bytes of a step: "memory" alone could be any of them."""
    return "recurrent memory" if part == "memory" else part


def _forecast_notes(forecast: TrainingForecast) -> list[str]:
    """Return where the expected rate and the shares of the bands come from."""
    peak = f"{forecast.peak_flops_per_s / 1e9:,.0f} GFLOP/s"
    if forecast.step_was_timed:
        source = ", as in training steps timed just now"
    elif forecast.share_source:
        source = f", as for {forecast.share_source}"
    else:
        source = " measured just now"
    notes = [
        f"Expected on an idle machine: {_percent(forecast.share_of_peak)} of the {peak} of a matrix product{source}. "
        "Memory: without the libraries and, on a GPU, the workspace of single operations."
    ]
    if forecast.tails:
        notes.append(f"Share of tokens in each tail band: from {forecast.tails_by}.")
    return notes


def format_rate(tokens_per_s: float) -> str:
    """Return a rate without decimals, or with two significant digits if it is small."""
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.2g}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def duration(seconds: float) -> str:
    """Return a time span in a suitable unit."""
    for unit, length in UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} seconds"


def show_devices(forecast: ScaleForecast) -> None:
    """Print the cost of a recipe on different numbers of GPUs as a table; what decides comes first."""
    run = forecast.plan.run
    train = run.settings.train
    rows = list(map(_device_cells, forecast.by_devices))
    for part in forecast.by_devices[0].device_bytes:
        sizes = [cost.device_bytes[part] for cost in forecast.by_devices]
        if part != "total" and any(sizes):
            for row, size in zip(rows, sizes, strict=True):
                row[_part_name(part)] = format_size(size)
    title = (
        f"{run.recipe_name}: {run.parameters:,} parameters, batches of {train.batch_size}, "
        f"{forecast.plan.steps:,} steps, {train.precision}; memory of each GPU"
    )
    notes = [f"Memory: without the workspace of single operations; it fits up to {USABLE:.0%}."]
    source = forecast.by_devices[0].share_source
    shares = [_percent(cost.share_of_peak) for cost in forecast.by_devices if cost.share_of_peak is not None]
    if shares:
        reached = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"
        exchange = "" if forecast.options.bandwidth else ", without the gradient exchange; add --bandwidth"
        notes.append(f"Time: as for {source}, {reached} of the data sheet's peak rate{exchange}.")
    console.show_table(title, list(rows[0]), [list(row.values()) for row in rows], notes)


def _device_cells(cost: DeviceCost) -> dict[str, str]:
    """Return the cells of a number of GPUs by heading, without what is unknown for want of a property of the GPU."""
    cells = {"GPUs": f"{cost.devices}", "batch of each": f"{cost.batch_size_per_device:,}"}
    if cost.tokens_per_s is not None:
        cells["tokens/s"] = format_rate(cost.tokens_per_s)
    if cost.seconds is not None:
        cells["time"] = duration(cost.seconds)
    if cost.fits is not None:
        cells["fits"] = "yes" if cost.fits else "no"
    cells["total memory"] = format_size(cost.device_bytes["total"])
    cells["sent per step"] = format_size(cost.exchanged_bytes)
    return cells


def show_result(result: TrainingResult) -> None:
    """Print steps, best validation and next command of a training run as a table."""
    run = result.run
    best = "-"
    if result.best_nats < float("inf"):
        best = metrics.format_measure(metrics.in_metric(result.best_nats, run.metric))
    mfu = None
    if result.mfu is not None:
        mfu = _percent(result.mfu)
    facts = {
        "run": run.directory,
        "steps": f"{result.step:,} of {run.settings.train.max_steps:,}",
        "epochs": f"{result.epoch:.2f}",
        f"best valid {run.metric}": best,
        "of the GPU's peak": mfu,
        "next": result.next_command,
    }
    console.show_facts(f"{run.name}: {run.parameters:,} parameters", facts)
    if result.profile is not None:
        _show_profile(result.profile)


def _show_profile(profile: StepProfile) -> None:
    """Print the kernels that take the most time in a step as a table."""
    rows = []
    for kernel in profile.kernels[:MAX_KERNELS]:
        calls = f"{kernel.calls_per_step:,.1f}"
        rows.append([kernel.name[:MAX_NAME], calls, f"{kernel.ms_per_step:,.3f}", f"{kernel.share:.1%}"])
    steps = f"steps {profile.first_step:,} to {profile.first_step + profile.steps - 1:,}"
    all_kernels = f"{profile.calls_per_step:,.0f} kernels a step, {profile.ms_per_step:,.2f} ms"
    notes = [f"All: {all_kernels}. Trace: {profile.trace}; open it at https://ui.perfetto.dev."]
    console.show_table(f"kernels of {steps}", ("kernel", "calls a step", "ms a step", "share"), rows, notes)
