"""Section of a report: one table or figure of the paper, reproduced."""

import itertools
import statistics
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from txlcli.workflows.reproduction.models import BLOCKS, MEMORIES, POSITIONS, frontier_part

TABLES = tomllib.loads((files("txlcli.workflows.reproduction") / "tables.toml").read_text(encoding="utf-8"))
"""Models of each item, and the claims about them."""


def parts(item: str) -> tuple[str, ...]:
    """Return the models that a table or figure needs, by their part in the paper."""
    if item == "frontier":
        combinations = itertools.product(MEMORIES, POSITIONS, BLOCKS)
        return tuple(frontier_part(*combination) for combination in combinations)
    return tuple(TABLES["parts"][item])


@dataclass(frozen=True)
class Measured:
    """A number for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return sum(self.values) / len(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} \N{PLUS-MINUS SIGN} {statistics.stdev(self.values):.3f}"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, compared with the reproduced numbers."""

    text: str
    held: bool | None
    """True if the numbers agree; None if they do not decide."""
    detail: str
    """Numbers that decide."""

    @property
    def verdict(self) -> str:
        """Outcome in words."""
        if self.held is None:
            return "undecided"
        return "as in the paper" if self.held else "NOT as in the paper"

    @classmethod
    def of_lower(cls, text: str, better: Measured, worse: Measured) -> "Claim":
        """Check the claim that one number is lower than another."""
        return cls(text, better.mean < worse.mean, f"here {better} and {worse}")


def check_claims(item: str, measured: Mapping[str, Measured]) -> list[Claim]:
    """Check the claims about the models of a table, whose results are given by their part in the paper."""
    claims = []
    for better, worse, text in TABLES["claims"][item]:
        claims.append(Claim.of_lower(text, measured[better], measured[worse]))
    return claims


@dataclass(frozen=True)
class Grid:
    """A table."""

    columns: list[str]
    rows: list[list[str]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """One table or figure of the paper, reproduced."""

    name: str = ""
    """Name on the command line, such as "table6"."""
    title: str = ""
    notes: list[str] = field(default_factory=list)
    """Paragraphs on the substitutes for the paper's models and texts, and on the method."""
    grids: list[Grid] = field(default_factory=list)
    figures: list[list[str]] = field(default_factory=list)
    """File in the report's directory, and caption."""
    texts: list[list[str]] = field(default_factory=list)
    """Title and text of samples."""
    claims: list[Claim] = field(default_factory=list)
    readings: list[str] = field(default_factory=list)
    """Settings of the evaluations, in sentences."""
    commands: list[str] = field(default_factory=list)
    """Commands that reproduce the section by hand."""
    seconds: float = 0.0
    scale: str = ""
    hardware: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """Numbers of the tables."""

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "ReportSection":
        """Restore a section from its dictionary."""
        values = dict(table)
        values["grids"] = [Grid(**grid) for grid in table["grids"]]
        values["claims"] = [Claim(**claim) for claim in table["claims"]]
        return cls(**values)
