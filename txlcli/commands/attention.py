"""`txl attention`: attention of a run's heads (Appendix D, Figures 5 to 7)."""

from typing import TYPE_CHECKING

from txlcli import console
from txlcli.commands.options import Json, RunName
from txlcli.report.attention import COLUMNS, measure_and_plot, notes, rows
from txlcli.runs import run_directory
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.attention import AttentionResult


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
    result, paths = measure_and_plot(run, options.out or run.directory / "figures", options, workspace)
    for path in paths.values():
        console.say(f"figure written to {path}")
    if json:
        console.show_json({**result.to_json(), "files": list(map(str, paths.values()))})
    else:
        show(result)


def show(result: "AttentionResult") -> None:
    """Write the table to stdout, a row per layer."""
    title = f"Attention of {result.opened.run.directory} on {result.text.title}, {result.maps.queries:,} tokens"
    console.show_table(title, COLUMNS, rows(result), notes(result))
