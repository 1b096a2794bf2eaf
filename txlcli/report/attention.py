"""Attention of a run's heads: the table, and Figures 5 to 7 in a folder (Appendix D)."""

from pathlib import Path
from typing import TYPE_CHECKING

from txlcli.errors import RunError
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import errors_of_writing
from txlcli.system.written_files import check_replaceable
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.workspace import Workspace

if TYPE_CHECKING:
    from txlcli.workflows.attention import AttentionResult

COLUMNS = ["layer", "mean distance", "entropy (nats)", "in memory", "widest head", "width"]


def measure_and_plot(
    run: Run, directory: Path, options: AttentionOptions, workspace: Workspace
) -> "tuple[AttentionResult, dict[int, Path]]":
    """Measure the attention of a run, and plot it to figures in a directory; return their paths by number, too."""
    from txlcli.report.attention_plots import plot_figure
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
    result = workflow.measure_attention(run, options, workspace)
    for number, path in paths.items():
        plot_figure(result, number, path)
    return result, paths


def rows(result: "AttentionResult") -> list[list[str]]:
    """Return the cells of each layer."""
    heads = result.heads
    distances = heads["mean_distance_tokens"]
    entropies = heads["entropy_nats"]
    shares = heads["memory_share"]
    lines = []
    for layer, width in enumerate(heads["width_tokens"]):
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
