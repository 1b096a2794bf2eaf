"""Results of the Python interface: a dictionary, the rows of a table, and how a notebook shows them."""

import html
from typing import TYPE_CHECKING, Any

from txlcli.errors import TxlError
from txlcli.system.plain_json import as_json

if TYPE_CHECKING:
    import pandas

MAX_SHOWN = 40
"""Rows that a notebook shows."""


class Result:
    """Base class of a result, a dataclass or a list of them; `table` is its own dictionary unless it has rows."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, with the keys that the command prints with --json."""
        return dict(as_json(self))

    def table(self) -> list[dict[str, Any]]:
        """Return the rows of the result, each by column."""
        return [self.to_dict()]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return `table` as a data frame of pandas.

        Raises:
            TxlError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise TxlError("to_pandas() needs pandas; install it, or use table()") from error
        return pandas.DataFrame(self.table())

    def _repr_html_(self) -> str:
        rows = self.table()
        columns: dict[str, None] = {}
        for row in rows:
            columns.update(dict.fromkeys(name for name, value in row.items() if value is not None))
        lines = [_line("th", list(columns))]
        for row in rows[:MAX_SHOWN]:
            lines.append(_line("td", [_cell(row.get(name)) for name in columns]))
        rest = len(rows) - MAX_SHOWN
        more = f"<p>and {rest:,} more rows</p>" if rest > 0 else ""
        return f"<table>{''.join(lines)}</table>{more}"


def _line(tag: str, cells: list[str]) -> str:
    """Return a line of a table in HTML."""
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(value: object) -> str:
    """Return a value as a notebook shows it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
