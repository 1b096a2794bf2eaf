"""`txl eval`: perplexity or bits per character, for one or more memory lengths, as a table, a curve or a sentence."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer import Option

from txlcli import console
from txlcli.commands.options import Json, ScoredModel, write_figure
from txlcli.paper import metrics
from txlcli.report import figures
from txlcli.runs import run_directory
from txlcli.runs.history import describe_setting
from txlcli.system import launcher, signals
from txlcli.system.atomic_files import write_text
from txlcli.system.command_lines import with_flags
from txlcli.workflows.evaluation.options import LENGTH_THRESHOLD, SLOWDOWN_REPETITIONS, EvalOptions
from txlcli.workflows.exchange.options import is_external
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.evaluation.result import EvalResult
    from txlcli.workflows.evaluation.rows import EvalRow
    from txlcli.workflows.evaluation.search import LengthSearch

UNTRUSTED = (
    "other programs used the processors (txl got {share:.0%} of one): times and slowdowns cannot be trusted; repeat "
    "this on an idle machine."
)
WINDOWS = "windows: each is computed anew and predicts its last S tokens; S is N for disjoint and 1 for sliding."


def evaluate(
    context: typer.Context,
    options: EvalOptions,
    model_name: ScoredModel = None,
    processes: Annotated[
        int,
        Option(min=1, metavar="N", help="Divide the lanes, or the windows, among this many processes, one per GPU."),
    ] = 1,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Evaluate a run, or another model.

    Reports perplexity or bits per character for each memory length, and the slowdown of a model without memory.
    --mem-len auto selects the shortest length beyond which perplexity on valid falls by less than 0.1 %.
    --protocols all shows how much of a difference between two systems can come from the way of evaluation.

    Example: txl eval --mem-len 0,64,128,256
    """
    launcher.check_processes(processes)
    processes = max(processes, launcher.place().world_size)
    if is_external(model_name):
        options.check_external(processes)
    else:
        # A wrong name ends each of several processes at once.
        run = run_directory.find(model_name, workspace.runs_dir)
        options.check_run(processes, run.settings.eval.batch_size)
        if processes > 1 and launcher.place().starter is None:
            _start_processes(processes, context, run)
    if processes > 1:
        launcher.end_with_launcher()
    with _signals_of_processes():
        from txlcli.workflows.evaluation import evaluate as workflow

        if is_external(model_name):
            result = workflow.evaluate_external(model_name, options, workspace)
        else:
            result = workflow.evaluate_run(run, options, workspace)
        if launcher.is_main():
            _show(result, options, json=json)
        result.raise_pending()


def _start_processes(processes: int, context: typer.Context, run: run_directory.Run) -> NoReturn:
    """Start this command in several processes, and exit as they do."""
    arguments = context.find_root().obj
    timeout_s = run.settings.train.rank_timeout
    code = launcher.start_processes(processes, arguments, rank_timeout_s=timeout_s, next_step="evaluate again")
    if code - 128 in signals.WORDS:
        console.warn(signals.WORDS[code - 128])
    sys.exit(code)


def _show(result: "EvalResult", options: EvalOptions, *, json: bool) -> None:
    """Show the result, and write the files."""
    from txlcli.report import pages
    from txlcli.workflows.evaluation import words
    from txlcli.workflows.evaluation.annotated import annotate
    from txlcli.workflows.evaluation.result import write_losses

    console.show_result(result, show, json=json)
    if options.losses is not None:  # after the result, which a full disk must not cost
        write_losses(options.losses, result)
    if options.words is not None:
        words.write(options.words, result.scoring, result.rows)
    write_figure(options.plot, figures.plot_evaluation, result)
    if options.html is not None and result.ended_by is None:
        write_text(options.html, pages.text_page(annotate(result)))
        console.say(f"page written to {options.html}")


@contextmanager
def _signals_of_processes() -> Iterator[None]:
    """Let one of several processes end by a signal: silently, except rank 0 if no other process of txl reports it."""
    try:
        with signals.silent():
            yield
    except (KeyboardInterrupt, signals.Terminated) as ended:
        if launcher.place().starter == "txl":
            sys.exit(128 + signals.number_of(ended))
        raise


def show(result: "EvalResult") -> None:
    """Write the table to stdout, without the columns that no row has a value for."""
    scoring = result.scoring
    first = result.rows[0]
    if result.compares_protocols:
        names = [scoring.opened.metric, "ppl_per_word", "bits_per_byte"]
    else:
        names = metrics.wanted_measures(scoring.text.unit, first.measures)
    by_heading = [_cells(row, result.rows, names) for row in result.rows]
    columns = []
    for heading in by_heading[0]:
        if any(cells[heading] != "-" for cells in by_heading):
            columns.append(heading)
    lines = []
    for cells in by_heading:
        lines.append([cells[heading] for heading in columns])
    title = f"{scoring.opened.subject} on {scoring.text.title}, {first.tokens:,} tokens scored"
    console.show_table(title, columns, lines, _notes(result))


def _cells(row: "EvalRow", rows: Sequence["EvalRow"], names: Sequence[str]) -> dict[str, str]:
    """Return the cells of a row by heading; the best of several rows has a star."""
    heading, label = _label(row)
    if row.best and len(rows) > 1:
        label += " *"
    cells = {heading: label, "attention": _attention(row)}
    for name in names:
        cells[metrics.METRIC_TITLES[name]] = _measure(row, name)
    cells["change"] = "-"
    if row is not rows[0] and row.change is not None:
        cells["change"] = f"{row.change:+z.1%}"
    cells["ms/token"] = f"{row.ms_per_token:.3f}"
    cells["one lane"] = console.cell(row.one_lane_ms_per_token, ".3f")
    cells["vanilla"] = console.cell(row.vanilla_ms_per_token, ".2f")
    cells["slowdown"] = metrics.format_ratio(row.slowdown)
    return cells


def _label(row: "EvalRow") -> tuple[str, str]:
    """Return the heading of the first column, and the protocol, method or length of a row below it."""
    if row.protocol:
        return "protocol", f"{row.protocol}, {describe_setting(row.to_json())}"
    if row.method:
        return "method", row.method
    if row.in_windows:
        return "N", str(row.attn_len)
    return "M", "-" if row.has_state else str(row.mem_len)


def _attention(row: "EvalRow") -> str:
    """Return the number of keys per query; a recurrent state has none."""
    if row.has_state:
        return "state"
    if row.attn_len_min == row.attn_len_max:
        return str(row.attn_len_max)
    return f"{row.attn_len_min}-{row.attn_len_max}"


def _measure(row: "EvalRow", name: str) -> str:
    if name not in row.measures:
        return "-"
    return metrics.format_measure(row.measures[name])


def _notes(result: "EvalResult") -> list[str]:
    """Return the notes: settings, what limits the result, how it was obtained."""
    rows = result.rows
    metric = result.scoring.opened.metric
    busy = [row.processor_share for row in rows if row.processor_share is not None and not row.times_trusted]
    notes_on_times = [UNTRUSTED.format(share=min(busy))] if busy else []
    if result.compares_protocols:
        first = f"change: of {metrics.METRIC_TITLES[metric]}, from the first row; the same weights and tokens."
    else:
        first = result.describe_settings(rows[0])
    if len(rows) > 1:
        first = f"* best. {first}"
    notes = [first]
    if result.in_sample:
        notes.append("in-sample: settings were chosen on valid, which this result is of; it is too optimistic.")
    notes += map(with_flags, result.scoring.text.notes)
    if result.lacks_recurrence:
        notes.append(f"no recurrence: {result.lacks_recurrence}.")
    if result.ended_by is not None:
        notes.append("Stopped before the last row.")
    if result.compares_protocols:
        return notes + _notes_on_protocols(result) + notes_on_times
    if result.search is not None:
        notes.append(_describe_search(result.search))
    notes += [_describe_adaptation(row) for row in rows if row.adaptation]
    paper = result.scoring.text.paper
    if paper is not None:
        notes.append(f"The paper's result for this recipe: {paper} {metric}.")
    if any(row.slowdown for row in rows):
        notes.append("one lane: ms/token with memory, one lane; slowdown: vanilla / one lane, as in Table 9.")
        notes.append(
            "vanilla: ms/token of the same weights without memory, recomputing one window per prediction (median of "
            f"{SLOWDOWN_REPETITIONS} windows)."
        )
    return notes + notes_on_times


def _notes_on_protocols(result: "EvalResult") -> list[str]:
    """Return what the protocols in windows do, and the settings of recurrence."""
    notes = []
    with_memory = [row for row in result.rows if not row.in_windows]
    if len(with_memory) < len(result.rows):
        notes.append(WINDOWS)
    if with_memory:
        notes.append(f"recurrence: {result.describe_settings(with_memory[0])}")
    return notes


def _describe_adaptation(row: "EvalRow") -> str:
    """Return the parameters of a method of adaptation."""
    values = dict(row.adaptation)
    searched_on = values.pop("searched_on")
    parameters = ", ".join(f"{key} = {value:g}" for key, value in values.items())
    return f"{row.method}: {parameters}, searched on {searched_on:,} tokens of valid."


def _describe_search(search: "LengthSearch") -> str:
    longest = max(search.tried)
    ending = "" if search.ended else f"; {longest}, the longest one tried, still lowers it"
    return with_flags(
        f"`{search.option}` {search.length} is the shortest of {len(search.tried)} lengths up to {longest} beyond "
        f"which perplexity on valid falls by less than {LENGTH_THRESHOLD:.1%}{ending}."
    )


def in_a_sentence(unit: str, rows: Sequence["EvalRow"]) -> str:
    """Return what memory gains in loss and in time, from a sweep over memory lengths that begins with 0."""
    without = rows[0]
    best = next(row for row in rows if row.best)
    metric = metrics.wanted_measures(unit, without.measures)[0]
    name = "perplexity"
    if metric == "bpc":
        name = "bits per byte" if unit == "byte" else "bits per character"
    before = f"{name} from {_measure(without, metric)} without memory"
    if best is without:
        sentence = f"Memory did not lower {before}"
    else:
        sentence = f"Memory lowered {before} to {_measure(best, metric)} with M = {best.mem_len}"
    if best.slowdown is not None and best.times_trusted:
        times = metrics.format_ratio(best.slowdown).removesuffix("x")
        sentence += f"; reading with memory is {times} times as fast as recomputing"
    return f"{sentence}."
