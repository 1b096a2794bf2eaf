"""Text in other containers: files with rows, compressed files, and other encodings, as UTF-8 in one text file."""

import codecs
import io
import itertools
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from txlcli.config.settings import COMPRESSED
from txlcli.corpora.compressed import COMPRESSIONS
from txlcli.corpora.directory import reject_two_versions, select_text
from txlcli.corpora.locate import is_companion, is_description, text_files
from txlcli.corpora.signatures import OF_IDS, format_of, reject_other_than_text
from txlcli.corpora.unpack import max_bytes, too_large
from txlcli.errors import CorpusInputError, UsageError, shortened
from txlcli.system.input_files import check_size
from txlcli.workflows.exchange.text_rows import (
    DELIMITERS,
    FOR_IDS,
    TEXT,
    TextFile,
    columns,
    delimited_format,
    is_quoted,
    rows,
)

BY_ENDING = {".json": "JSON", ".jsonl": "JSONL", ".ndjson": "JSONL", ".csv": "CSV", ".tsv": "TSV"}
COLUMNAR = ("Parquet", "Arrow")
MAX_COLUMNS_LISTED = 10


@dataclass(frozen=True)
class Extracted:
    """Facts about a text that was extracted."""

    size: int
    """Bytes."""
    missing: int
    """Number of rows without a text."""
    starts: "array[int]"
    """Offset of each row, if they are wanted."""

    def rows_of(self, text: bytes) -> list[bytes]:
        """Return the rows of this text."""
        return [text[start:end] for start, end in itertools.pairwise([*self.starts, self.size])]


def find(source: Path, column: str | None, encoding: str | None) -> tuple[TextFile, ...]:
    """Return the user files whose text must be extracted, in the order of their names; none for plain text.

    If files of a directory have rows, only these are read. CSV and JSON in a directory that also has text are plain
    text, unless `column` is given; JSON documents next to JSON lines, CSV or token ids describe these.
    """
    files = []
    others = set()
    for path in text_files(source):
        other = format_of(path, "other") if source.is_dir() else None
        if other:
            others.add(other)
        elif path.exists() and path.stat().st_size:
            files.append(_describe(path, encoding))
    if not OF_IDS.isdisjoint(others) and all(is_companion(file.path) for file in files):
        return ()  # the reader of text names the format of the ids
    with_rows = _files_with_rows(files, column)
    reject_two_versions([file.path for file in with_rows or files])
    if encoding is not None and any(file.format in COLUMNAR for file in with_rows):
        raise UsageError(
            f"{source}: `encoding` has no effect on Parquet and Arrow files, whose text is UTF-8; write the column as "
            "strings"
        )
    if with_rows:
        try:
            return tuple(_with_column(file, column) for file in with_rows)
        except CorpusInputError as error:
            if source.is_dir():
                raise CorpusInputError(f"{error}; or move this file out of {source}") from error
            raise
    if any(file.packing or file.encoding for file in files):
        return tuple(replace(file, format=TEXT) for file in files)
    return ()


def _files_with_rows(files: list[TextFile], column: str | None) -> list[TextFile]:
    """Return the files whose rows are read, if any: Parquet and Arrow, else CSV and JSON."""
    columnar = [file for file in files if file.format in COLUMNAR]
    if columnar:
        return columnar
    if column is None and any(map(_is_plain_text, files)):
        return []
    records = [file for file in files if file.format in BY_ENDING.values()]
    if column is not None:
        return records
    lines = [file for file in records if file.format != "JSON"]
    has_markdown = any(file.format == TEXT and not is_description(file.path) for file in files)
    if lines or has_markdown:  # a document of JSON describes rows; next to Markdown it is text
        return lines
    return records


def _is_plain_text(file: TextFile) -> bool:
    return file.format == TEXT and not is_companion(file.path)


def _describe(path: Path, encoding: str | None) -> TextFile:
    """Return a file with its format and packing, without a column."""
    found = format_of(path, "rows", "packed")
    if found == "Arrow":
        return TextFile(path, found)
    if found == "Parquet" or path.suffix.lower() == ".parquet":  # a damaged one, too
        return TextFile(path, "Parquet")
    packing = found if found in COMPRESSIONS else None
    ending = path.suffix.lower()
    if ending not in BY_ENDING and (packing or ending in COMPRESSED):  # a download may unpack "rows.csv.gz"
        ending = Path(path.stem).suffix.lower()
    return TextFile(path, BY_ENDING.get(ending, TEXT), packing, encoding)


def _with_column(file: TextFile, column: str | None) -> TextFile:
    """Return a file with rows and the column of its text: the named one, or "text", or the only one with text.

    The only column of a CSV must be named, since its first row may not be a header; so must the only one next to nested
    columns, which may hold the text: it may be an id.
    """
    if file.format == "CSV":
        file = replace(file, format=delimited_format(file))
    if file.format in DELIMITERS and file.format != "CSV":
        file = replace(file, is_quoted=is_quoted(file))
    found = columns(file)
    names = found.texts
    if not names:
        raise CorpusInputError(
            f"{file.path}: no column has text; write the text as a column of strings, or as a text file; {FOR_IDS}"
        )
    wanted = column or TEXT
    if names.count(wanted) > 1:
        raise CorpusInputError(
            f'{file.path}: several columns are called "{shortened(wanted)}"; rename all but one of them'
        )
    if file.format in DELIMITERS:
        return _with_delimited_column(file, wanted, names)
    if column is None and len(names) == 1 and not found.nested:
        wanted = names[0]
    if wanted not in names:
        message = f'{file.path}: no column "{shortened(wanted)}" has text; give `column` one of: {_listed(names)}'
        if found.nested:
            message += f'; the text of "{shortened(found.nested[0])}", a list or an object, must be extracted first'
        raise CorpusInputError(message)
    return replace(file, column=wanted, is_pieces=found.are_pieces)


def _with_delimited_column(file: TextFile, wanted: str, first_row: list[str]) -> TextFile:
    """Return a CSV and the column of its text: a name in its header, or without a header a number from 1."""
    is_number = wanted.isdecimal() and 1 <= int(wanted) <= len(first_row)
    if wanted in first_row:
        if is_number and first_row[int(wanted) - 1] != wanted:
            raise CorpusInputError(
                f'{file.path}: "{wanted}" in its first row may be the name of a column, and is the number of another; '
                "write a header with other names as the first row"
            )
        return replace(file, column=wanted)
    if is_number:
        return replace(file, column=wanted, has_header=False)
    raise CorpusInputError(
        f"{file.path}: its first row is {_listed(first_row)}; give `column` one of these names if that row is a "
        f"header, else the number of the column, such as 1; the delimiter is {DELIMITERS[file.format]!r}"
    )


def _listed(names: list[str]) -> str:
    """Return the names of columns for a message."""
    return ", ".join(f'"{shortened(name)}"' for name in names[:MAX_COLUMNS_LISTED])


def extract(
    file: TextFile, output: BinaryIO, *, only_utf8: bool, blank: bytes = b"\n", with_starts: bool = False
) -> Extracted:
    """Append the text of a file to an open one, with no more bytes than an archive may unpack to.

    A line end follows each row that has none, unless the rows are pieces; an empty row becomes the line `blank`. With
    `only_utf8`, other bytes are rejected.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    limit = max_bytes(file.path)
    has_rows = bool(file.column) and not file.is_pieces
    starts = array("q")
    n_rows = 0
    missing = 0
    size = 0
    try:
        for row in rows(file):
            n_rows += 1
            if row is None:
                missing += 1
                continue
            if only_utf8:
                decoder.decode(row, final=has_rows)
            if has_rows and with_starts:
                starts.append(size)
            text = row
            if has_rows:
                text = _as_line(row, blank)
            size += output.write(text)
            if size > limit:
                raise too_large(file.path)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        place = "its text"
        if file.column:
            place = f'row {n_rows:,} of the column "{shortened(file.column)}"'
        way = "repair the file, or use `tokenizer` byte"
        if file.format not in COLUMNAR:
            way = f"give its `encoding`, such as cp1252, {way}"
        raise CorpusInputError(f"{file.path}: {place} is not valid UTF-8; {way}") from None
    return Extracted(size, missing, starts)


def text_files_of(source: Path, column: str | None, encoding: str | None) -> list[TextFile]:
    """Return a file, or the files of a folder in the order of their names, each as `txl prepare` reads it."""
    files = list(find(source, column, encoding))
    if column is not None and not any(file.column for file in files):
        raise UsageError(f"{source}: `column` has no effect on text without rows; leave it out")
    if files:
        return files
    if not source.is_dir():
        return [TextFile(source)]
    return [TextFile(path) for path in select_text(source, text_files(source))]


def read_file(file: TextFile, limit: int) -> tuple[bytes, Extracted]:
    """Return the text of a file, of at most `limit` bytes, and what is known of its rows."""
    if not (file.column or file.packing):
        reject_other_than_text(file.path, is_utf8=file.encoding is None)
    check_size(file.path.stat().st_size, limit, str(file.path))
    output = io.BytesIO()
    extracted = extract(file, output, only_utf8=False, with_starts=True)
    check_size(extracted.size, limit, f"{file.path}: its text")
    return output.getvalue(), extracted


def _as_line(row: bytes, blank: bytes) -> bytes:
    """Return a row with a line end; an empty row is the line `blank`."""
    if not row:
        return blank
    return row if row.endswith(b"\n") else row + b"\n"
