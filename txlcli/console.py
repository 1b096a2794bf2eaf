"""Writes to the terminal: results to stdout, everything else to stderr. No other module does.

Names, notes and texts come from files of others. Characters that control a terminal are written as escapes (`\\x1b`).
Lines are written without Rich, so that --help and errors do not wait for it, and an error needs no memory for it.
"""

import codecs
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TextIO

from txlcli.errors import TxlError
from txlcli.system import launcher
from txlcli.system.command_lines import with_flags
from txlcli.system.escapes import CONTROLS, on_one_line, printable
from txlcli.system.plain_json import as_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MAX_WIDTH = 10_000
MAX_HEIGHT = 100
"""Columns and lines of the console for tables, unless stdout is a terminal with fewer columns."""


def plain(file: TextIO, width: int | None = None, height: int | None = None) -> "Console":
    """Return a console that does not interpret markup, since file names and tokens may contain brackets and colons."""
    from rich.console import Console

    # Created for each use, because test runners replace sys.stdout after this module is imported.
    return Console(file=file, markup=False, emoji=False, width=width, height=height)


_quiet = False


def set_quiet(quiet: bool) -> None:
    """Suppress messages and progress, or show them again; errors are always shown."""
    global _quiet  # noqa: PLW0603 - an option of every command, for all that it writes
    _quiet = quiet


def shows_bars() -> bool:
    """Return True if stderr is a terminal on which a live bar may move."""
    return not _quiet and launcher.is_main() and sys.stderr.isatty()


def say(message: str) -> None:
    """Write one line to stderr unless --quiet is set; of several processes, only rank 0 writes it."""
    if not _quiet:
        warn(message)


def warn(message: str) -> None:
    """Write one line to stderr, also with --quiet: a part of the command has failed, or the user asked for it."""
    if launcher.is_main():
        _write_message(on_one_line(with_flags(message)))


def complain(message: str) -> None:
    """Write `error: ...` to stderr."""
    _write_message(f"error: {on_one_line(with_flags(message))}")


def _write_message(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:  # no training run ends because its terminal or its log can take no message
        give_up(sys.stderr)


def give_up(file: TextIO) -> None:
    """Redirect a standard stream to the null device, so that the exit of the process does not flush to it again."""
    with suppress(OSError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), file.fileno())


def show_line(text: str) -> None:
    """Write one line to stdout, and flush it."""
    show_text(on_one_line(text) + "\n")


def show_text(text: str) -> None:
    """Write a text of several lines to stdout, and flush it."""
    _write(printable(text))


def show_generated(text: str, *, raw: bool = False) -> None:
    """Write a text of a model or a corpus to stdout; only a terminal gets it with escapes, unless it is `raw`."""
    _write(text if raw or not sys.stdout.isatty() else printable(text))


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up(sys.stdout)
        message = f"stdout: cannot be written ({error.strerror}); free some space, or redirect it elsewhere"
        raise TxlError(message) from error


def show_json(result: Any) -> None:
    """Write a result as one JSON object on one line to stdout, in UTF-8, or in ASCII if stdout has another encoding."""
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    text = json.dumps(as_json(result), ensure_ascii=not is_utf8)
    _write(CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def show_result(result: Any, show: Callable[[Any], None], *, json: bool) -> None:
    """Write a result, a dataclass, to stdout: as one JSON object if `json`, else with `show`."""
    if json:
        show_json(result)
    else:
        show(result)


def show_facts(title: str, facts: Mapping[str, object], notes: Sequence[str] = ()) -> None:
    """Write a table of names and values to stdout, without those that are None."""
    rows = [[name, str(fact)] for name, fact in facts.items() if fact is not None]
    show_table(title, ("", ""), rows, notes)


def cell(number: float | None, form: str) -> str:
    """Return a number for a table, in a format such as ",.0f"; "-" for None."""
    if number is None:
        return "-"
    return format(number, form)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Write a table to stdout, the first column left-aligned, the others right-aligned.

    On a terminal that is too narrow, it has no frame, and then lacks its last columns, which a note lists.
    """
    width = MAX_WIDTH
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    cells = [list(map(on_one_line, row)) for row in (columns, *rows)]
    table, count = _fitted_table(cells, width)
    if title:
        show_line(title)
    out = plain(sys.stdout, width, MAX_HEIGHT)
    with out.capture() as rendered:
        out.print(table)
    _write("".join(line.rstrip() + "\n" for line in rendered.get().splitlines()))
    if count < len(columns):
        show_line(f"not shown: {', '.join(columns[count:])}; widen the terminal to see them")
    for note in notes:
        show_line(note)


def _fitted_table(cells: Sequence[Sequence[str]], limit: int) -> tuple["Table", int]:
    """Return a table of at most `limit` columns of text, and how many of its columns it has; row 0 is the heading."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    count = len(widths)
    is_framed = sum(widths) + 3 * count + 1 <= limit
    while not is_framed and count > 2 and sum(widths[:count]) + 2 * (count - 1) > limit:
        count -= 1
    table = Table(show_header=any(cells[0]))
    if not is_framed:
        table.box = box.SIMPLE_HEAD
        table.show_edge = False
        table.pad_edge = False
        table.padding = (0, 1, 0, 0)
    for number, column in enumerate(cells[0][:count]):
        justify: Literal["left", "right"] = "left" if number == 0 else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=count > 2)
    for row in cells[1:]:
        table.add_row(*row[:count])
    return table, count
