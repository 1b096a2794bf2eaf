"""Ranks a run among the systems of the paper's Tables 1 to 5, if its numbers are comparable."""

from collections.abc import Iterator
from dataclasses import dataclass
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
class PublishedRank:
    """A run compared with a table of the paper; results that are not comparable are None, with `reasons`."""

    table: Table[Result]
    history: History
    valid: Number | None
    test: Number | None
    released: bool
    """True if symbols were dropped as in the released code, on which the paper's own rows are based."""
    reasons: tuple[str, ...]

    @property
    def result(self) -> float | None:
        """Result that decides the rank: on the test split, or else on the validation split."""
        number = self.test or self.valid
        return number.value if number else None

    @property
    def sources(self) -> dict[str, str | None]:
        """Commands that measured the results, in words, by split."""
        numbers = {"valid": self.valid, "test": self.test}
        return {split: number.source if number else None for split, number in numbers.items()}

    def same_text(self, row: Result) -> bool:
        """Return True if a row of the table was measured on the same symbols as the run."""
        return not dropped_symbols(self.table.corpus or "") or row.ours == self.released


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
    ours: PublishedRank | None = None

    @property
    def rows(self) -> list[RankedRow]:
        """Rows, the best first; a run without a test result is ranked by its validation result."""
        ours = self.ours if self.ours is not None and self.ours.result is not None else None
        rows = [
            RankedRow(**vars(row), label=row.label, same_symbols=ours is None or ours.same_text(row))
            for row in self.table.rows
        ]
        if ours is not None:
            run, test, valid = ours.history.run, ours.test, ours.valid
            rows.append(
                RankedRow(
                    name=run.name,
                    parameters=_short(run.parameters),
                    test=test.value if test else None,
                    valid=valid.value if valid else None,
                    label=str(run.directory),
                    run=True,
                )
            )
        return sorted(rows, key=lambda row: (row.test if row.test is not None else row.valid) or 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl runs published --json` prints."""
        ours, table = self.ours, self.table
        result: dict[str, Any] = metrics.without_infinities(
            {
                "table": table.number,
                "corpus": table.corpus,
                "title": table.title,
                "metric": table.metric,
                "rows": [vars(row) for row in self.rows],
                "ours": ours
                and {
                    "run": str(ours.history.run.directory),
                    "state": ours.history.state,
                    "step": ours.history.step,
                    "comparable": ours.result is not None,
                    "reasons": ours.reasons,
                    "sources": ours.sources,
                },
            }
        )
        return result


def run(subject: str | None, runs_dir: Path) -> PublishedTable:
    """Rank a run, by default the most recent one, in the paper's table of its corpus, or return the table alone."""
    names = [str(table.corpus) for table in published.BENCHMARKS]
    if subject in names and not run_directory.is_run(subject, runs_dir):
        return PublishedTable(table=published.BENCHMARKS[names.index(subject)])
    history = histories.read(run_directory.find(subject, runs_dir))
    rank = published_rank(history)
    if rank is None:
        raise UsageError(
            f"{history.run.directory} was trained on {history.run.settings.corpus.store}, not a corpus of the paper; "
            f'give a run on one of these ({", ".join(names)}), or "txl runs published ptb" for a table alone'
        )
    return PublishedTable(table=rank.table, ours=rank)


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


def published_rank(history: History) -> PublishedRank | None:
    """Rank the run in the paper's table of its corpus; None if the paper does not use that corpus."""
    table = published.benchmark(corpus_of(history))
    if table is None:
        return None
    assert table.corpus is not None
    types, dropped = CORPORA[table.corpus].published["types"], dropped_symbols(table.corpus)
    size = history.run.vocab_size
    released = bool(dropped) and size == types - dropped
    numbers: dict[str, Number] = {}
    reasons = []
    if size != types and not released:
        symbols = f"{types:,} symbols" if not dropped else f"{types:,} symbols, or {types - dropped:,} as released"
        reasons.append(f"its vocabulary has {size:,} symbols, the benchmark's {symbols}")
    for split, report, source in _candidates(history) if not reasons else ():
        expected, tokens = CORPORA[table.corpus].published.get(split) or 0, report.get("tokens") or 0
        if expected and CORPORA[table.corpus].rule.boundary is None:
            expected -= 1  # the first token is not scored
        is_whole = LEAST_LEFT * expected < tokens < expected if released else tokens == expected > 0
        if is_whole:
            numbers.setdefault(split, Number(metrics.in_metric(report["loss_nats"], table.metric), source))
        elif split not in numbers:
            benchmark = f"the benchmark has {expected:,}" if expected else "the size of the benchmark is unknown"
            reasons.append(f"{split} ({source}): {tokens:,} tokens scored, {benchmark}")
    return PublishedRank(
        table=table,
        history=history,
        valid=numbers.get("valid"),
        test=numbers.get("test"),
        released=released,
        reasons=tuple(reasons),
    )


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
