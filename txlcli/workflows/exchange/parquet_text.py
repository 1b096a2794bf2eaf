"""A text column of Parquet and Arrow files, as datasets of the Hugging Face Hub have it: read, and written as Parquet.

Each row is a line or a document, so a line end follows it unless it has one. The rows that txl writes are pieces of one
text and are joined as they are, which a key of the file's metadata says.
"""

import codecs
import mmap
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as arrow
from pyarrow import parquet

from txlcli.corpora.unpack import max_bytes, too_large

COLUMN = "text"
"""Column that is written."""
ROWS = b"txl.rows"
"""Key of the metadata that says what rows are."""
PIECES = b"pieces"
"""Its value for rows that are pieces of one text."""
DELTAS = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
"""Encodings that cannot be read as a dictionary."""
LIMITS = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}
"""Most bytes of a text, and most entries of a list, in the metadata."""
BUFFER = 1 << 20  # bytes of a file that are read at once
BYTES_PER_BATCH = 16 << 20
"""Most text of rows of mean length that is read at once."""
ARROW_BYTES = 8 << 20
"""Bytes of an Arrow file that are converted together."""
MAX_ROWS = 1 << 14
"""Most rows that are read at once."""
MIN_CUT_ROW = 1 << 20  # characters of a part of a line, at least, that is written as a row
TEXT_TYPES = (arrow.string(), arrow.large_string(), arrow.string_view(), arrow.binary(), arrow.large_binary())


@dataclass(frozen=True)
class Columns:
    """Names of the columns of rows, as far as they may have a text."""

    texts: list[str]
    nested: list[str]
    """Columns of lists or structures, such as the messages of a chat."""
    are_pieces: bool = False
    """True if the rows are pieces of one text."""


def columns(path: Path) -> Columns:
    """Return the columns of a file."""
    with _open(path) as file:
        return _columns_of(file.schema_arrow)


def arrow_columns(path: Path) -> Columns:
    """Return the columns of an Arrow file."""
    schema, _ = _open_arrow(path)
    return _columns_of(schema)


def _columns_of(schema: Any) -> Columns:
    """Return the columns of an Arrow schema."""
    texts = [field.name for field in schema if _is_text(field.type)]
    nested = [field.name for field in schema if arrow.types.is_nested(field.type)]
    metadata = schema.metadata or {}
    return Columns(texts, nested, metadata.get(ROWS) == PIECES)


def _is_text(arrow_type: Any) -> bool:
    if arrow.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    return arrow_type in TEXT_TYPES


@contextmanager
def _open(path: Path, **options: Any) -> Iterator[Any]:
    shared = {"buffer_size": BUFFER, "pre_buffer": False, "page_checksum_verification": True, **LIMITS}
    with path.open("rb") as stream, parquet.ParquetFile(stream, **shared, **options) as file:
        yield file


def rows(path: Path, column: str) -> Iterator[bytes | None]:
    """Yield the rows of the column, after comparing its declared size with the limit."""
    with _open(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        declared = sum(group.total_byte_size for group in groups)
        if declared > max_bytes(path):
            raise too_large(path)
        has_deltas = any(_has_deltas(group, column) for group in groups)
        count = max(1, min(MAX_ROWS, BYTES_PER_BATCH * file.metadata.num_rows // max(1, declared)))
    # Few bytes with a dictionary may be many long rows, so rows are read as references to its values.
    with _open(path, read_dictionary=[] if has_deltas else [column]) as file:
        for batch in file.iter_batches(count, columns=[column], use_threads=False):
            yield from _values(batch.column(column))


def _has_deltas(group: Any, column: str) -> bool:
    """Return True if a group of rows encodes the column as differences."""
    chunks = map(group.column, range(group.num_columns))
    return any(chunk.path_in_schema == column and not DELTAS.isdisjoint(chunk.encodings) for chunk in chunks)


def _values(column: Any) -> list[bytes | None]:
    """Return the texts of an Arrow array; None for a row without one."""
    if arrow.types.is_dictionary(column.type):
        distinct = _values(column.dictionary)
        indices = column.indices.to_pylist()
        return [None if index is None else distinct[index] for index in indices]
    if arrow.types.is_string_view(column.type):
        column = column.cast(arrow.large_string())
    texts: list[bytes | None] = column.cast(arrow.large_binary()).to_pylist()
    return texts


def _open_arrow(path: Path) -> tuple[Any, Iterator[Any]]:
    """Return the schema and the batches of an Arrow file, or of a stream as `save_to_disk` writes it."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    source = arrow.BufferReader(mapped)
    if mapped[:4] == b"\xff" * 4:
        stream = arrow.ipc.open_stream(source)
        return stream.schema, _stream_batches(stream, source)
    batches = arrow.ipc.open_file(source)
    return batches.schema, map(batches.get_batch, range(batches.num_record_batches))


def _stream_batches(stream: Any, source: Any) -> Iterator[Any]:
    """Yield the batches of a stream, which must be all that its source has."""
    yield from stream
    if source.tell() < source.size():
        raise arrow.ArrowInvalid(f"byte {source.tell():,} is after the end of the stream")


def arrow_rows(path: Path, column: str) -> Iterator[bytes | None]:
    """Yield the rows of a column of an Arrow file, of which some are converted at a time."""
    _, batches = _open_arrow(path)
    for batch in batches:
        texts = batch.column(column)
        count = max(1, ARROW_BYTES * len(texts) // max(1, texts.nbytes))
        for start in range(0, len(texts), count):
            part = texts.slice(start, count)
            if arrow.types.is_dictionary(part.type):
                part = part.dictionary_decode()
            yield from _values(part)


def write(path: Path, blocks: Callable[[], Iterable[bytes]]) -> None:
    """Write consecutive blocks of a text as rows: its lines with their ends, long ones cut between characters.

    Blocks may end inside a line or a character. They are read again if the text is not UTF-8, which becomes a column of
    binary values.
    """
    try:
        _write(path, codecs.iterdecode(blocks(), "utf-8"), arrow.string())
    except UnicodeDecodeError:
        _write(path, codecs.iterdecode(blocks(), "latin-1"), arrow.binary())


def _write(path: Path, parts: Iterable[str], arrow_type: Any) -> None:
    """Write parts of a text, none of them empty; characters of a binary column are bytes."""
    schema = arrow.schema([(COLUMN, arrow_type)], metadata={ROWS: PIECES})
    encoding = "utf-8" if arrow_type == arrow.string() else "latin-1"
    with (
        path.open("wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for rows in _rows_of(parts):
            column = arrow.array([row.encode(encoding) for row in rows], arrow_type)
            writer.write_batch(arrow.record_batch([column], schema=schema))


def _rows_of(parts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the rows that are complete after each part: lines, and what has become too long to wait for their ends."""
    rest = ""
    for part in parts:
        text = rest + part
        end = text.rfind("\n") + 1
        if end == 0 and len(text) > MIN_CUT_ROW:
            end = len(text)
        rest = text[end:]
        if end:
            yield re.findall(r"[^\n]*\n|[^\n]+", text[:end])
    if rest:
        yield [rest]
