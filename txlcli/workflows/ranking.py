"""Ranks a run among the systems of the paper's Tables 1 to 5 and of other papers, if its numbers are comparable."""

from collections.abc import Iterator, Sequence

from txlcli.corpora.corpus import Corpus
from txlcli.errors import UsageError
from txlcli.paper import metrics, published
from txlcli.paper.published import CONTEMPORARY, FINETUNED, BenchmarkResult, OtherResult, SystemResult, Table
from txlcli.runs.history import History, Record, describe_setting, lowest
from txlcli.runs.run_directory import Run
from txlcli.system.command_lines import command_line
from txlcli.workflows.reproduction.section import Grid, ReportSection

LEAST_LEFT = 0.9  # smallest share of a split that remains after symbols are dropped, whose number is unknown
SPLITS = ("valid", "test")
COLUMNS = ["system", "#param", *SPLITS]
OTHERS_CAPTION = (
    "Results of other papers, by number in arXiv. Protocol: what differs from one plain pass, as far as it is known; "
    "dynamic evaluation trains on the text that it scores."
)
OTHER_SYMBOLS = "~"
MARKS = {
    CONTEMPORARY: "contemporary with the paper",
    FINETUNED: "with two-step finetuning",
    OTHER_SYMBOLS: "not comparable: the released code drops symbols that others keep.",
}
Results = dict[str, tuple[float, str]]
"""Result and its source in words, by split."""
Ranked = tuple[float, list[str]]
"""Number by which a row is ranked, and its cells."""


def rank(history: History) -> ReportSection:
    """Return the published results on the run's corpus, the best first, with the run's if they are comparable.

    The paper's table and the results of other papers are two tables. A run without a test result is ranked by its
    validation result.
    """
    run = history.run
    corpus = corpus_of(history)
    if corpus is None or corpus.name not in published.OTHERS:
        raise UsageError(f"{run.directory} was trained on {run.settings.corpus.store}, not a corpus of the paper")
    dropped = len(corpus.released_rule.dropped) if corpus.released_rule else 0
    # The paper's own rows are of text without the symbols that the released code drops.
    released = bool(dropped) and run.vocab_size == corpus.published["types"] - dropped
    metric = metrics.metric_of(corpus.unit)
    results, reasons = _compared(history, corpus, metric, dropped=dropped, released=released)
    notes = _notes_on_results(run, results, reasons)
    grids = []
    table = published.BENCHMARKS.get(corpus.name)
    if table is not None:
        released_rows = None  # both
        if results and dropped:
            released_rows = released
        rows, marks = _rows_of_table(table, released=released_rows)
        grids.append(Grid(COLUMNS, _ranked(rows, run, results), "Results in the paper."))
        notes.insert(0, f"Table {table.number} of the paper, {metric}, the best first; below, other papers.")
        notes += [f"{mark} {text}" for mark, text in MARKS.items() if mark in marks]
    else:
        notes.insert(0, f"The paper has no table of {corpus.name}; results of other papers, {metric}, the best first.")
    others = _ranked(_rows_of_others(published.OTHERS[corpus.name]), run, results, "noted above", "-")
    grids.append(Grid([*COLUMNS, "protocol", "source"], others, OTHERS_CAPTION))
    if results and dropped:
        notes.append("Whether systems of other papers drop these symbols is not known.")
    return ReportSection(notes=notes, grids=grids)


def _rows_of_table(table: Table[BenchmarkResult], *, released: bool | None) -> tuple[list[Ranked], str]:
    """Return the rows of one of the paper's tables, and their marks.

    `released` is True if the run's text lacks the symbols that the released code drops; None if rows are not marked.
    """
    rows = []
    all_marks = ""
    for row in table.rows:
        marks = row.mark
        if released is not None and row.ours != released:
            marks += OTHER_SYMBOLS
        rows.append((row.test, _published_cells(row, marks)))
        all_marks += marks
    return rows, all_marks


def _rows_of_others(others: Sequence[OtherResult]) -> list[Ranked]:
    rows = []
    for row in others:
        rows.append((row.test, [*_published_cells(row), row.protocol or "-", row.source]))
    return rows


def _published_cells(row: SystemResult, marks: str = "") -> list[str]:
    return [f"  {row.label} {marks}".rstrip(), row.parameters or "-", str(row.valid or "-"), f"{row.test}"]


def _ranked(rows: Sequence[Ranked], run: Run, results: Results, *more_cells: str) -> list[list[str]]:
    """Return the cells of the rows and of the run, which has a row if it has a comparable result, the best first.

    `more_cells` are those of the run after its results.
    """
    ranked = list(rows)
    if results:
        cells = [f"> {run.directory}", _short(run.parameters)]
        for split in SPLITS:
            cells.append(f"{results[split][0]:.2f}" if split in results else "-")
        cells += more_cells
        best, _ = results.get("test") or results["valid"]
        ranked.append((best, cells))
    return [cells for _, cells in sorted(ranked)]


def _notes_on_results(run: Run, results: Results, reasons: Sequence[str]) -> list[str]:
    """Return the source of each result, how to obtain those that are missing, or why they are not comparable."""
    notes = [f"> {split}: {source}" for split, (_, source) in results.items()]
    if reasons:
        return notes + [f"not comparable: {reason}" for reason in reasons]
    for split in SPLITS:
        if split not in results:
            notes.append(f"> {split}: none yet; {command_line('eval', str(run.directory), split=split)}")
    if results and "test" not in results:
        notes.append("The run is placed by its valid result among the test results of others.")
    return notes


def _compared(
    history: History, corpus: Corpus, metric: str, *, dropped: int, released: bool
) -> tuple[Results, list[str]]:
    """Return the comparable result of each split with its source in words, and why others are not comparable."""
    types = corpus.published["types"]
    size = history.run.vocab_size
    if size != types and not released:
        as_released = f", or {types - dropped:,} as released" if dropped else ""
        return {}, [f"its vocabulary has {size:,} symbols, the benchmark's {types:,} symbols{as_released}"]
    results: Results = {}
    reasons = []
    for split, report, source in _candidates(history):
        if split in results:
            continue
        tokens = report.get("tokens") or 0
        expected = corpus.published.get(split) or 0
        if expected and corpus.rule.boundary is None:
            expected -= 1  # the first token is not scored
        is_whole = tokens == expected > 0
        if released:
            is_whole = LEAST_LEFT * expected < tokens < expected
        if is_whole:
            results[split] = (metrics.in_metric(report["loss_nats"], metric), source)
        else:
            benchmark = f"the benchmark has {expected:,}" if expected else "the size of the benchmark is unknown"
            reasons.append(f"{split} ({source}): {tokens:,} tokens scored, {benchmark}")
    return results, reasons


def _candidates(history: History) -> Iterator[tuple[str, Record, str]]:
    """Yield the results that may be quoted, of each split the preferred one first: split, result, source in words."""
    test, trials = history.test_result
    selected = f", best of {trials} test scores" if trials > 1 else ""
    evaluations = {"valid": (lowest(history.evals_of("valid")), ""), "test": (test, selected)}
    for split, (row, remark) in evaluations.items():
        if row is not None:
            attn_len = row.get("attn_len_max")
            context = describe_setting(row)
            if attn_len:
                context += f", attention length {attn_len:,}"
            yield split, row, f"txl eval, {context}, step {row.get('step', 0):,}{remark}"
    if history.best_valid is not None:
        yield "valid", history.best_valid, f"validation during training, step {history.best_valid['step']:,}"


def _short(parameters: int) -> str:
    """Format a count as the paper does: truncated, not rounded."""
    if parameters >= 10**9:
        return f"{parameters // 10**7 / 100:g}B"
    if parameters >= 10**6:
        return f"{parameters // 10**6}M"
    return f"{parameters // 10**3 / 1000:g}M"


def corpus_of(history: History) -> Corpus | None:
    """Return the corpus of a run, as it or an evaluation records it, or else by the store's name; None for own text."""
    from txlcli.corpora import CORPORA
    from txlcli.data.token_store import corpus_name

    if history.run.corpus:
        return CORPORA.get(history.run.corpus)
    for row in reversed(history.evals):
        if row.get("corpus"):
            return CORPORA.get(corpus_name(row["corpus"]))
    return CORPORA.get(corpus_name(history.run.settings.corpus.store))
