"""The paper's numbers, Tables 1 to 10 of Dai et al. (2019), as data.

Names and numbers are printed as in the ACL paper. Only the first version of the paper (arXiv 1901.02860v1) has the
validation results of Tables 1 and 5; its test results are the same. Values that no version prints are None.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from txlcli.errors import UsageError

CONTEMPORARY, FINETUNED = "\N{LOZENGE}", "\N{DAGGER}"  # the marks of Tables 1, 4 and 5
TOP_R = (0.1, 0.5, 1.0)
"""Shares r of hard examples, one per column of Table 8."""


@dataclass(frozen=True)
class Result:
    """A row of Tables 1 to 5: a system on a benchmark."""

    citation: str | None
    """Authors and year; None for the paper's own rows ("Ours")."""
    name: str
    parameters: str | None
    """Parameter count as printed: "151M", "~5B"."""
    test: float
    valid: float | None = None
    mark: str = ""
    """CONTEMPORARY or FINETUNED (two steps), as printed."""

    @property
    def ours(self) -> bool:
        """True for the Transformer-XL models of the paper."""
        return self.citation is None

    @property
    def year(self) -> int:
        """Year of publication."""
        return int(re.findall(r"\((\d{4})", self.citation)[0]) if self.citation else 2019

    @property
    def label(self) -> str:
        """First cell of the row; the paper's own rows are labelled with its authors."""
        return f"{self.citation or 'Dai et al. (2019)'} - {self.name}"


@dataclass(frozen=True)
class Ablation:
    """A row of Tables 6 and 10: perplexity on WikiText-103's validation split."""

    remark: str | None
    recurrence: bool
    encoding: Literal["Ours", "Shaw et al. (2018)", "Vaswani et al. (2017)", "Al-Rfou et al. (2018)"]
    loss_part: Literal["full", "half"]
    """Table 10 prints "Partial" for half."""
    ppl_init: float | None
    """At the training length; None for the rows that Table 6 adds to its last one."""
    ppl_best: float
    """At the best attention length."""
    attn_len: int
    """The shortest attention length that gives `ppl_best`."""
    backprop_len: int | None = 128
    """Tokens through which gradients flow back in training; None for the 151M model, since the paper omits it."""

    @property
    def position(self) -> str:
        """Encoding as a value of `model.position`."""
        return POSITIONS[self.encoding]


POSITIONS = MappingProxyType(
    {
        "Ours": "relative",
        "Shaw et al. (2018)": "shaw",
        "Vaswani et al. (2017)": "sinusoid",
        "Al-Rfou et al. (2018)": "learned",
    }
)


@dataclass(frozen=True)
class Method:
    """A row of Table 7: perplexity on One Billion Word; the paper does not name the split."""

    name: str
    ppl: float


@dataclass(frozen=True)
class ContextLength:
    """A row of Table 8: relative effective context length in words."""

    model: str
    group: int
    """1 or 2: models are compared only within their group."""
    recl: tuple[int, int, int]
    """For each r of TOP_R."""


@dataclass(frozen=True)
class Slowdown:
    """A row of Table 9: how many times slower the vanilla model predicts a token."""

    attn_len: int
    slowdown: int


Row = TypeVar("Row")


@dataclass(frozen=True)
class Table(Generic[Row]):
    """One table of the paper."""

    number: int
    title: str
    corpus: str | None
    """Name in `corpora`; None if the paper does not say."""
    metric: Literal["ppl", "bpc", "recl", "slowdown"]
    split: Literal["valid", "test"] | None
    """Split of numbers that do not state it themselves; None if the paper does not say."""
    rows: tuple[Row, ...]


TABLE_1 = Table(
    1,
    "WikiText-103",
    "wt103",
    "ppl",
    "test",
    (
        Result("Grave et al. (2016b)", "LSTM", None, 48.7),
        Result("Bai et al. (2018)", "TCN", None, 45.2),
        Result("Dauphin et al. (2016)", "GCNN-8", None, 44.9),
        Result("Grave et al. (2016b)", "LSTM + Neural cache", None, 40.8),
        Result("Dauphin et al. (2016)", "GCNN-14", None, 37.2),
        Result("Merity et al. (2018)", "QRNN", "151M", 33.0, 32.0),
        Result("Rae et al. (2018)", "Hebbian + Cache", None, 29.9, 29.7),
        Result(None, "Transformer-XL Standard", "151M", 24.0, 23.1),
        Result("Baevski and Auli (2018)", "Adaptive Input", "247M", 20.5, 19.8, CONTEMPORARY),
        Result(None, "Transformer-XL Large", "257M", 18.3, 17.7),
    ),
)

TABLE_2 = Table(
    2,
    "enwik8",
    "enwik8",
    "bpc",
    "test",
    (
        Result("Ha et al. (2016)", "LN HyperNetworks", "27M", 1.34),
        Result("Chung et al. (2016)", "LN HM-LSTM", "35M", 1.32),
        Result("Zilly et al. (2016)", "RHN", "46M", 1.27),
        Result("Mujika et al. (2017)", "FS-LSTM-4", "47M", 1.25),
        Result("Krause et al. (2016)", "Large mLSTM", "46M", 1.24),
        Result("Knol (2017)", "cmix v13", None, 1.23),
        Result("Al-Rfou et al. (2018)", "12L Transformer", "44M", 1.11),
        Result(None, "12L Transformer-XL", "41M", 1.06),
        Result("Al-Rfou et al. (2018)", "64L Transformer", "235M", 1.06),
        Result(None, "18L Transformer-XL", "88M", 1.03),
        Result(None, "24L Transformer-XL", "277M", 0.99),
    ),
)

TABLE_3 = Table(
    3,
    "text8",
    "text8",
    "bpc",
    "test",
    (
        Result("Cooijmans et al. (2016)", "BN-LSTM", None, 1.36),
        Result("Chung et al. (2016)", "LN HM-LSTM", "35M", 1.29),
        Result("Zilly et al. (2016)", "RHN", "45M", 1.27),
        Result("Krause et al. (2016)", "Large mLSTM", "45M", 1.27),
        Result("Al-Rfou et al. (2018)", "12L Transformer", "44M", 1.18),
        Result("Al-Rfou et al. (2018)", "64L Transformer", "235M", 1.13),
        Result(None, "24L Transformer-XL", "277M", 1.08),
    ),
)

TABLE_4 = Table(
    4,
    "One Billion Word",
    "lm1b",
    "ppl",
    "test",
    (
        Result("Shazeer et al. (2014)", "Sparse Non-Negative", "33B", 52.9),
        Result("Chelba et al. (2013)", "RNN-1024 + 9 Gram", "20B", 51.3),
        Result("Kuchaiev and Ginsburg (2017)", "G-LSTM-2", None, 36.0),
        Result("Dauphin et al. (2016)", "GCNN-14 bottleneck", None, 31.9),
        Result("Jozefowicz et al. (2016)", "LSTM", "1.8B", 30.6),
        Result("Jozefowicz et al. (2016)", "LSTM + CNN Input", "1.04B", 30.0),
        Result("Shazeer et al. (2017)", "Low-Budget MoE", "~5B", 34.1),
        Result("Shazeer et al. (2017)", "High-Budget MoE", "~5B", 28.0),
        Result("Shazeer et al. (2018)", "Mesh Tensorflow", "4.9B", 24.0),
        Result("Baevski and Auli (2018)", "Adaptive Input", "0.46B", 24.1, None, CONTEMPORARY),
        Result("Baevski and Auli (2018)", "Adaptive Input", "1.0B", 23.7, None, CONTEMPORARY),
        Result(None, "Transformer-XL Base", "0.46B", 23.5),
        Result(None, "Transformer-XL Large", "0.8B", 21.8),
    ),
)

TABLE_5 = Table(
    5,
    "Penn Treebank",
    "ptb",
    "ppl",
    "test",
    (
        Result("Inan et al. (2016)", "Tied Variational LSTM", "24M", 73.2, 75.7),
        Result("Zilly et al. (2016)", "Variational RHN", "23M", 65.4, 67.9),
        Result("Zoph and Le (2016)", "NAS Cell", "25M", 64.0),
        Result("Merity et al. (2017)", "AWD-LSTM", "24M", 58.8, 60.7),
        Result("Pham et al. (2018)", "Efficient NAS", "24M", 58.6, 60.8),
        Result("Liu et al. (2018)", "Differentiable NAS", "23M", 56.1, 58.3),
        Result("Yang et al. (2017)", "AWD-LSTM-MoS", "22M", 55.97, 58.08),
        Result("Melis et al. (2018)", "Dropout tuning", "24M", 55.3, 57.1),
        Result(None, "Transformer-XL", "24M", 54.52, 56.72),
        Result("Merity et al. (2017)", "AWD-LSTM+Finetune", "24M", 57.3, 60.0, FINETUNED),
        Result("Yang et al. (2017)", "MoS+Finetune", "22M", 54.44, 56.54, FINETUNED),
    ),
)

TABLE_6 = Table(
    6,
    "Ablation study on WikiText-103",
    "wt103",
    "ppl",
    "valid",
    (
        Ablation("Transformer-XL (128M)", True, "Ours", "full", 27.02, 26.77, 500),
        Ablation(None, True, "Shaw et al. (2018)", "full", 27.94, 27.94, 256),
        Ablation(None, True, "Ours", "half", 28.69, 28.33, 460),
        Ablation(None, False, "Ours", "full", 29.59, 29.02, 260),
        Ablation(None, False, "Ours", "half", 30.10, 30.10, 120),
        Ablation(None, False, "Shaw et al. (2018)", "full", 29.75, 29.75, 120),
        Ablation(None, False, "Shaw et al. (2018)", "half", 30.50, 30.50, 120),
        Ablation(None, False, "Vaswani et al. (2017)", "half", 30.97, 30.97, 120),
        Ablation("Transformer (128M)", False, "Al-Rfou et al. (2018)", "half", 31.16, 31.16, 120),
        Ablation("Transformer-XL (151M)", True, "Ours", "full", 23.43, 23.09, 640, None),
        Ablation("Transformer-XL (151M)", True, "Ours", "full", None, 23.16, 450, None),
        Ablation("Transformer-XL (151M)", True, "Ours", "full", None, 23.35, 300, None),
    ),
)

TABLE_7 = Table(
    7,
    "Ablation study on One Billion Word",
    "lm1b",
    "ppl",
    None,
    (
        Method("Ours", 25.2),
        Method("With Shaw et al. (2018) encodings", 25.7),
        Method("Without recurrence", 27.1),
    ),
)

TABLE_8 = Table(
    8,
    "Relative effective context length",
    "wt103",
    "recl",
    None,
    (
        ContextLength("Transformer-XL 151M", 1, (900, 800, 700)),
        ContextLength("QRNN", 1, (500, 400, 300)),
        ContextLength("LSTM", 1, (400, 300, 200)),
        ContextLength("Transformer-XL 128M", 2, (700, 600, 500)),
        ContextLength("- use Shaw et al. (2018) encoding", 2, (400, 400, 300)),
        ContextLength("- remove recurrence", 2, (300, 300, 300)),
        ContextLength("Transformer", 2, (128, 128, 128)),
    ),
)

TABLE_9 = Table(
    9,
    "Slowdown in terms of running time during evaluation",
    None,
    "slowdown",
    None,
    (Slowdown(3800, 1874), Slowdown(2800, 1409), Slowdown(1800, 773), Slowdown(800, 363)),
)

TABLE_10 = Table(
    10,
    "Ablation study on WikiText-103 with the same GPU memory constraints",
    "wt103",
    "ppl",
    "valid",
    (
        Ablation(None, True, "Ours", "full", 27.02, 26.77, 500, 128),
        Ablation(None, True, "Ours", "half", 28.69, 28.33, 460, 128),
        Ablation(None, False, "Ours", "full", 28.43, 27.98, 400, 176),
        Ablation(None, False, "Ours", "half", 28.83, 28.83, 120, 172),
    ),
)

BENCHMARKS: tuple[Table[Result], ...] = (TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5)
"""Tables 1 to 5, one per corpus."""
ABLATIONS_AND_COSTS: tuple[Table[Any], ...] = (TABLE_6, TABLE_7, TABLE_8, TABLE_9, TABLE_10)
"""Tables 6 to 10."""
TABLES: Mapping[int, Table[Any]] = MappingProxyType({one.number: one for one in (*BENCHMARKS, *ABLATIONS_AND_COSTS)})

SLOWDOWN_BY_ATTN_LEN = {row.attn_len: row.slowdown for row in reversed(TABLE_9.rows)}
"""Slowdown (Table 9) by attention length, in rising order."""


def table(number: int) -> Table[Any]:
    """Return the table with that number.

    Raises:
        UsageError: the paper has no such table.
    """
    if number not in TABLES:
        raise UsageError(f"table {number}: the paper's tables of numbers are 1 to {max(TABLES)}")
    return TABLES[number]


def benchmark(corpus: str) -> Table[Result] | None:
    """Return the benchmark table (1 to 5) of a corpus; None if the paper has none."""
    return next((one for one in BENCHMARKS if one.corpus == corpus), None)
