"""Ranks a run among the systems of the paper's Tables 1 to 5, if its numbers are comparable."""

import shlex
from collections.abc import Iterator

from txlcli.corpora.corpus import Corpus
from txlcli.errors import UsageError
from txlcli.paper import metrics, published
from txlcli.paper.published import CONTEMPORARY, FINETUNED
from txlcli.runs.history import History, Report, lowest
from txlcli.workflows.reproduction.section import Grid, ReportSection

LEAST_LEFT = 0.9  # smallest share of a split that remains after symbols are dropped, whose number is unknown
SPLITS = ("valid", "test")
OTHER_SYMBOLS = "~"
MARKS = {
    CONTEMPORARY: "contemporary with the paper",
    FINETUNED: "with two-step finetuning",
    OTHER_SYMBOLS: "not comparable: the released code drops symbols that others keep.",
}


def rank(history: History) -> ReportSection:
    """Return the paper's table of the run's corpus, the best first, with the run's results if they are comparable.

    A run without a test result is ranked by its validation result.
    """
    corpus, run = corpus_of(history), history.run
    table = published.BENCHMARKS.get(corpus.name) if corpus else None
    if corpus is None or table is None:
        raise UsageError(f"{run.directory} was trained on {run.settings.corpus.store}, not a corpus of the paper")
    dropped = len(corpus.released_rule.dropped) if corpus.released_rule else 0
    # The paper's own rows are of text without the symbols that the released code drops.
    released = bool(dropped) and run.vocab_size == corpus.published["types"] - dropped
    results, reasons = _compared(history, corpus, table.metric, dropped=dropped, released=released)
    ranked, shown = [], ""
    for row in table.rows:
        marks = row.mark + (OTHER_SYMBOLS if results and dropped and row.ours != released else "")
        cells = [f"  {row.label} {marks}".rstrip(), row.parameters or "-", str(row.valid or "-"), f"{row.test}"]
        ranked.append((row.test, cells))
        shown += marks
    if results:
        best, _ = results.get("test") or results["valid"]
        numbers = [f"{results[split][0]:.2f}" if split in results else "-" for split in SPLITS]
        ranked.append((best, [f"> {run.directory}", _short(run.parameters), *numbers]))
    command = shlex.join(["txl", "eval", str(run.directory), "--split"])
    notes = [
        f"Table {table.number} of the paper, {table.metric}, the best first.",
        *(f"> {split}: {source}" for split, (_, source) in results.items()),
        *(f"> {split}: none yet; {command} {split}" for split in SPLITS if not reasons and split not in results),
        *(f"not comparable: {reason}" for reason in reasons),
        *(f"{mark} {text}" for mark, text in MARKS.items() if mark in shown),
    ]
    return ReportSection(
        notes=notes, grids=[Grid(["system", "#param", *SPLITS], [cells for _, cells in sorted(ranked)])]
    )


def _compared(
    history: History, corpus: Corpus, metric: str, *, dropped: int, released: bool
) -> tuple[dict[str, tuple[float, str]], list[str]]:
    """Return the comparable result of each split with its source in words, and why others are not comparable."""
    types, size = corpus.published["types"], history.run.vocab_size
    if size != types and not released:
        as_released = f", or {types - dropped:,} as released" if dropped else ""
        return {}, [f"its vocabulary has {size:,} symbols, the benchmark's {types:,} symbols{as_released}"]
    results: dict[str, tuple[float, str]] = {}
    reasons = []
    for split, report, source in _candidates(history):
        expected, tokens = corpus.published.get(split) or 0, report.get("tokens") or 0
        if expected and corpus.rule.boundary is None:
            expected -= 1  # the first token is not scored
        is_whole = LEAST_LEFT * expected < tokens < expected if released else tokens == expected > 0
        if is_whole and split not in results:
            results[split] = metrics.in_metric(report["loss_nats"], metric), source
        elif split not in results:
            benchmark = f"the benchmark has {expected:,}" if expected else "the size of the benchmark is unknown"
            reasons.append(f"{split} ({source}): {tokens:,} tokens scored, {benchmark}")
    return results, reasons


def _candidates(history: History) -> Iterator[tuple[str, Report, str]]:
    """Yield the results that may be quoted, of each split the preferred one first: split, result, source in words."""
    test, trials = history.test_result
    selected = f", best of {trials} test scores" if trials > 1 else ""
    evaluations = {"valid": (lowest(history.evals_of("valid")), ""), "test": (test, selected)}
    for split, (row, remark) in evaluations.items():
        if row is not None:
            attn_len = row.get("attn_len_max")
            context = f"attention length {attn_len:,}" if attn_len else "recurrent state"
            yield split, row, f"txl eval, {context}, step {row.get('step', 0):,}{remark}"
    if history.best_valid is not None:
        yield "valid", history.best_valid, f"validation during training, step {history.best_valid['step']:,}"


def _short(parameters: int) -> str:
    """Format a count as the paper does: truncated, not rounded."""
    if parameters >= 10**9:
        return f"{parameters // 10**7 / 100:g}B"
    return f"{parameters // 10**6}M" if parameters >= 10**6 else f"{parameters / 1e6:.1g}M"


def corpus_of(history: History) -> Corpus | None:
    """Return the corpus of a run, as recorded by an evaluation or else from the store's name; None for own text."""
    from txlcli.data import token_store

    recorded = (row["corpus"] for row in reversed(history.evals) if row.get("corpus"))
    return token_store.corpus_of(next(recorded, history.run.settings.corpus.store))
