"""Ranks a run among the systems of the paper's Tables 1 to 5, if its numbers are comparable."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from txlcli.corpora import CORPORA
from txlcli.errors import UsageError
from txlcli.paper import metrics, published
from txlcli.paper.published import CONTEMPORARY, FINETUNED, Result, Table
from txlcli.runs.history import History, Report, lowest
from txlcli.workflows.reproduction.section import Grid, Section

LEAST_LEFT = 0.9  # smallest share of a split that remains after symbols are dropped, whose number is unknown
COLUMNS = ["system", "#param", "valid", "test"]
OTHER_SYMBOLS = "~"
MARKS = {
    CONTEMPORARY: "contemporary with the paper",
    FINETUNED: "with two-step finetuning",
    OTHER_SYMBOLS: "not comparable: the released code drops symbols that others keep.",
}


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """A run among the systems of the paper's table of its corpus."""

    history: History
    table: Table[Result]
    numbers: dict[str, float]
    """Comparable results of the run in the corpus's metric by split, "valid" and "test"."""
    sources: dict[str, str]
    """Command or validation that measured each of them, in words."""
    released: bool
    """True if symbols were dropped as in the released code, on which the paper's own rows are based."""
    reasons: list[str]
    """Why other results are not comparable."""

    def section(self) -> Section:
        """Return the table, the best first; a run without a test result is ranked by its validation result."""
        run, drops = self.history.run, bool(self.numbers) and _dropped_symbols(self.table) > 0
        ranked, shown = [], ""
        for row in self.table.rows:
            marks = row.mark + (OTHER_SYMBOLS if drops and row.ours != self.released else "")
            cells = [f"  {row.label} {marks}".rstrip(), row.parameters or "-", str(row.valid or "-"), f"{row.test}"]
            ranked.append((row.test, cells))
            shown += marks
        if self.numbers:
            results = [f"{self.numbers[split]:.2f}" if split in self.numbers else "-" for split in ("valid", "test")]
            best = self.numbers.get("test", self.numbers.get("valid", 0.0))
            ranked.append((best, [f"> {run.directory}", _short(run.parameters), *results]))
        notes = [f"Table {self.table.number} of the paper, {self.table.metric}, the best first."]
        notes += [f"> {split}: {source}" for split, source in self.sources.items()]
        missing = [] if self.reasons else [split for split in ("valid", "test") if split not in self.numbers]
        command = shlex.join(["txl", "eval", str(run.directory), "--split"])
        notes += [f"> {split}: none yet; {command} {split}" for split in missing]
        notes += [f"not comparable: {reason}" for reason in self.reasons]
        notes += [f"{mark} {text}" for mark, text in MARKS.items() if mark in shown]
        return Section(notes=notes, grids=[Grid(COLUMNS, [cells for _, cells in sorted(ranked)])])


def _short(parameters: int) -> str:
    """Format a count as the paper does: truncated, not rounded."""
    if parameters >= 10**9:
        return f"{parameters // 10**7 / 100:g}B"
    return f"{parameters // 10**6}M" if parameters >= 10**6 else f"{parameters / 1e6:.1g}M"


def corpus_of(history: History) -> str:
    """Return the corpus of a run, as recorded by an evaluation or else from the store's name."""
    store = history.run.settings.corpus.store
    recorded = (row["corpus"] for row in reversed(history.evals) if row.get("corpus"))
    return str(next(recorded, store if store in CORPORA else store.partition("-")[0]))


def _dropped_symbols(table: Table[Result]) -> int:
    """Return the number of symbols that the released code drops from the corpus of a table."""
    rule = CORPORA[str(table.corpus)].released_rule
    return len(rule.dropped) if rule else 0


def rank(history: History) -> Ranking:
    """Rank the run in the paper's table of its corpus."""
    table, run = published.benchmark(corpus_of(history)), history.run
    if table is None:
        raise UsageError(f"{run.directory} was trained on {run.settings.corpus.store}, not a corpus of the paper")
    corpus, dropped = CORPORA[str(table.corpus)], _dropped_symbols(table)
    types, size = corpus.published["types"], run.vocab_size
    released = bool(dropped) and size == types - dropped
    numbers: dict[str, float] = {}
    sources, reasons = {}, []
    if size != types and not released:
        as_released = f", or {types - dropped:,} as released" if dropped else ""
        reasons.append(f"its vocabulary has {size:,} symbols, the benchmark's {types:,} symbols{as_released}")
    for split, report, source in () if reasons else _candidates(history):
        expected, tokens = corpus.published.get(split) or 0, report.get("tokens") or 0
        if expected and corpus.rule.boundary is None:
            expected -= 1  # the first token is not scored
        is_whole = LEAST_LEFT * expected < tokens < expected if released else tokens == expected > 0
        if is_whole and split not in numbers:
            numbers[split], sources[split] = metrics.in_metric(report["loss_nats"], table.metric), source
        elif split not in numbers:
            benchmark = f"the benchmark has {expected:,}" if expected else "the size of the benchmark is unknown"
            reasons.append(f"{split} ({source}): {tokens:,} tokens scored, {benchmark}")
    return Ranking(history=history, table=table, numbers=numbers, sources=sources, released=released, reasons=reasons)


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
