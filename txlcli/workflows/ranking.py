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
    numbers: dict[str, float] = field(default_factory=dict)
    """Comparable results of the run in the corpus's metric by split, "valid" and "test"."""
    sources: dict[str, str] = field(default_factory=dict)
    """Command or validation that measured each of them, in words."""
    released: bool = False
    """True if symbols were dropped as in the released code, on which the paper's own rows are based."""
    reasons: tuple[str, ...] = ()
    """Why other results are not comparable."""

    @property
    def rows(self) -> list[RankedRow]:
        """Rows, the best first; a run without a test result is ranked by its validation result."""
        drops = bool(self.numbers) and dropped_symbols(self.table.corpus or "") > 0
        rows = [
            RankedRow(**vars(row), label=row.label, same_symbols=not drops or row.ours == self.released)
            for row in self.table.rows
        ]
        if self.numbers and self.history:
            run, parameters = self.history.run, _short(self.history.run.parameters)
            test, valid = map(self.numbers.get, ("test", "valid"))
            label = str(run.directory)
            rows.append(RankedRow(name=run.name, parameters=parameters, test=test, valid=valid, label=label, run=True))
        return sorted(rows, key=lambda row: (row.test if row.test is not None else row.valid) or 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl runs published --json` prints."""
        past = self.history
        ours = past and {
            "run": str(past.run.directory),
            "state": past.state,
            "step": past.step,
            "comparable": bool(self.numbers),
            "reasons": self.reasons,
            "sources": {"valid": None, "test": None, **self.sources},
        }
        facts = {name: getattr(self.table, name) for name in ("corpus", "title", "metric")}
        return {"table": self.table.number, **facts, "rows": self.rows, "ours": ours}


def run(subject: str | None, runs_dir: Path) -> PublishedTable:
    """Rank a run, by default the most recent one, in the paper's table of its corpus, or return the table alone."""
    table = published.benchmark(subject or "")
    if table and not run_directory.is_run(table.corpus or "", runs_dir):
        return PublishedTable(table=table)
    history = histories.read(run_directory.find(subject, runs_dir))
    ranked = rank(history)
    if ranked is None:
        corpora = ", ".join(str(table.corpus) for table in published.BENCHMARKS)
        raise UsageError(
            f"{history.run.directory} was trained on {history.run.settings.corpus.store}, not a corpus of the paper; "
            f'give a run on one of these ({corpora}), or "txl runs published ptb" for a table alone'
        )
    return ranked


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
    return PublishedTable(
        table=table,
        history=history,
        numbers=numbers,
        sources=sources,
        released=released,
        reasons=tuple(reasons),
    )


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
