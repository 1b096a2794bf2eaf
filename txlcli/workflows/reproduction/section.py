"""Section of a report: one table or figure of the paper, reproduced."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, compared with the reproduced numbers."""

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


@dataclass(frozen=True)
class Grid:
    """A table."""

    columns: list[str]
    rows: list[list[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper, reproduced."""

    name: str
    """Name on the command line, such as "table6"."""
    title: str
    notes: list[str]
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

    def to_table(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "Section":
        """Restore a section from `to_table`."""
        grids = [Grid(**grid) for grid in table["grids"]]
        return cls(**{**table, "grids": grids, "claims": [Claim(**claim) for claim in table["claims"]]})
