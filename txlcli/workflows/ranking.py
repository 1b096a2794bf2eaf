"""Whether a run's numbers may stand beside those of the paper's Tables 1 to 5."""

from dataclasses import dataclass

from corpora import CORPORA
from txlcli.paper import metrics, published
from txlcli.paper.published import Result, Table
from txlcli.runs.history import History, Report, lowest

LEAST_LEFT = 0.9  # share of a split that must be left where symbols are dropped; how many these are is not known


@dataclass(frozen=True)
class Number:
    """A result of a run that may be compared."""

    value: float
    """In the corpus's metric."""
    source: str
    """How it was measured, in words."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A run beside a table of the paper; what may not be compared is None, and `reasons` says why."""

    table: Table[Result]
    valid: Number | None
    test: Number | None
    released: bool
    """Whether symbols were dropped as the released code does, which the paper's own rows rest on."""
    reasons: tuple[str, ...]

    @property
    def result(self) -> float | None:
        """What the run is sorted by: its test result, else its validation result."""
        number = self.test or self.valid
        return number.value if number else None

    def same_text(self, row: Result) -> bool:
        """Whether a row of the table was measured on the same symbols as the run."""
        return not dropped_symbols(self.table.corpus or "") or row.ours == self.released


def corpus_of(history: History) -> str:
    """The corpus of a run: as an evaluation found it in the store, else as the store's name says."""
    for row in reversed(history.evals):
        if row.get("corpus"):
            return str(row["corpus"])
    store = history.run.settings.corpus.store
    return store if store in CORPORA else store.partition("-")[0]


def dropped_symbols(corpus: str) -> int:
    """How many symbols the released code drops of a corpus."""
    rule = CORPORA[corpus].released_rule if corpus in CORPORA else None
    return len(rule.dropped) if rule else 0


def standing(history: History) -> Standing | None:
    """The run beside the paper's table of its corpus; None where the paper has no such corpus."""
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
        return Standing(table=table, valid=None, test=None, released=released, reasons=(reason,))
    numbers: dict[str, Number] = {}
    reasons = []
    for split, candidates in _candidates(history).items():
        for report, source in candidates:
            if _whole(table.corpus, split, report.get("tokens"), released=released):
                numbers[split] = Number(metrics.in_metric(report["loss_nats"], table.metric), source)
                break
            reasons.append(f"{split} ({source}): {_part(table.corpus, split, report)}")
    valid, test = numbers.get("valid"), numbers.get("test")
    return Standing(table=table, valid=valid, test=test, released=released, reasons=tuple(reasons))


def _candidates(history: History) -> dict[str, list[tuple[Report, str]]]:
    """For each split the reports that may be quoted, the preferred one first, and how each was measured."""
    evaluation, validation = lowest(history.evals_of("valid")), history.best_valid
    test, readings = history.test_result
    candidates: dict[str, list[tuple[Report, str]]] = {"valid": [], "test": []}
    if evaluation is not None:
        candidates["valid"].append((evaluation, _of_eval(evaluation)))
    if validation is not None:
        candidates["valid"].append((validation, f"validation during training, step {validation['step']:,}"))
    if test is not None:
        chosen = f", the lowest of {readings} readings of test" if readings > 1 else ""
        candidates["test"].append((test, _of_eval(test) + chosen))
    return candidates


def _of_eval(row: Report) -> str:
    how = f"attention length {row['attn_len_max']:,}" if row.get("attn_len_max") else "its state carried along"
    return f"txl eval, {how}, step {row.get('step', 0):,}"


def _expected(corpus: str, split: str) -> int | None:
    """Tokens of a split that the benchmark scores; the first has no context where no boundary begins the text."""
    tokens = CORPORA[corpus].published.get(split)
    if not tokens:
        return None
    return tokens - 1 if CORPORA[corpus].rule.boundary is None else tokens


def _whole(corpus: str, split: str, tokens: int | None, *, released: bool) -> bool:
    expected = _expected(corpus, split)
    if expected is None or tokens is None:
        return False
    return LEAST_LEFT * expected < tokens < expected if released else tokens == expected


def _part(corpus: str, split: str, report: Report) -> str:
    expected = _expected(corpus, split)
    benchmark = f"the benchmark has {expected:,}" if expected else "what the benchmark has is not known"
    return f"{report.get('tokens') or 0:,} tokens scored, {benchmark}"
