"""Names of the tables and figures of the paper that can be reproduced."""

from collections.abc import Sequence

from txlcli.errors import UnknownNameError

NAMES = (*(f"table{n}" for n in range(1, 11)), *(f"figure{n}" for n in range(3, 8)), "appendix-e")
ALL = "all"


def select(names: Sequence[str]) -> list[str]:
    """Return the selected names in the paper's order.

    Raises:
        UnknownNameError: unknown table or figure.
    """
    for name in names:
        if name not in NAMES and name != ALL:
            raise UnknownNameError("table or figure", name, [*NAMES, ALL], listing='"txl reproduce --list" lists all')
    return [name for name in NAMES if ALL in names or name in names]
