"""`txl recl`: relative effective context length of a group of runs (section 4.3, Appendix C; Table 8, Figures 3, 4)."""

from typing import TYPE_CHECKING, Annotated

from txlcli import console
from txlcli.commands.options import Json, argument, write_figure
from txlcli.report import figures
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
    runs = run_directory.find_each(run_names, workspace.runs_dir)
    from txlcli.workflows import recl as workflow

    result = workflow.run(runs, options, workspace)
    console.show_result(result, show, json=json)
    write_figure(options.plot, figures.plot_gains, result)
    write_figure(options.plot_ppl, figures.plot_perplexities, result)


def show(result: "ReclResult") -> None:
    """Write the table to stdout: a row per model, a column per r."""
    lines = []
    for name, model in result.models_by_name.items():
        cells = [name, f"{model.parameters:,}"]
        for point in model.recl:
            cells.append(f"{point.bound}{point.recl_tokens:,}")
        lines.append(cells)
    title = f"RECL on {result.text}, {result.positions:,} positions"
    columns = ("model", "parameters", *(f"r = {point.top_r:g}" for point in result.models[0].recl))
    console.show_table(title, columns, lines, _notes(result))


def _notes(result: "ReclResult") -> list[str]:
    notes = [
        f"RECL: context length in tokens beyond which {result.step_tokens:,} more improve perplexity by less than "
        f"{100 * result.threshold:g} %."
    ]
    bounds = {point.bound for model in result.models for point in model.recl}
    if ">= " in bounds:
        notes.append(">=: every step improved perplexity by more; give a larger --longest.")
    if "<= " in bounds:
        notes.append("<=: the first step already improved it by less; a smaller --start may give a shorter one.")
    notes.append("r: share of the positions, the hardest for the best model of the group (Appendix C).")
    for name, model in result.models_by_name.items():
        notes.append(f"{name}: {_describe_context(model)}; {model.precision}")
    return notes


def _describe_context(model: "ReclModel") -> str:
    source = model.source
    if source["context"] == "state":
        return "recurrent state, the model's first one before the context"
    if source["context"] == "window":
        most = source["longest_window_tokens"]
        return f"one window of at most {most:,} tokens, no memory" if most else "one window, no memory"
    settings = f"L = {source['seg_len']}, M = {source['mem_len']}, same_length = {source['same_length']}"
    if source["max_distance"]:
        settings += f", max_distance = {source['max_distance']}"
    return settings
