"""Options of `txl reproduce`, and the tables and figures that it knows, without PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from txlcli.config.ranges import PositiveInt
from txlcli.errors import UnknownNameError
from txlcli.workflows.options import Options, flag_option, option, seeds_option

PAPER_ITEMS = (*(f"table{n}" for n in range(1, 11)), *(f"figure{n}" for n in range(3, 8)), "appendix-e")
REPRODUCIBLE = (*PAPER_ITEMS, "frontier")
"""Tables and figures of the paper, and the frontier beyond it."""
ALL_ITEMS = "all"
"""All of the paper."""


def select_items(names: Sequence[str]) -> list[str]:
    """Return the selected tables and figures in the paper's order."""
    for name in names:
        if name not in (*REPRODUCIBLE, ALL_ITEMS):
            known, listing = (*REPRODUCIBLE, ALL_ITEMS), '"txl reproduce --list" lists all'
            raise UnknownNameError("table or figure", name, known, listing=listing)
    return [name for name in REPRODUCIBLE if name in names or (ALL_ITEMS in names and name in PAPER_ITEMS)]


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
