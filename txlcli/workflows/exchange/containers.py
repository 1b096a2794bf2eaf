"""Text in other containers: rows of JSON lines, CSV, TSV, Arrow and Parquet, compressed files, and other encodings.

Everything is read in blocks and written as UTF-8 into a text file, so that memory does not grow with the file.
"""

import codecs
import csv
import io
import itertools
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as arrow

from txlcli.corpora.compressed import COMPRESSIONS, DAMAGE, is_damage, open_content
from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.directory import select_text
from txlcli.corpora.locate import is_companion, text_files
from txlcli.corpora.signatures import HEAD, OF_IDS, encoding_of, format_in, format_of, reject_other_than_text
from txlcli.corpora.unpack import max_bytes, too_large
from txlcli.errors import CorpusInputError, UsageError, reason_of, shortened
from txlcli.system.input_files import check_size, read_bytes
from txlcli.system.plain_json import parse_json
from txlcli.workflows.exchange import parquet_text
from txlcli.workflows.exchange.parquet_text import Columns

BY_ENDING = {".json": "JSON", ".jsonl": "JSONL", ".ndjson": "JSONL", ".csv": "CSV", ".tsv": "TSV"}
DELIMITERS = {"CSV": ",", "TSV": "\t", "semicolon-separated": ";", "pipe-separated": "|"}
TEXT = "text"
"""Format of files without rows; also the column that is read if no other is named."""
FOR_IDS = "token ids are read with `ids`, from .json, .npy, .npz and .bin"
MAX_COLUMNS_LISTED = 10
FIRST_RECORDS = 100
"""Records of JSON whose keys are its columns: the first ones may lack some; rows of a CSV that show its delimiter."""
BLOCK = 1 << 20  # bytes or characters that are read at once
MAX_ROW_LEN = 64 << 20
"""Most characters of a line or a field."""


@dataclass(frozen=True)
class TextFile:
    """A file, and the way to its text."""

    path: Path
    format: str = TEXT
    """JSONL, JSON for one array, one of `DELIMITERS`, Arrow, Parquet, or text."""
    packing: str | None = None
    """Compression of the whole file; None for others."""
    encoding: str | None = None
    """Encoding of its characters; None is UTF-8."""
    column: str = ""
    """Column of the text; empty for a file without rows."""
    is_pieces: bool = False
    """True if the rows are pieces of one text."""
    has_header: bool = True
    """False for a CSV whose first row is text, so that `column` is a number from 1."""


@dataclass(frozen=True)
class Written:
    """Text that was written."""

    size: int
    """Bytes."""
    missing: int
    """Number of rows without a text."""
    starts: "array[int]"
    """Offset of each row, if they are wanted."""


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
    with_rows = [file for file in files if file.format in ("Parquet", "Arrow")]
    if not with_rows and (column is not None or not any(map(_is_plain_text, files))):
        records = [file for file in files if file.format in BY_ENDING.values()]
        with_rows = [file for file in records if file.format != "JSON" or column is not None] or records
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


def _is_plain_text(file: TextFile) -> bool:
    return file.format == TEXT and not is_companion(file.path)


def _describe(path: Path, encoding: str | None) -> TextFile:
    """Return a file with its format and packing, without a column."""
    found = format_of(path, "rows", "packed")
    if found == "Arrow":
        return TextFile(path, found)
    if found == "Parquet" or path.suffix.lower() == ".parquet":  # a damaged one, too
        return TextFile(path, "Parquet")
    packing = None
    ending = path.suffix
    if found in COMPRESSIONS:
        packing = found
        ending = Path(path.stem).suffix
    return TextFile(path, BY_ENDING.get(ending.lower(), TEXT), packing, encoding)


def _with_column(file: TextFile, column: str | None) -> TextFile:
    """Return a file with rows and the column of its text: the named one, or "text", or the only one with text.

    The only column of a CSV must be named, since its first row may not be a header; so must the only one next to nested
    columns, which may hold the text: it may be an id.
    """
    if file.format == "CSV":
        file = replace(file, format=_delimited_format(file))
    columns = _columns(file)
    names = columns.texts
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
    if column is None and len(names) == 1 and not columns.nested:
        wanted = names[0]
    if wanted not in names:
        message = f'{file.path}: no column "{shortened(wanted)}" has text; give `column` one of: {_listed(names)}'
        if columns.nested:
            message += f'; the text of "{shortened(columns.nested[0])}", a list or an object, must be extracted first'
        raise CorpusInputError(message)
    return replace(file, column=wanted, is_pieces=columns.are_pieces)


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


def _columns(file: TextFile) -> Columns:
    """Return the columns of a file, those of JSON by its first records."""
    with _reading(file):
        if file.format == "Parquet":
            return parquet_text.columns(file.path)
        if file.format == "Arrow":
            return parquet_text.arrow_columns(file.path)
        with _open_text(file) as stream:
            if file.format in ("JSONL", "JSON"):
                values = dict[str, object]()  # the first one of each column
                for _, record in itertools.islice(_json_records(file, stream), FIRST_RECORDS):
                    for name, value in record.items():
                        if values.get(name) is None:
                            values[name] = value
                texts = [name for name, value in values.items() if isinstance(value, str | None)]
                nested = [name for name, value in values.items() if isinstance(value, list | dict)]
                return Columns(texts, nested)
            return Columns(next(_first_rows(stream, file.format), []), nested=[])


def _delimited_format(file: TextFile) -> str:
    """Return the format of a CSV by the delimiter of its first rows, which a spreadsheet may choose by its language.

    It is not a comma if the first row has none, and another delimiter cuts the first rows into equally many fields.
    """
    for name in DELIMITERS:
        with _reading(file), _open_text(file) as stream:
            lengths = [len(row) for row in _first_rows(stream, name) if row]
        has_columns = len(lengths) > 1 and lengths[0] > 1
        if has_columns and (name == "CSV" or len(set(lengths)) == 1):
            return name
    return "CSV"


def _first_rows(stream: io.TextIOWrapper, name: str) -> Iterator[list[str]]:
    """Return the first rows of a format of `DELIMITERS`."""
    csv.field_size_limit(MAX_ROW_LEN)  # a text may be as long as a row
    rows = csv.reader(_lines(stream), delimiter=DELIMITERS[name])
    return itertools.islice(rows, FIRST_RECORDS)


@contextmanager
def _reading(file: TextFile) -> Iterator[None]:
    """Report a file that cannot be read or decoded as an error of the user's input."""
    try:
        yield
    except UnicodeError as error:
        raise CorpusInputError(
            f"{file.path}: not valid {file.encoding or 'UTF-8'} ({error}); give the `encoding` of its text"
        ) from error
    except CorpusError as error:
        raise CorpusInputError(str(error)) from error
    except (*DAMAGE, csv.Error, arrow.ArrowException, LookupError, RuntimeError) as error:
        if not is_damage(error):
            raise
        message = f"{file.path}: damaged, or not {file.packing or file.format} ({reason_of(error)})"
        if isinstance(error, csv.Error):
            message += "; write each quotation mark inside a quoted text twice"
        raise CorpusInputError(message) from error


def _open_bytes(file: TextFile) -> "io.BufferedReader[Any]":
    """Open the unpacked bytes of a file."""
    stream = open_content(file.path, file.packing)
    head = stream.peek(HEAD)[:HEAD]
    inside = format_in(head, "packed", "rows", "other")
    if file.packing and inside:
        raise CorpusInputError(f"{file.path}: contains another file ({inside}), not text; unpack it first")
    encoding = encoding_of(head)
    if file.encoding is None and encoding:
        raise CorpusInputError(f"{file.path}: {encoding} is not UTF-8; give `encoding` {encoding}")
    return stream


def _open_text(file: TextFile) -> io.TextIOWrapper:
    """Open the characters of a file; bytes that are not UTF-8 are kept as surrogates unless there is an encoding."""
    binary = _open_bytes(file)
    if file.encoding:
        return io.TextIOWrapper(binary, encoding=file.encoding, newline="")
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _lines(stream: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines, cut where they are too long for a row, which their reader rejects."""
    return iter(lambda: stream.readline(MAX_ROW_LEN + 1), "")


def _json_records(file: TextFile, stream: io.TextIOWrapper) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the place of each line, or of each item of an array, such as "line 1", and its object."""
    unit = "line"
    if file.format == "JSON" and not _begins_with_object(file):
        unit = "item"
        values = _json_items(file, stream)
    else:
        values = _json_lines(stream)
    for number, value in values:
        place = f"{unit} {number:,}"
        if value is None:
            raise CorpusInputError(
                f"{file.path}: {place} is null, or not valid JSON; repair the file, or fetch it again"
            )
        if not isinstance(value, dict):
            raise CorpusInputError(f'{file.path}: {place} is not an object, such as {{"text": "..."}}; {FOR_IDS}')
        yield place, value


def _begins_with_object(file: TextFile) -> bool:
    """Return True if the first line of a JSON file is an object, so that the others are, too."""
    with _open_text(file) as stream:
        lines = itertools.dropwhile(str.isspace, _lines(stream))
        return isinstance(_parsed(next(lines, "")), dict)


def _json_lines(stream: io.TextIOWrapper) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line that is not blank, and its value."""
    for number, line in enumerate(_lines(stream), 1):
        if not line.isspace():
            yield number, _parsed(line)


def _json_items(file: TextFile, stream: io.TextIOWrapper) -> Iterator[tuple[int, Any]]:
    """Yield the number of each item of an array, and the item; a document is one item."""
    text = stream.read(MAX_ROW_LEN + 1)
    if len(text) > MAX_ROW_LEN:
        raise CorpusInputError(
            f"{file.path}: an array of more than {MAX_ROW_LEN >> 20} MiB; write its items as JSON lines"
        )
    items = _parsed(text)
    if items is None:
        raise CorpusInputError(f"{file.path}: not valid JSON; repair it, or fetch it again; JSON lines need line ends")
    if not isinstance(items, list):
        items = [items]
    yield from enumerate(items, 1)


def _parsed(text: str) -> Any:
    """Return the value of JSON; None if it is not JSON."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _rows(file: TextFile) -> Iterator[bytes | None]:
    """Yield the rows of a file, or blocks of its text; None is a row without a text."""
    with _reading(file):
        if file.format == "Parquet":
            yield from parquet_text.rows(file.path, file.column)
        elif file.format == "Arrow":
            yield from parquet_text.arrow_rows(file.path, file.column)
        elif file.format == TEXT and file.encoding is None:
            with _open_bytes(file) as binary:
                yield from iter(lambda: binary.read(BLOCK), b"")
        else:
            with _open_text(file) as stream:
                yield from map(_encode, _texts(file, stream))


def _texts(file: TextFile, stream: io.TextIOWrapper) -> Iterator[str | None]:
    if file.format == TEXT:
        return iter(lambda: stream.read(BLOCK), "")
    if file.format in ("JSONL", "JSON"):
        return _json_texts(file, stream)
    return _delimited_texts(file, stream)


def _json_texts(file: TextFile, stream: io.TextIOWrapper) -> Iterator[str | None]:
    for place, record in _json_records(file, stream):
        text = record.get(file.column)
        if not isinstance(text, str | None):
            raise CorpusInputError(f'{file.path}: "{file.column}" of {place} is not a text; repair it')
        yield text


def _delimited_texts(file: TextFile, stream: io.TextIOWrapper) -> Iterator[str]:
    reader = csv.reader(_lines(stream), delimiter=DELIMITERS[file.format], strict=True)
    header = next(reader, [])
    if file.has_header:
        index = header.index(file.column)
    else:
        index = int(file.column) - 1
        yield header[index]
    for fields in reader:
        if not fields:
            continue
        if len(fields) != len(header):
            raise CorpusInputError(
                f"{file.path}: the row that ends on line {reader.line_num:,} has {len(fields):,} fields, the first "
                f"one {len(header):,}; quote texts that contain a delimiter or a line end"
            )
        yield fields[index]


def _encode(text: str | None) -> bytes | None:
    """Encode a text; an unpaired surrogate, which JSON can have, becomes the replacement character."""
    if text is None:
        return None
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def extract(
    file: TextFile, output: BinaryIO, *, only_utf8: bool, blank: bytes = b"\n", with_starts: bool = False
) -> Written:
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
        for row in _rows(file):
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
    except UnicodeDecodeError:
        place = "its text"
        if file.column:
            place = f'row {n_rows:,} of the column "{shortened(file.column)}"'
        raise CorpusInputError(
            f"{file.path}: {place} is not valid UTF-8; repair the file or use `tokenizer` byte"
        ) from None
    return Written(size, missing, starts)


def read_file(path: Path, column: str | None, encoding: str | None, limit: int) -> tuple[bytes, int]:
    """Return the text of a file of at most `limit` bytes, as `txl prepare` reads it, and its rows without a text."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file")
    files = find(path, column, encoding)
    if column is not None and not any(file.column for file in files):
        raise UsageError(f"{path}: `column` has no effect on text without rows; leave it out")
    if not files:
        reject_other_than_text(path)
        return read_bytes(path, limit), 0
    check_size(path.stat().st_size, limit, str(path))
    output = io.BytesIO()
    missing = 0
    for file in files:
        missing += extract(file, output, only_utf8=False).missing
    check_size(output.tell(), limit, f"{path}: its text")
    return output.getvalue(), missing


def files_in(folder: Path, column: str | None, encoding: str | None) -> list[Path]:
    """Return the files of a folder that `txl prepare` reads, in the order of their names."""
    with_rows = find(folder, column, encoding)
    if with_rows:
        return [file.path for file in with_rows]
    return select_text(folder, text_files(folder))


def read_records(path: Path, column: str | None, encoding: str | None, limit: int) -> list[bytes]:
    """Return the records of a file whose text has at most `limit` bytes.

    Raises a UsageError for a file without records.
    """
    records = []
    for file in find(path, column, encoding):
        output = io.BytesIO()
        written = extract(file, output, only_utf8=False, with_starts=True)
        check_size(written.size, limit, f"{path}: its text")
        text = output.getvalue()
        records += [text[start:end] for start, end in itertools.pairwise([*written.starts, written.size])]
    if not records:
        raise UsageError(f"{path}: the text has no records; give `documents` blank-lines, or a mark that ends them")
    return records


def _as_line(row: bytes, blank: bytes) -> bytes:
    """Return a row with a line end; an empty row is the line `blank`."""
    if not row:
        return blank
    return row if row.endswith(b"\n") else row + b"\n"
