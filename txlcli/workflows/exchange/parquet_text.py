"""A text column of Parquet files, as datasets of the Hugging Face Hub have it: read into text files, and written.

Each row is a line or a document, so a line end follows it unless it has one. The rows that txl writes are pieces of one
text and are joined as they are, which a key of the file's metadata says.
"""

import codecs
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as arrow
from pyarrow import parquet

from txlcli.corpora.unpack import max_bytes, too_large

COLUMN = "text"
"""Column that is written."""
ROWS, PIECES = b"txl.rows", b"pieces"
"""Key and value of the metadata of files whose rows are pieces of one text."""
DELTAS = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
"""Encodings that cannot be read as a dictionary."""
LIMITS = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}
"""Most bytes of a text, and most entries of a list, in the metadata."""
BUFFER = 1 << 20  # bytes of a file that are read at once
BYTES_PER_BATCH, MAX_ROWS = 16 << 20, 1 << 14
"""Most text of rows of mean length, and most rows, that are read at once."""
LONGEST_ROW = 1 << 20  # characters of a part of a line, at least, that is written as a row
TEXT_TYPES = (arrow.string(), arrow.large_string(), arrow.string_view(), arrow.binary(), arrow.large_binary())


def columns(path: Path) -> tuple[list[str], bool]:
    """Return the names of the columns of a file that have text; True if its rows are pieces of one text."""
    with _open(path) as file:
        return columns_of(file.schema_arrow)


def columns_of(schema: Any) -> tuple[list[str], bool]:
    """Return the names of the columns of an Arrow schema that have text; True if the rows are pieces of one text."""
    kinds = ((field.name, field.type) for field in schema)
    names = [
        name for name, kind in kinds if (kind.value_type if arrow.types.is_dictionary(kind) else kind) in TEXT_TYPES
    ]
    return names, (schema.metadata or {}).get(ROWS) == PIECES


def _open(path: Path, **options: Any) -> Any:
    return parquet.ParquetFile(
        path, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True, **LIMITS, **options
    )


def rows(path: Path, column: str) -> Iterator[bytes | None]:
    """Yield the rows of the column, after comparing its declared size with the limit."""
    with _open(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        declared = sum(group.total_byte_size for group in groups)
        if declared > max_bytes(path):
            raise too_large(path)
        chunks = (group.column(number) for group in groups for number in range(group.num_columns))
        has_deltas = any(chunk.path_in_schema == column and DELTAS & {*chunk.encodings} for chunk in chunks)
        count = max(1, min(MAX_ROWS, BYTES_PER_BATCH * file.metadata.num_rows // max(1, declared)))
    # Few bytes with a dictionary may be many long rows, so rows are read as references to its values.
    with _open(path, read_dictionary=[] if has_deltas else [column]) as file:
        for batch in file.iter_batches(count, columns=[column], use_threads=False):
            yield from values(batch.column(column))


def values(column: Any) -> list[bytes | None]:
    """Return the texts of an Arrow array; None for a row without one."""
    if arrow.types.is_dictionary(column.type):
        distinct = values(column.dictionary)
        return [None if index is None else distinct[index] for index in column.indices.to_pylist()]
    if arrow.types.is_string_view(column.type):
        column = column.cast(arrow.large_string())
    texts: list[bytes | None] = column.cast(arrow.large_binary()).to_pylist()
    return texts


def write(path: Path, blocks: Callable[[], Iterable[bytes]]) -> None:
    """Write consecutive blocks of a text as rows: its lines with their ends, long ones cut between characters.

    Blocks may end inside a line or a character. They are read again if the text is not UTF-8, which becomes a column of
    binary values.
    """
    try:
        _write(path, codecs.iterdecode(blocks(), "utf-8"), arrow.string())
    except UnicodeDecodeError:
        _write(path, codecs.iterdecode(blocks(), "latin-1"), arrow.binary())


def _write(path: Path, parts: Iterable[str], kind: Any) -> None:
    """Write parts of a text, none of them empty; characters of a binary column are bytes."""
    schema = arrow.schema([(COLUMN, kind)], metadata={ROWS: PIECES})
    encoding, rest = "utf-8" if kind == arrow.string() else "latin-1", ""
    with parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for part in itertools.chain(parts, [""]):
            text = rest + part
            is_row = not part or (len(text) > LONGEST_ROW and "\n" not in text)
            end = len(text) if is_row else text.rfind("\n") + 1
            rows, rest = re.findall(r"[^\n]*\n|[^\n]+", text[:end]), text[end:]
            if rows:
                column = arrow.array([row.encode(encoding) for row in rows], kind)
                writer.write_batch(arrow.record_batch([column], schema=schema))
