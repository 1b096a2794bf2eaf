"""The paper's numbers, Tables 1 to 10 of Dai et al. (2019), and those of other papers: the rows of published.toml.

Values that no version of the paper prints are None.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, Literal, TypeVar

CONTEMPORARY = "\N{LOZENGE}"
FINETUNED = "\N{DAGGER}"
"""Marks of Tables 1, 4 and 5."""


@dataclass(frozen=True, kw_only=True)
class SystemResult:
    """The result of a system on a benchmark."""

    citation: str | None = None
    """Authors and year, or "Public logs"; None for the paper's own rows ("Ours")."""
    name: str
    parameters: str | None = None
    """Parameter count as printed: "151M", "~5B"."""
    test: float
    valid: float | None = None

    @property
    def label(self) -> str:
        """First cell of the row; the paper's own rows are labelled with its authors."""
        return f"{self.citation or 'Dai et al. (2019)'} - {self.name}"


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult(SystemResult):
    """A row of Tables 1 to 5, or of Table 7, which does not name the split."""

    mark: str = ""
    """CONTEMPORARY or FINETUNED (two steps), as printed."""

    @property
    def ours(self) -> bool:
        """True for the Transformer-XL models of the paper."""
        return self.citation is None


@dataclass(frozen=True, kw_only=True)
class OtherResult(SystemResult):
    """A result that another paper publishes."""

    protocol: str | None = None
    """How the text was scored, if not by a plain pass from left to right; None if its source does not say."""
    source: str
    """Number in arXiv, or the proceedings or the repository."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A row of Tables 6 and 10: perplexity on WikiText-103's validation split."""

    remark: str | None = None
    recurrence: bool
    encoding: Literal["Ours", "Shaw et al. (2018)", "Vaswani et al. (2017)", "Al-Rfou et al. (2018)"]
    loss_part: Literal["full", "half"]
    """Table 10 prints "Partial" for half."""
    ppl_init: float | None = None
    """At the training length; None for the rows that Table 6 adds to its last one."""
    ppl_best: float
    """At the best attention length."""
    attn_len: int
    """The shortest attention length that gives `ppl_best`."""
    backprop_len: int | None = None
    """Tokens through which gradients flow back in training; None for the 151M model, since the paper omits it."""


@dataclass(frozen=True, kw_only=True)
class ContextLength:
    """A row of Table 8: relative effective context length in words."""

    model: str
    group: int
    """1 or 2: models are compared only within their group."""
    recl: list[int]
    """For r = 0.1, 0.5 and 1."""


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A row of Table 9: how many times slower the vanilla model predicts a token."""

    attn_len: int
    slowdown: int


Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Table(Generic[Row]):
    """One table of the paper."""

    number: int
    title: str
    corpus: str | None = None
    """Name in `corpora`; None if the paper does not say."""
    metric: Literal["ppl", "bpc", "recl", "slowdown"]
    split: Literal["valid", "test"] | None = None
    """Split of numbers that do not state it themselves; None if the paper does not say."""
    rows: tuple[Row, ...]


ROW_TYPES: dict[int, type[Any]] = {6: Ablation, 8: ContextLength, 9: Slowdown, 10: Ablation}
"""Types of the rows by table; those of the other tables are a `BenchmarkResult`."""


CONTENT = tomllib.loads((files("txlcli.paper") / "published.toml").read_text(encoding="utf-8"))


def _read_tables() -> dict[int, Table[Any]]:
    """Return the tables of the paper by number."""
    tables = {}
    for facts in CONTENT["tables"]:
        number = facts["number"]
        row_type = ROW_TYPES.get(number, BenchmarkResult)
        facts["rows"] = tuple(row_type(**row) for row in facts["rows"])
        tables[number] = Table(**facts)
    return tables


def _read_others() -> dict[str, tuple[OtherResult, ...]]:
    """Return the results of other papers by corpus."""
    others = {}
    for benchmark in CONTENT["others"]:
        others[benchmark["corpus"]] = tuple(OtherResult(**row) for row in benchmark["rows"])
    return others


TABLES: Mapping[int, Table[Any]] = _read_tables()
BENCHMARKS: Mapping[str, Table[BenchmarkResult]] = {
    str(TABLES[number].corpus): TABLES[number] for number in range(1, 6)
}
"""Tables 1 to 5 by their corpora."""
OTHERS: Mapping[str, tuple[OtherResult, ...]] = _read_others()
"""Results of other papers by corpus: those of Tables 1 to 5, and WikiText-2."""
SLOWDOWN_BY_ATTN_LEN = {row.attn_len: row.slowdown for row in reversed(TABLES[9].rows)}
"""Slowdown (Table 9) by attention length, in rising order."""
