"""Reads the rows of a text file: JSON lines, JSON, CSV, TSV, Arrow and Parquet, also compressed or in other encodings.

Rows and text are read in blocks, so that memory does not grow with the file.
"""

import codecs
import csv
import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as arrow

from txlcli.corpora.compressed import DAMAGE, is_damage, open_content
from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.signatures import HEAD, encoding_of, format_in
from txlcli.errors import CorpusInputError, reason_of
from txlcli.system.plain_json import parse_json
from txlcli.workflows.exchange import parquet_text
from txlcli.workflows.exchange.parquet_text import Columns

DELIMITERS = {"CSV": ",", "TSV": "\t", "semicolon-separated": ";", "pipe-separated": "|"}
DECLARATION = "sep="
"""Begins a first line that names the delimiter for Excel, such as "sep=;", and is not a row."""
TEXT = "text"
"""Format of files without rows; also the column that is read if no other is named."""
UNQUOTED = "written without quoting; quotation marks are part of the text"
"""Remark on a file with rows."""
FOR_IDS = "token ids are read with `ids`, from .json, .npy, .npz and .bin"
FIRST_RECORDS = 100
"""Records of JSON whose keys are its columns: the first ones may lack some; rows of a CSV that show its delimiter."""
UTF8 = "utf-8-sig"
"""Reads UTF-8 with or without a byte order mark."""
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
    is_quoted: bool = True
    """False for a file whose quotation marks are part of its texts."""

    @property
    def quoting(self) -> Literal[0, 3]:
        """Meaning of quotation marks in a CSV or TSV, as a constant of `csv`."""
        return csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE


def columns(file: TextFile) -> Columns:
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
            return Columns(_header(_first_rows(stream, file.format, file.quoting)), nested=[])


def delimited_format(file: TextFile) -> str:
    """Return the format of a CSV by the delimiter of its first rows, which a spreadsheet may choose by its language.

    It is not a comma if the first row has none, and another delimiter cuts the first rows into equally many fields, or
    the first line declares another.
    """
    for name in DELIMITERS:
        with _reading(file), _open_text(file) as stream:
            rows = [row for row in _first_rows(stream, name, file.quoting) if row]
        if rows and rows[0] == [DECLARATION, ""]:
            return name
        lengths = [len(row) for row in rows]
        has_columns = len(lengths) > 1 and lengths[0] > 1
        if has_columns and (name == "CSV" or len(set(lengths)) == 1):
            return name
    return "CSV"


def _first_rows(stream: io.TextIOWrapper, name: str, quoting: Literal[0, 3]) -> Iterator[list[str]]:
    """Return the first rows of a format of `DELIMITERS`."""
    csv.field_size_limit(MAX_ROW_LEN)  # a text may be as long as a row
    rows = csv.reader(_lines(stream), delimiter=DELIMITERS[name], quoting=quoting)
    return itertools.islice(rows, FIRST_RECORDS)


def _header(rows: Iterator[list[str]]) -> list[str]:
    """Return the first row, which a declaration of the delimiter may precede."""
    header = next(rows, [])
    if header == [DECLARATION, ""]:
        header = next(rows, [])
    return header


def is_quoted(file: TextFile) -> bool:
    """Return False if the quotation marks of a TSV are part of its texts, which were written without quoting.

    Its delimiter may also be another one than a tab. Then each line has as many fields as the first one, so no text
    contains a delimiter or a line end, but a line is not a row if its quotation marks are those of CSV: one of them
    begins a text that the line does not end. A last line without a line end does not count, since it may be truncated.
    """
    csv.field_size_limit(MAX_ROW_LEN)
    delimiter = DELIMITERS[file.format]
    n_delimiters = None
    marks_are_quotes = True
    with _reading(file), _open_text(file) as stream:
        for line in _lines(stream):
            if line.strip("\r\n") in ("", DECLARATION + delimiter):
                continue
            if n_delimiters is None:
                n_delimiters = line.count(delimiter)
            if n_delimiters == 0 or line.count(delimiter) != n_delimiters:
                return True
            is_complete = line.endswith(("\n", "\r"))
            if '"' in line and is_complete and not _is_row(line, delimiter, n_delimiters + 1):
                marks_are_quotes = False
    return marks_are_quotes


def _is_row(line: str, delimiter: str, n_fields: int) -> bool:
    """Return True if a line is a row whose quotation marks are those of CSV."""
    try:
        return len(next(csv.reader([line], delimiter=delimiter, strict=True))) == n_fields
    except csv.Error:
        return False


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
    if Path(file.path.stem).suffix.lower() == ".bin":
        inside = "a .bin of token ids"
    if file.packing and inside:
        raise CorpusInputError(f"{file.path}: contains another file ({inside}), not text; unpack it first")
    encoding = encoding_of(head)
    if file.encoding is None and encoding:
        raise CorpusInputError(f"{file.path}: {encoding} is not UTF-8; give `encoding` {encoding}")
    return stream


def _open_text(file: TextFile) -> io.TextIOWrapper:
    """Open the characters of a file; bytes that are not UTF-8 are kept as surrogates unless there is an encoding."""
    binary = _open_bytes(file)
    if file.encoding is None:
        return io.TextIOWrapper(binary, encoding=UTF8, errors="surrogateescape", newline="")
    encoding = codecs.lookup(file.encoding).name
    if encoding == "utf-8":
        encoding = UTF8
    return io.TextIOWrapper(binary, encoding=encoding, newline="")


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
            next_step = "repair the file, or fetch it again"
            if file.format == "JSONL" and number == 1:
                next_step += "; rename an array of several lines to .json; write each object to a line of its own"
            raise CorpusInputError(f"{file.path}: {place} is null, or not valid JSON; {next_step}")
        if file.format == "JSONL" and isinstance(value, list) and any(isinstance(item, dict) for item in value):
            raise CorpusInputError(f"{file.path}: {place} is an array of objects; rename the file to .json")
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


def rows(file: TextFile) -> Iterator[bytes | None]:
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
    reader = csv.reader(_lines(stream), delimiter=DELIMITERS[file.format], quoting=file.quoting, strict=True)
    header = _header(reader)
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
