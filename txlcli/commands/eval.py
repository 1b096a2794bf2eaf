"""`txl eval`: perplexity or bits per character, for one or more memory lengths."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from txlcli import console
from txlcli.commands.options import Json, Run
from txlcli.runs import run_directory
from txlcli.system import launcher, signals
from txlcli.workflows.options import EvalOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.evaluation.evaluate import EvalResult


def evaluate(
    context: typer.Context,
    options: EvalOptions,
    run_name: Run = None,
    processes: Annotated[
        int, Option(min=1, help="Divide the lanes, or the windows, among this many processes, one per GPU.")
    ] = 1,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Evaluate a run.

    Reports perplexity or bits per character for each memory length, and the slowdown of a model without memory.
    --mem-len auto selects the shortest length beyond which perplexity on valid falls by less than 0.1 %.
    --protocols all shows how much of a difference between two systems can come from the way of evaluation.

    Example: txl eval --mem-len 0,64,128,256
    """
    launcher.check_processes(processes)
    processes = max(processes, launcher.world_size())
    options.check_processes(processes)
    # A wrong name is reported before PyTorch is imported.
    run = run_directory.find(run_name, workspace.runs_dir)
    if processes > 1 and not launcher.is_started():
        sys.exit(_start_processes(processes, context.find_root().obj, run.settings.train.rank_timeout))
    with _signals_of_processes():
        from txlcli.workflows.evaluation import evaluate as workflow

        result = workflow.run(run_name, options, workspace)
        if launcher.is_main():
            _show(result, options, json=json)
        result.raise_pending()


def _show(result: "EvalResult", options: EvalOptions, *, json: bool) -> None:
    """Show the result, and write the files."""
    from txlcli.commands import eval_table, pages
    from txlcli.workflows.evaluation.annotated import annotate
    from txlcli.workflows.evaluation.evaluate import write_losses

    console.show_result(result, eval_table.show, json=json)
    if options.losses is not None:  # after the result, which a full disk must not cost
        write_losses(options.losses, result)
    if options.plot is not None:
        eval_table.plot(options.plot, result)
    if options.html is not None and result.ended_by is None:
        pages.write_text_page(options.html, annotate(result))


def _start_processes(processes: int, arguments: list[str], rank_timeout_s: float) -> int:
    """Run this command line in several processes; return their exit code."""
    code = launcher.start_processes(processes, arguments, rank_timeout_s=rank_timeout_s, next_step="evaluate again")
    if code - 128 in signals.WORDS:
        console.warn(signals.WORDS[code - 128])
    return code


@contextmanager
def _signals_of_processes() -> Iterator[None]:
    """Let one of several processes end by a signal: silently, except rank 0 if no other process of txl reports it."""
    try:
        with signals.silent():
            yield
    except (KeyboardInterrupt, signals.Terminated) as ended:
        if launcher.is_own():
            sys.exit(128 + signals.number_of(ended))
        raise
