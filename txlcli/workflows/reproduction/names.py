"""Names of what can be reproduced: tables and figures of the paper, and the frontier beyond it."""

from collections.abc import Sequence

from txlcli.errors import UnknownNameError

OF_PAPER = (*(f"table{n}" for n in range(1, 11)), *(f"figure{n}" for n in range(3, 8)), "appendix-e")
NAMES = (*OF_PAPER, "frontier")
ALL = "all"
"""All of the paper."""


def select(names: Sequence[str]) -> list[str]:
    """Return the selected names in the paper's order."""
    for name in names:
        if name not in NAMES and name != ALL:
            raise UnknownNameError("table or figure", name, [*NAMES, ALL], listing='"txl reproduce --list" lists all')
    return [name for name in NAMES if name in names or (ALL in names and name in OF_PAPER)]
