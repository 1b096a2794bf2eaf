"""`txl eval`: perplexity or bits per character, for one or more memory lengths, as a table, a curve or a sentence."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from txlcli import console
from txlcli.commands.options import Json, Run
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.system import launcher, signals
from txlcli.workflows.evaluation.options import LENGTH_THRESHOLD, SLOWDOWN_WINDOWS, EvalOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.evaluation.result import EvalResult
    from txlcli.workflows.evaluation.rows import EvalRow
    from txlcli.workflows.evaluation.search import LengthSearch

TIME = "ms per token, one batch lane"
WINDOWS = "windows: each is computed anew and predicts its last S tokens; S is N for disjoint and 1 for sliding."


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
    # A wrong name ends each of several processes at once.
    run = run_directory.find(run_name, workspace.runs_dir)
    if processes > 1 and not launcher.is_started():
        timeout, arguments = run.settings.train.rank_timeout, context.find_root().obj
        code = launcher.start_processes(processes, arguments, rank_timeout_s=timeout, next_step="evaluate again")
        if code - 128 in signals.WORDS:
            console.warn(signals.WORDS[code - 128])
        sys.exit(code)
    with _signals_of_processes():
        from txlcli.workflows.evaluation import evaluate as workflow

        result = workflow.run(run_name, options, workspace)
        if launcher.is_main():
            _show(result, options, json=json)
        result.raise_pending()


def _show(result: "EvalResult", options: EvalOptions, *, json: bool) -> None:
    """Show the result, and write the files."""
    from txlcli.commands import pages
    from txlcli.workflows.evaluation.annotated import annotate
    from txlcli.workflows.evaluation.result import write_losses

    console.show_result(result, show, json=json)
    if options.losses is not None:  # after the result, which a full disk must not cost
        write_losses(options.losses, result)
    if options.plot is not None:
        plot(options.plot, result)
    if options.html is not None and result.ended_by is None:
        pages.write_text_page(options.html, annotate(result))


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


def show(result: "EvalResult") -> None:
    """Write the table to stdout, without the columns that no row has a value for."""
    scoring, rows = result.scoring, result.rows
    names = [scoring.opened.run.metric, "ppl_per_word", "bits_per_byte"]
    if not result.compares_protocols:
        names = metrics.wanted_measures(scoring.text.unit, rows[0].measures)
    cells = [_cells(row, rows, names) for row in rows]
    columns = [heading for heading in cells[0] if any(row[heading] != "-" for row in cells)]
    title = f"{scoring.opened.run.directory} on {scoring.text.title}, {rows[0].tokens:,} tokens scored"
    console.show_table(title, columns, [[row[heading] for heading in columns] for row in cells], _notes(result))


def _cells(row: "EvalRow", rows: Sequence["EvalRow"], names: Sequence[str]) -> dict[str, str]:
    """Return the cells of a row by heading; the best of several rows has a star."""
    is_changed = row is not rows[0] and row.change is not None
    return {
        "protocol" if row.protocol else "method" if row.method else "N" if rows[0].stride else "M": _label(row)
        + (" *" if row.best and len(rows) > 1 else ""),
        "attention": _attention(row),
        **{metrics.METRIC_TITLES[name]: _measure(row, name) for name in names},
        "change": f"{row.change:+.1%}" if is_changed else "-",
        "ms/token": f"{row.ms_per_token:.3f}",
        "one lane": f"{row.one_lane_ms_per_token:.3f}" if row.slowdown else "-",
        "vanilla": f"{row.vanilla_ms_per_token:.2f}" if row.slowdown else "-",
        "slowdown": metrics.format_ratio(row.slowdown) if row.slowdown else "-",
    }


def _label(row: "EvalRow") -> str:
    """Return the protocol, the method or the length of a row."""
    length = row.attn_len if row.stride else "-" if row.attn_len_max is None else row.mem_len  # a state has none
    label = row.protocol or row.method or str(length)
    if row.protocol and length != "-":
        label += f", {'N' if row.stride else 'M'} = {length}"
    return f"{label}, S = {row.stride}" if row.protocol == "strided" else label


def _attention(row: "EvalRow") -> str:
    """Return the number of keys per query; a recurrent state has none."""
    if row.attn_len_max is None:
        return "state"
    fewest, most = row.attn_len_min, row.attn_len_max
    return f"{most}" if fewest == most else f"{fewest}-{most}"


def _measure(row: "EvalRow", name: str) -> str:
    return metrics.format_measure(row.measures[name]) if name in row.measures else "-"


def _notes(result: "EvalResult") -> list[str]:
    """Return the notes: settings, what limits the result, how it was obtained."""
    rows, compared = result.rows, result.compares_protocols
    metric, paper = result.scoring.opened.run.metric, result.scoring.text.paper
    change = f"change: of {metrics.METRIC_TITLES[metric]}, from the first row; the same weights and tokens."
    notes = [("* best. " if len(rows) > 1 else "") + (change if compared else result.describe_settings(rows[0]))]
    notes += [f"no recurrence: {result.lacks_recurrence}."] if result.lacks_recurrence else []
    if result.ended_by is not None:
        notes.append("Stopped before the last row.")
    if compared:
        with_memory = [row for row in rows if not row.stride]
        notes += [WINDOWS] if len(with_memory) < len(rows) else []
        return notes + [f"recurrence: {result.describe_settings(row)}" for row in with_memory[:1]]
    if result.search is not None:
        notes.append(_describe_search(result.search))
    for row in rows:
        if row.adaptation:
            values = ", ".join(f"{key} = {value:g}" for key, value in row.adaptation.items() if key != "searched_on")
            notes.append(f"{row.method}: {values}, searched on {row.adaptation['searched_on']:,} tokens of valid.")
    if paper is not None:
        notes.append(f"The paper's result for this recipe: {paper} {metric}.")
    if any(row.slowdown for row in rows):
        notes += [
            "one lane: ms/token with memory, one lane; slowdown: vanilla / one lane, as in Table 9.",
            "vanilla: ms/token of the same weights without memory, recomputing one window per prediction (median of "
            f"{SLOWDOWN_WINDOWS} windows).",
        ]
    return notes


def _describe_search(search: "LengthSearch") -> str:
    longest = max(search.tried)
    ending = "" if search.ended else f"; {longest}, the longest one tried, still lowers it"
    return console.with_flags(
        f"`{search.option}` {search.length} is the shortest of {len(search.tried)} lengths up to {longest} beyond "
        f"which perplexity on valid falls by less than {LENGTH_THRESHOLD:.1%}{ending}."
    )


def in_a_sentence(unit: str, rows: Sequence["EvalRow"]) -> str:
    """Return what memory gains in loss and in time, from a sweep over memory lengths that begins with 0."""
    metric = metrics.wanted_measures(unit, rows[0].measures)[0]
    name = {"bpc": "bits per byte" if unit == "byte" else "bits per character"}.get(metric, "perplexity")
    without, best = rows[0], next(row for row in rows if row.best)
    change = "lowered" if best is not without else "did not lower"
    sentence = f"Memory {change} {name} from {_measure(without, metric)} without memory"
    if best is not without:
        sentence += f" to {_measure(best, metric)} with M = {best.mem_len}"
    if best.slowdown is not None:
        times = metrics.format_ratio(best.slowdown).removesuffix("x")
        sentence += f"; reading with memory is {times} times as fast as recomputing"
    return f"{sentence}."


def plot(path: Path, result: "EvalResult") -> None:
    """Plot the metric over the memory length or the window length, and times per token that were compared."""
    from txlcli.commands import plots

    run, in_windows = result.scoring.opened.run, result.rows[0].stride is not None
    rows = sorted(result.rows, key=lambda row: row.attn_len or row.mem_len)
    losses = [row.attn_len or row.mem_len for row in rows], [row.measures[run.metric] for row in rows]
    panels: dict[str, plots.Curves] = {metrics.METRIC_TITLES[run.metric]: {run.name: losses}}
    if timed := [row for row in rows if row.slowdown is not None]:
        mem_lens = [row.mem_len for row in timed]
        panels[TIME] = {
            "recomputed": (mem_lens, [row.vanilla_ms_per_token for row in timed]),
            "with memory": (mem_lens, [row.one_lane_ms_per_token for row in timed]),
        }
    x_label = "attention length (tokens)" if in_windows else "memory length M (tokens)"
    plots.plot_panels(path, panels, x_label=x_label, title=result.scoring.text.title, log_y=[TIME])
