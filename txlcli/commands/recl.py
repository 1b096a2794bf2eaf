"""`txl recl`: relative effective context length of a group of runs (section 4.3, Appendix C; Table 8, Figures 3, 4)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from txlcli import console
from txlcli.commands.options import Json, argument
from txlcli.runs import run_directory
from txlcli.workflows.recl_options import ReclOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.recl import ReclModel, ReclResult


def recl(
    run_names: Annotated[list[str], argument("RUN...", "Runs to compare; one is enough.", "runs")],
    options: ReclOptions,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Measure how much context models use (RECL).

    Relative effective context length, as in Table 8: the context length beyond which one more step improves perplexity
    by less than 1 %, on the hardest positions, compared with the best model of the group. --plot plots the gains for
    the first r (Figure 3).

    Example: txl recl stdlib vanilla-stdlib --start 16 --step 16 --positions 500
    """
    for name in run_names:  # a wrong name is reported before PyTorch is imported
        run_directory.find(name, workspace.runs_dir)
    from txlcli.workflows import recl as workflow

    result = workflow.run(run_names, options, workspace)
    console.show_result(result, show, json=json)
    if options.plot is not None:
        plot_gains(options.plot, result)
        console.say(f"figure written to {options.plot}")
    if options.plot_ppl is not None:
        plot_perplexities(options.plot_ppl, result)
        console.say(f"figure written to {options.plot_ppl}")


def show(result: "ReclResult") -> None:
    """Write the table to stdout: a row per model, a column per r."""
    lines = []
    for name, model in _named(result).items():
        cells = [name, f"{model.parameters:,}"]
        for point in model.recl:
            recl_tokens = f"{point.recl_tokens:,}"
            cells.append(f">= {recl_tokens}" if point.grid_ended else recl_tokens)
        lines.append(cells)
    title = f"RECL on {result.text}, {result.positions:,} positions"
    columns = ("model", "parameters", *(f"r = {point.top_r:g}" for point in result.models[0].recl))
    console.show_table(title, columns, lines, _notes(result))


def _named(result: "ReclResult") -> "dict[str, ReclModel]":
    names = run_directory.short_names([Path(model.run) for model in result.models])
    return dict(zip(names, result.models, strict=True))


def _notes(result: "ReclResult") -> list[str]:
    notes = [
        f"RECL: context length in tokens beyond which {result.step_tokens:,} more improve perplexity by less than "
        f"{100 * result.threshold:g} %."
    ]
    if any(_grid_ended(model) for model in result.models):
        notes.append(">=: every step improved perplexity; give a larger --longest.")
    notes.append("r: share of the positions, the hardest for the best model of the group (Appendix C).")
    for name, model in _named(result).items():
        notes.append(f"{name}: {_describe_context(model)}; {model.precision}")
    return notes


def _grid_ended(model: "ReclModel") -> bool:
    """True if the longest context still improved one of the perplexities."""
    return any(point.grid_ended for point in model.recl)


def _describe_context(model: "ReclModel") -> str:
    source = model.source
    if source["context"] == "state":
        return "recurrent state, zeros before the context"
    if source["context"] == "window":
        most = source["longest_window_tokens"]
        return f"one window of at most {most:,} tokens, no memory" if most else "one window, no memory"
    settings = f"L = {source['seg_len']}, M = {source['mem_len']}, same_length = {source['same_length']}"
    if source["max_distance"]:
        settings += f", max_distance = {source['max_distance']}"
    return settings


def plot_gains(path: Path, result: "ReclResult") -> None:
    """Plot the unnormalized gain of perplexity at each context length, for the first r (Figure 3)."""
    from txlcli.commands import plots

    curves: dict[str, plots.Curve] = {}
    for name, model in _named(result).items():
        gains = model.recl[0].gains
        curves[name] = ([gain.from_tokens for gain in gains], [gain.ppl_gain for gain in gains])
    y_label = f"perplexity gained by {result.step_tokens:,} more tokens"
    title = f"{result.text}, r = {result.models[0].recl[0].top_r:g}"
    plots.plot_panels(path, {y_label: curves}, x_label="context length (tokens)", title=title)


def plot_perplexities(path: Path, result: "ReclResult") -> None:
    """Plot the perplexity of all positions at each context length, without the baseline of the group (Figure 4)."""
    from txlcli.commands import plots

    curves = {name: (result.context_tokens, model.ppl) for name, model in _named(result).items()}
    y_label = f"perplexity per {result.unit}"
    plots.plot_panels(path, {y_label: curves}, x_label="context length (tokens)", title=result.text)
