"""Options of `txl reproduce`, and the tables and figures that it knows, without PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from txlcli.config.ranges import PositiveInt
from txlcli.errors import UnknownNameError
from txlcli.workflows.options import Options, flag_option, option, seeds_option

TABLES = tuple(f"table{number}" for number in range(1, 11))
FIGURES = tuple(f"figure{number}" for number in range(3, 8))
PAPER_ITEMS = (*TABLES, *FIGURES, "appendix-e")
REPRODUCIBLE = (*PAPER_ITEMS, "frontier")
"""Tables and figures of the paper, and the frontier beyond it."""
ALL_ITEMS = "all"
"""All of the paper."""


def select_items(names: Sequence[str]) -> list[str]:
    """Return the selected tables and figures in the paper's order."""
    known = (*REPRODUCIBLE, ALL_ITEMS)
    for name in names:
        if name not in known:
            raise UnknownNameError("table or figure", name, known, listing='"txl reproduce --list" lists all')
    selected = set(names)
    if ALL_ITEMS in selected:
        selected.update(PAPER_ITEMS)
    return [name for name in REPRODUCIBLE if name in selected]


class ReproduceOptions(Options):
    """Options of `txl reproduce`."""

    scale: Literal["tiny", "small", "paper"] = option(
        "tiny: minutes on two cores; small: one GPU; paper: as published.", default="tiny"
    )
    seeds: PositiveInt = seeds_option()
    out: Path | None = option("Folder of the report [default: reproduction-SCALE].")
    list: bool = flag_option("List the items with their missing training runs, and stop.")

    @property
    def directory(self) -> Path:
        """Directory of the report."""
        return self.out or Path(f"reproduction-{self.scale}")
