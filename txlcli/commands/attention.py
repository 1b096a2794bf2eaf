"""`txl attention`: attention of a run's heads (Appendix D, Figures 5 to 7)."""

from pathlib import Path
from typing import TYPE_CHECKING

from txlcli import console
from txlcli.commands.options import Json
from txlcli.commands.options import Run as RunName
from txlcli.errors import RunError
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import errors_of_writing
from txlcli.system.written_files import check_replaceable
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.workspace import RunWorkspace, Workspace

if TYPE_CHECKING:
    from txlcli.workflows.attention import AttentionResult

COLUMNS = ["layer", "mean distance", "entropy (nats)", "in memory", "widest head", "width"]


def attention(
    options: AttentionOptions,
    run_name: RunName = None,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Plot where attention heads look.

    Figure 5 of the paper shows the attention of all heads by distance, Figure 6 the attention of selected heads to a
    text, Figure 7 the attention that the terms (a), (b) and (d) of the score would give alone. The width of a head is
    the number of distances over which its average attention is spread.

    Example: txl attention --heads 2.3,4.1 --out figures
    """
    run = run_directory.find(run_name, workspace.runs_dir)
    result, paths = measure(run, options.out or run.directory / "figures", options, workspace)
    for path in paths:
        console.say(f"figure written to {path}")
    if json:
        console.show_json({**result.to_json(), "files": list(map(str, paths))})
    else:
        show(result)


def measure(
    run: Run, directory: Path, options: AttentionOptions, workspace: Workspace
) -> "tuple[AttentionResult, list[Path]]":
    """Measure the attention of a run, and plot it to figures in a directory; return their paths, too."""
    from txlcli.commands.attention_plots import plot_figure
    from txlcli.workflows import attention as workflow

    workflow.check_options(run, options)
    paths = {number: directory / f"figure{number}.{options.format}" for number in workflow.figures_of(run)}
    existing = [path for path in paths.values() if path.exists()]
    if existing and not options.force:
        raise RunError(f"{existing[0]} exists; give another `out`, or overwrite it with `force`")
    for path in existing:
        check_replaceable(path)
    with errors_of_writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    result = workflow.run(str(run.weights or run.directory), options, workspace)
    for number, path in paths.items():
        plot_figure(result, number, path)
    return result, list(paths.values())


def show(result: "AttentionResult") -> None:
    """Write the table to stdout, a row per layer."""
    title = f"Attention of {result.opened.run.directory} on {result.text.title}, {result.maps.queries:,} tokens"
    console.show_table(title, COLUMNS, rows(result), notes(result))


def rows(result: "AttentionResult") -> list[list[str]]:
    """Return the cells of each layer."""
    distances, widths, entropies, shares = result.heads.values()
    lines = []
    for layer, width in enumerate(widths):
        cells = [
            str(layer + 1),
            f"{distances[layer].mean():,.1f}",
            f"{entropies[layer].mean():.2f}",
            f"{shares[layer].mean():.1%}",
            f"{layer + 1}.{width.argmax() + 1}",
            f"{width.max():,.1f}",
        ]
        lines.append(cells)
    return lines


def notes(result: "AttentionResult") -> list[str]:
    """Return the settings, and what the columns and Figure 6 show."""
    settings = result.settings
    limit = ""
    if result.opened.model.settings.limits_distance:
        limit = f"max_distance = {settings.max_distance}, "
    heads = ", ".join(f"{layer}.{head}" for layer, head in result.shown)
    return [
        f"L = {settings.seg_len}, M = {settings.mem_len}, up to {result.maps.distances:,} keys per query, "
        f"same_length = {settings.same_length}, {limit}{result.opened.precision}.",
        "Means over a layer's heads, distances and widths in tokens; in memory: share of the attention to the memory; "
        "width: number of distances over which a head's average attention is spread (exp of its entropy).",
        f"Figure 6: heads {heads} from token {result.maps.at:,} on.",
    ]
