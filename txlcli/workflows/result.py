"""Results of the Python interface: a dictionary, the rows of a table, and how they are shown."""

import html
from typing import TYPE_CHECKING, Any

from txlcli.errors import TxlError
from txlcli.system.plain_json import as_json

if TYPE_CHECKING:
    import pandas

MAX_SHOWN = 40
"""Rows that are shown."""


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

    def __str__(self) -> str:
        """Return the table as lines of text."""
        lines, rest = self._shown()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = []
        for line in lines:
            cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
            texts.append("  ".join(cells))
        return "\n".join([*texts, rest] if rest else texts)

    def _repr_html_(self) -> str:
        (header, *lines), rest = self._shown()
        texts = [_html_line("th", header)]
        for line in lines:
            texts.append(_html_line("td", line))
        more = f"<p>{rest}</p>" if rest else ""
        return f"<table>{''.join(texts)}</table>{more}"

    def _shown(self) -> tuple[list[list[str]], str]:
        """Return the names of the columns that have values and the cells of the first rows, and how many follow."""
        rows = self.table()
        columns: dict[str, None] = {}
        for row in rows:
            columns.update(dict.fromkeys(name for name, value in row.items() if value is not None))
        lines = [list(columns)]
        for row in rows[:MAX_SHOWN]:
            lines.append([_cell(row.get(name)) for name in columns])
        rest = len(rows) - MAX_SHOWN
        return lines, f"and {rest:,} more rows" if rest > 0 else ""


def _html_line(tag: str, cells: list[str]) -> str:
    """Return a line of a table in HTML."""
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(value: object) -> str:
    """Return a value as it is shown."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
