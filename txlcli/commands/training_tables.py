"""Tables of the result of a training run, and of its forecast, on this machine or on other GPUs."""

from txlcli import console
from txlcli.core.measures.profiling import StepProfile
from txlcli.paper import metrics
from txlcli.workflows.training.execution import TrainingResult
from txlcli.workflows.training.forecast import ScaleForecast, TrainingForecast

MAX_KERNELS, MAX_NAME = 20, 60
"""Kernels of a profile to list, and characters of their names."""
OF_DEVICES = ("devices", "batch_size_per_device", "tokens_per_s", "seconds", "fits", "total_bytes", "exchanged_bytes")
"""Columns of the forecast for GPUs; the parts of the total follow."""


def show_forecast(forecast: TrainingForecast) -> None:
    """Print the plan of a training run as one line and its cost as a table."""
    console.show_line(f"would train {forecast.plan}")
    facts = vars(forecast) | {"step_bytes": forecast.step_bytes.to_json(), "plan": None}
    rows = [[name.replace("_", " "), console.in_words(fact, name)] for name, fact in facts.items() if fact]
    note = "Times: of an idle machine. Memory: without the libraries and, on a GPU, the workspace of single operations."
    console.show_table("", ("", ""), rows, [note])


def show_devices(forecast: ScaleForecast) -> None:
    """Print the cost of a recipe on different numbers of GPUs as a table; what decides comes first."""
    sizes = [{f"{part}_bytes": size for part, size in row.device_bytes.items()} for row in forecast.by_devices]
    rows = [vars(row) | of_row for row, of_row in zip(forecast.by_devices, sizes, strict=True)]
    parts = [part for part in sizes[0] if part not in OF_DEVICES and any(of_row[part] for of_row in sizes)]
    title = (
        f"{forecast.recipe}: {forecast.parameters:,} parameters, batches of {forecast.batch_size}, "
        f"{forecast.steps:,} steps, {forecast.precision}; memory of each GPU"
    )
    notes = [f"Memory: without the workspace of single operations; it fits up to {forecast.usable_share:.0%}."]
    if forecast.device_flops_per_s is not None:
        sources = {row.share_source: row.share_of_peak for row in forecast.by_devices}
        shares = " or ".join(f"{share:.2%} (as for {source})" for source, share in sources.items())
        exchange = "" if forecast.bandwidth_bytes_per_s else ", without the gradient exchange; add --bandwidth"
        notes.append(f"Time: at {shares} of the peak rate{exchange}.")
    console.show_rows(title, rows, [*OF_DEVICES, *parts], notes)


def show_result(result: TrainingResult) -> None:
    """Print steps, best validation and next command of a training run as a table."""
    run = result.run
    best = metrics.format_measure(metrics.in_metric(result.best_nats, run.metric))
    facts = {
        "run": run.directory,
        "steps": f"{result.step:,} of {run.settings.train.max_steps:,}",
        "epochs": f"{result.epoch:.2f}",
        f"best valid {run.metric}": best if result.best_nats < float("inf") else "-",
        "of the GPU's peak": None if result.mfu is None else f"{result.mfu:.1%}",
        "next": result.next_command,
    }
    console.show_facts(f"{run.name}: {run.parameters:,} parameters", facts)
    if result.profile is not None:
        _show_profile(result.profile)


def _show_profile(profile: StepProfile) -> None:
    """Print the kernels that take the most time in a step as a table."""
    kernels = [vars(kernel) | {"name": kernel.name[:MAX_NAME]} for kernel in profile.kernels[:MAX_KERNELS]]
    steps = f"steps {profile.first_step:,} to {profile.first_step + profile.steps - 1:,}"
    all_kernels = f"{profile.calls_per_step:,.0f} kernels a step, {profile.ms_per_step:,.2f} ms"
    notes = [f"All: {all_kernels}. Trace: {profile.trace}; open it at https://ui.perfetto.dev."]
    console.show_rows(f"kernels of {steps}", kernels, ("name", "calls_per_step", "ms_per_step", "share"), notes)
