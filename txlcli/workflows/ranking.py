"""Ranks a run among the systems of the paper's Tables 1 to 5, if its numbers are comparable."""

import dataclasses
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

    def same_text(self, row: Result) -> bool:
        """Return True if a row of the table was measured on the same symbols as the run."""
        return not dropped_symbols(self.table.corpus or "") or row.ours == self.released


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    """A row of the table: a system of the paper, or the run."""

    citation: str | None
    name: str
    parameters: str | None
    test: float | None
    valid: float | None
    mark: str
    label: str
    run: bool
    same_symbols: bool
    """False if it was measured on other symbols than the run."""


@dataclass(frozen=True, kw_only=True)
class OwnResult:
    """The run, which has a row only if it is comparable."""

    run: str
    state: str
    step: int
    comparable: bool
    reasons: tuple[str, ...]
    """Reasons why results are not comparable."""
    sources: dict[str, str | None]
    """Commands that measured the results, in words, by split."""


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table of the paper with the best row first."""

    table: int
    corpus: str | None
    title: str
    metric: str
    rows: tuple[RankedRow, ...]
    ours: OwnResult | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl runs published --json` prints."""
        result: dict[str, Any] = metrics.without_infinities(dataclasses.asdict(self))
        return result


def run(subject: str | None, runs_dir: Path) -> PublishedTable:
    """Rank a run, by default the most recent one, in the paper's table of its corpus, or return the table alone."""
    names = [str(table.corpus) for table in published.BENCHMARKS]
    if subject in names and not run_directory.is_run(subject, runs_dir):
        table = published.benchmark(subject)
        assert table is not None
        return _table_with(table, [_published_row(row, same_symbols=True) for row in table.rows], None)
    history = histories.read(run_directory.find(subject, runs_dir))
    rank = published_rank(history)
    if rank is None:
        raise UsageError(
            f"{history.run.directory} was trained on {history.run.settings.corpus.store}, not a corpus of the paper; "
            f'give a run on {", ".join(names[:-1])} or {names[-1]}, or "txl runs published ptb" for a table alone'
        )
    is_ranked = rank.result is not None
    rows = [_published_row(row, same_symbols=not is_ranked or rank.same_text(row)) for row in rank.table.rows]
    ours = OwnResult(
        run=str(history.run.directory),
        state=history.state,
        step=history.step,
        comparable=is_ranked,
        reasons=rank.reasons,
        sources={
            split: number.source if number else None for split, number in (("valid", rank.valid), ("test", rank.test))
        },
    )
    return _table_with(rank.table, [*rows, *([_own_row(history, rank)] if is_ranked else [])], ours)


def _table_with(table: Table[Result], rows: list[RankedRow], ours: OwnResult | None) -> PublishedTable:
    return PublishedTable(
        table=table.number,
        corpus=table.corpus,
        title=table.title,
        metric=table.metric,
        # A run without a test result is ranked by its validation result.
        rows=tuple(sorted(rows, key=lambda row: (row.test if row.test is not None else row.valid) or 0.0)),
        ours=ours,
    )


def _published_row(row: Result, *, same_symbols: bool) -> RankedRow:
    return RankedRow(**dataclasses.asdict(row), label=row.label, run=False, same_symbols=same_symbols)


def _own_row(history: History, rank: PublishedRank) -> RankedRow:
    return RankedRow(
        citation=None,
        name=history.run.name,
        parameters=_short(history.run.parameters),
        test=rank.test.value if rank.test else None,
        valid=rank.valid.value if rank.valid else None,
        mark="",
        label=str(history.run.directory),
        run=True,
        same_symbols=True,
    )


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
    if size != types and not released:
        symbols = f"{types:,} symbols" if not dropped else f"{types:,} symbols, or {types - dropped:,} as released"
        reason = f"its vocabulary has {size:,} symbols, the benchmark's {symbols}"
        return PublishedRank(table=table, valid=None, test=None, released=released, reasons=(reason,))
    numbers: dict[str, Number] = {}
    reasons = []
    for split, candidates in _candidates(history).items():
        for report, source in candidates:
            if _is_whole(table.corpus, split, report.get("tokens"), released=released):
                numbers[split] = Number(metrics.in_metric(report["loss_nats"], table.metric), source)
                break
            reasons.append(f"{split} ({source}): {_describe_part(table.corpus, split, report)}")
    valid, test = numbers.get("valid"), numbers.get("test")
    return PublishedRank(table=table, valid=valid, test=test, released=released, reasons=tuple(reasons))


def _candidates(history: History) -> dict[str, list[tuple[Report, str]]]:
    """Return for each split the results that may be quoted, the preferred one first, and their source in words."""
    evaluation, validation = lowest(history.evals_of("valid")), history.best_valid
    test, trials = history.test_result
    candidates: dict[str, list[tuple[Report, str]]] = {"valid": [], "test": []}
    if evaluation is not None:
        candidates["valid"].append((evaluation, _describe_evaluation(evaluation)))
    if validation is not None:
        candidates["valid"].append((validation, f"validation during training, step {validation['step']:,}"))
    if test is not None:
        selected = f", best of {trials} test scores" if trials > 1 else ""
        candidates["test"].append((test, _describe_evaluation(test) + selected))
    return candidates


def _describe_evaluation(row: Report) -> str:
    context = f"attention length {row['attn_len_max']:,}" if row.get("attn_len_max") else "recurrent state"
    return f"txl eval, {context}, step {row.get('step', 0):,}"


def _expected(corpus: str, split: str) -> int | None:
    """Return the number of tokens that the benchmark scores; without an initial boundary, the first is not scored."""
    tokens = CORPORA[corpus].published.get(split)
    if not tokens:
        return None
    return tokens - 1 if CORPORA[corpus].rule.boundary is None else tokens


def _is_whole(corpus: str, split: str, tokens: int | None, *, released: bool) -> bool:
    expected = _expected(corpus, split)
    if expected is None or tokens is None:
        return False
    return LEAST_LEFT * expected < tokens < expected if released else tokens == expected


def _describe_part(corpus: str, split: str, report: Report) -> str:
    expected = _expected(corpus, split)
    benchmark = f"the benchmark has {expected:,}" if expected else "the size of the benchmark is unknown"
    return f"{report.get('tokens') or 0:,} tokens scored, {benchmark}"
