"""Ranks a run among the systems of the paper's Tables 1 to 5, if its numbers are comparable."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txlcli.corpora import CORPORA
from txlcli.errors import UsageError
from txlcli.paper import metrics, published
from txlcli.paper.published import Result, Table
from txlcli.runs import history as histories
from txlcli.runs import run_directory
from txlcli.runs.history import History, Report, lowest

LEAST_LEFT = 0.9  # smallest share of a split that remains after symbols are dropped, whose number is unknown


@dataclass(frozen=True)
class Number:
    """A comparable result of a run."""

    value: float
    """Result in the corpus's metric."""
    source: str
    """Command or validation that measured it, in words."""


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    """A row of the table: a system of the paper, or the run."""

    citation: str | None = None
    name: str
    parameters: str | None
    test: float | None
    valid: float | None
    mark: str = ""
    label: str
    run: bool = False
    same_symbols: bool = True
    """False if it was measured on other symbols than the run."""


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table of the paper, with a row for a run if its results are comparable."""

    table: Table[Result]
    history: History | None = None
    """Course of the run; None for the table alone."""
    numbers: dict[str, Number] = field(default_factory=dict)
    """Comparable results of the run by split, "valid" and "test"."""
    released: bool = False
    """True if symbols were dropped as in the released code, on which the paper's own rows are based."""
    reasons: tuple[str, ...] = ()
    """Why other results are not comparable."""

    @property
    def rows(self) -> list[RankedRow]:
        """Rows, the best first; a run without a test result is ranked by its validation result."""
        rows = [
            RankedRow(**vars(row), label=row.label, same_symbols=not self.numbers or self.same_text(row))
            for row in self.table.rows
        ]
        if self.numbers and self.history:
            run, values = self.history.run, {split: number.value for split, number in self.numbers.items()}
            rows.append(
                RankedRow(
                    name=run.name,
                    parameters=_short(run.parameters),
                    test=values.get("test"),
                    valid=values.get("valid"),
                    label=str(run.directory),
                    run=True,
                )
            )
        return sorted(rows, key=lambda row: (row.test if row.test is not None else row.valid) or 0.0)

    def same_text(self, row: Result) -> bool:
        """Return True if a row of the table was measured on the same symbols as the run."""
        return not dropped_symbols(self.table.corpus or "") or row.ours == self.released

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl runs published --json` prints."""
        table, past = self.table, self.history
        ours = past and {
            "run": str(past.run.directory),
            "state": past.state,
            "step": past.step,
            "comparable": bool(self.numbers),
            "reasons": self.reasons,
            "sources": dict.fromkeys(("valid", "test")) | {split: n.source for split, n in self.numbers.items()},
        }
        facts = {"table": table.number, "corpus": table.corpus, "title": table.title, "metric": table.metric}
        result: dict[str, Any] = metrics.without_infinities(
            {**facts, "rows": [vars(row) for row in self.rows], "ours": ours}
        )
        return result


def run(subject: str | None, runs_dir: Path) -> PublishedTable:
    """Rank a run, by default the most recent one, in the paper's table of its corpus, or return the table alone."""
    tables = {str(table.corpus): table for table in published.BENCHMARKS}
    if subject in tables and not run_directory.is_run(subject, runs_dir):
        return PublishedTable(table=tables[subject])
    history = histories.read(run_directory.find(subject, runs_dir))
    ranked = rank(history)
    if ranked is None:
        raise UsageError(
            f"{history.run.directory} was trained on {history.run.settings.corpus.store}, not a corpus of the paper; "
            f'give a run on one of these ({", ".join(tables)}), or "txl runs published ptb" for a table alone'
        )
    return ranked


def _short(parameters: int) -> str:
    """Format a count as the paper does: truncated, not rounded."""
    if parameters >= 10**9:
        return f"{parameters // 10**7 / 100:g}B"
    return f"{parameters // 10**6}M" if parameters >= 10**6 else f"{parameters / 1e6:.1g}M"


def corpus_of(history: History) -> str:
    """Return the corpus of a run, as recorded by an evaluation or else from the store's name."""
    for row in reversed(history.evals):
        if row.get("corpus"):
            return str(row["corpus"])
    store = history.run.settings.corpus.store
    return store if store in CORPORA else store.partition("-")[0]


def dropped_symbols(corpus: str) -> int:
    """Return the number of symbols that the released code drops from a corpus."""
    rule = CORPORA[corpus].released_rule if corpus in CORPORA else None
    return len(rule.dropped) if rule else 0


def rank(history: History) -> PublishedTable | None:
    """Rank the run in the paper's table of its corpus; None if the paper does not use that corpus."""
    table = published.benchmark(corpus_of(history))
    if table is None:
        return None
    corpus = CORPORA[str(table.corpus)]
    types, dropped, size = corpus.published["types"], dropped_symbols(str(table.corpus)), history.run.vocab_size
    released = bool(dropped) and size == types - dropped
    numbers: dict[str, Number] = {}
    reasons = []
    if size != types and not released:
        as_released = f", or {types - dropped:,} as released" if dropped else ""
        reasons.append(f"its vocabulary has {size:,} symbols, the benchmark's {types:,} symbols{as_released}")
    for split, report, source in _candidates(history) if not reasons else ():
        expected, tokens = corpus.published.get(split) or 0, report.get("tokens") or 0
        if expected and corpus.rule.boundary is None:
            expected -= 1  # the first token is not scored
        is_whole = LEAST_LEFT * expected < tokens < expected if released else tokens == expected > 0
        if is_whole:
            numbers.setdefault(split, Number(metrics.in_metric(report["loss_nats"], table.metric), source))
        elif split not in numbers:
            benchmark = f"the benchmark has {expected:,}" if expected else "the size of the benchmark is unknown"
            reasons.append(f"{split} ({source}): {tokens:,} tokens scored, {benchmark}")
    return PublishedTable(table=table, history=history, numbers=numbers, released=released, reasons=tuple(reasons))


def _candidates(history: History) -> Iterator[tuple[str, Report, str]]:
    """Yield the results that may be quoted, of each split the preferred one first: split, result, source in words."""
    evaluation, validation = lowest(history.evals_of("valid")), history.best_valid
    test, trials = history.test_result
    if evaluation is not None:
        yield "valid", evaluation, _describe_evaluation(evaluation)
    if validation is not None:
        yield "valid", validation, f"validation during training, step {validation['step']:,}"
    if test is not None:
        selected = f", best of {trials} test scores" if trials > 1 else ""
        yield "test", test, _describe_evaluation(test) + selected


def _describe_evaluation(row: Report) -> str:
    context = f"attention length {row['attn_len_max']:,}" if row.get("attn_len_max") else "recurrent state"
    return f"txl eval, {context}, step {row.get('step', 0):,}"
