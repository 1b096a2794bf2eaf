"""Rows of text: the column that has it, and the text file that rows are written into."""

import codecs
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from txlcli.errors import CorpusInputError, shortened

TEXT = "text"
"""Column that is read if no other is named, and that is written."""
MAX_LISTED = 10
"""Most columns that an error names."""


@dataclass(frozen=True)
class TextColumn:
    """The text column of a file."""

    path: Path
    column: str
    is_pieces: bool
    """True if the rows are pieces of one text."""


@dataclass(frozen=True)
class Written:
    """Text that was written."""

    size: int
    """Bytes."""
    missing: int
    """Number of rows without a text."""
    starts: "array[int]"
    """Offset of each row, if they are wanted."""


def choose_column(path: Path, names: Sequence[str], column: str | None) -> str:
    """Return the named column of text, or "text", or the only one."""
    if not names:
        raise CorpusInputError(f"{path}: no column has text; write the text as a column of strings, or as a text file")
    chosen = column or (names[0] if len(names) == 1 else TEXT)
    if chosen not in names:
        listed = ", ".join(f'"{shortened(name)}"' for name in names[:MAX_LISTED])
        raise CorpusInputError(f'{path}: no column "{shortened(chosen)}" has text; give --column one of: {listed}')
    return chosen


def write_rows(
    source: TextColumn,
    rows: Iterable[bytes | None],
    target: Path,
    *,
    most: int,
    only_utf8: bool,
    blank: bytes = b"\n",
    append: bool = False,
    with_starts: bool = False,
) -> Written:
    """Write rows to a text file of at most `most` bytes; None is a row without a text.

    A line end follows each row that has none, unless the rows are pieces; an empty row becomes the line `blank`. With
    `only_utf8`, other bytes are rejected.
    """
    decoder, starts = codecs.getincrementaldecoder("utf-8")(), array("q")
    size = missing = 0
    with target.open("ab" if append else "wb") as file:
        for number, row in enumerate(rows, 1):
            if row is None:
                missing += 1
                continue
            if only_utf8:
                _check_utf8(decoder, row, source, number)
            if source.is_pieces:
                size += file.write(row)
            else:
                if with_starts:
                    starts.append(size)
                size += file.write(row if row.endswith(b"\n") else row + b"\n" if row else blank)
            if size > most:
                raise too_large(source.path, most)
    return Written(size, missing, starts)


def _check_utf8(decoder: codecs.IncrementalDecoder, row: bytes, source: TextColumn, number: int) -> None:
    try:
        decoder.decode(row, final=not source.is_pieces)
    except UnicodeDecodeError:
        place = f'row {number:,} of the column "{shortened(source.column)}"' if source.column else "its text"
        raise CorpusInputError(
            f"{source.path}: {place} is not valid UTF-8; repair the file or use --tokenizer byte"
        ) from None


def too_large(path: Path, most: int) -> CorpusInputError:
    """Return the error for a file whose text is far larger than itself."""
    return CorpusInputError(
        f"{path}: its text has more than {most:,} bytes, the most for a file of its size; write it as a text file"
    )
