"""A text column of Parquet files, as datasets of the Hugging Face Hub have it: read into text files, and written.

Each row is a line or a document, so a line end follows it unless it has one. The rows that txl writes are pieces of one
text and are joined as they are, which a key of the file's metadata says.
"""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as arrow
from pyarrow import parquet

from txlcli.corpora.unpack import max_bytes
from txlcli.errors import CorpusInputError, shortened
from txlcli.system.input_files import check_regular

TEXT = "text"
"""Column that is read if no other is named, and that is written."""
ROWS, PIECES = b"txl.rows", b"pieces"
"""Key and value of the metadata of files whose rows are pieces of one text."""
DELTAS = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings that cannot be read as a dictionary."""
LIMITS = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}
"""Most bytes of a text, and most entries of a list, in the metadata."""
BUFFER = 1 << 20  # bytes of a file that are read at once
BYTES_PER_BATCH, MAX_ROWS = 16 << 20, 1 << 14
"""Most text of rows of mean length, and most rows, that are read at once."""
LONGEST_ROW = 1 << 20  # bytes of a row that is written
BYTES_PER_GROUP = 32 << 20  # of text in a row group that is written
TEXT_TYPES = (arrow.string(), arrow.large_string(), arrow.string_view(), arrow.binary(), arrow.large_binary())
MAX_LISTED = 10
"""Most columns that an error names."""
DAMAGE = (arrow.ArrowException, OSError, ValueError, LookupError, OverflowError, RuntimeError)


@dataclass(frozen=True)
class ParquetText:
    """The text column of a file."""

    path: Path
    column: str
    is_pieces: bool
    """True if the rows are pieces of one text."""


def open_text(path: Path, column: str | None) -> ParquetText:
    """Find the text column of a file: the named one, or "text", or the only column with text."""
    try:
        with _open(check_regular(path)) as file:
            schema = file.schema_arrow
    except DAMAGE as error:
        raise _not_read(path, str(error)) from error
    name = _text_column(path, schema, column)
    return ParquetText(path, name, (schema.metadata or {}).get(ROWS) == PIECES)


def _open(path: Path, **options: Any) -> Any:
    return parquet.ParquetFile(
        path, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True, **LIMITS, **options
    )


def _text_column(path: Path, schema: Any, column: str | None) -> str:
    """Return the name of the column with the text."""
    names = [field.name for field in schema if _is_text(field.type)]
    if not names:
        raise CorpusInputError(f"{path}: no column has text; write the text as a column of strings, or as a text file")
    if column is not None and column not in names:
        fault = "is not text" if column in schema.names else "does not exist"
        raise CorpusInputError(
            f'{path}: the column "{shortened(column)}" {fault}; give --column one of: {_listed(names)}'
        )
    if column is None and TEXT not in names and len(names) != 1:
        raise CorpusInputError(f"{path}: which column is the text? Give --column one of: {_listed(names)}")
    return column or (TEXT if TEXT in names else names[0])


def _is_text(kind: Any) -> bool:
    value = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return value in TEXT_TYPES


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{shortened(name)}"' for name in names[:MAX_LISTED])


def _not_read(path: Path, reason: str) -> CorpusInputError:
    """Return the error for a file that pyarrow cannot read: it is encrypted, of an unknown kind, or damaged."""
    return CorpusInputError(f"{path}: damaged, encrypted, or not a Parquet file ({' '.join(reason.split())[:160]})")


def extract(
    text: ParquetText, target: Path, *, only_utf8: bool, blank: bytes = b"\n", append: bool = False
) -> tuple[int, int]:
    """Write the text of a file to `target`; return its size in bytes, and the number of rows without a text.

    Args:
        text: the column.
        target: the text file.
        only_utf8: True rejects bytes that are not UTF-8.
        blank: line that is written for an empty row.
        append: True keeps what `target` already has, and writes after it.
    """
    most = max_bytes(text.path)
    size = missing = number = 0
    with target.open("ab" if append else "wb") as file:
        start = file.tell()
        for rows in _batches(text, most):
            for row in rows:
                number += 1
                if row is None:
                    missing += 1
                    continue
                size += len(row)
                if size > most:
                    raise _too_large(text, most)
                if only_utf8 and not is_utf8([row]):
                    raise CorpusInputError(
                        f'{text.path}: row {number:,} of the column "{shortened(text.column)}" is not valid UTF-8; '
                        "repair the file or use --tokenizer byte"
                    )
                if text.is_pieces and not file.tell() and row.startswith(codecs.BOM_UTF8):
                    file.write(codecs.BOM_UTF8)  # the one that begins a file is skipped
                file.write(row if text.is_pieces or row.endswith(b"\n") else row + b"\n" if row else blank)
        return file.tell() - start, missing


def _too_large(text: ParquetText, most: int) -> CorpusInputError:
    return CorpusInputError(
        f"{text.path}: its text has more than {most:,} bytes, the most for a file of its size; write it as a text file"
    )


def _batches(text: ParquetText, most: int) -> Iterator[list[bytes | None]]:
    """Yield the rows of the column, many at a time, after comparing its declared size with the limit."""
    try:
        with _open(text.path) as file:
            metadata = file.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            declared = sum(group.total_byte_size for group in groups)
            if declared > most:
                raise _too_large(text, most)
            next(file.iter_batches(1, columns=[text.column]), None)  # encrypted metadata would end the process below
            chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        has_deltas = any(
            chunk.path_in_schema == text.column and not DELTAS.isdisjoint(chunk.encodings) for chunk in chunks
        )
        rows = max(1, min(MAX_ROWS, BYTES_PER_BATCH * metadata.num_rows // max(1, declared)))
        missing = metadata.num_rows
        # Few bytes with a dictionary may be many long rows, so rows are read as references to its values.
        with _open(text.path, read_dictionary=[] if has_deltas else [text.column]) as file:
            for batch in file.iter_batches(rows, columns=[text.column], use_threads=False):
                column = batch.column(text.column)
                column.validate(full=True)
                missing -= len(column)
                yield _rows(column)
        if missing:
            raise ValueError(f"{missing:,} rows are missing")
    except DAMAGE as error:
        raise _not_read(text.path, str(error)) from error


def _rows(column: Any) -> list[bytes | None]:
    if arrow.types.is_dictionary(column.type):
        values = _rows(column.dictionary)
        return [None if index is None else values[index] for index in column.indices.to_pylist()]
    if arrow.types.is_string_view(column.type):
        column = column.cast(arrow.large_string())
    rows: list[bytes | None] = column.cast(arrow.large_binary()).to_pylist()
    return rows


def write(path: Path, blocks: Iterable[bytes], *, is_utf8: bool) -> None:
    """Write consecutive blocks of a text as rows: its lines with their ends, long ones cut between characters.

    Blocks may end inside a line or a character. Text that is not UTF-8 becomes a column of binary values.
    """
    kind = arrow.string() if is_utf8 else arrow.binary()
    schema = arrow.schema([(TEXT, kind)], metadata={ROWS: PIECES})
    with parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for rows in _groups(_pieces(blocks)):
            column = arrow.array(rows, arrow.binary())
            writer.write_batch(arrow.record_batch([column.cast(kind)], schema=schema))


def _pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text, and the parts of long lines."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (piece for line in lines for piece in _short(line + b"\n"))
        if len(rest) > LONGEST_ROW:
            *pieces, rest = _short(rest)
            yield from pieces
    yield from _short(rest)


def _short(line: bytes) -> Iterator[bytes]:
    """Yield the parts of a line, none of which ends inside a character."""
    start = 0
    while start < len(line):
        stop = start + LONGEST_ROW
        while start + LONGEST_ROW - 4 < stop < len(line) and line[stop] & 0xC0 == 0x80:
            stop -= 1
        yield line[start:stop]
        start = stop


def _groups(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece)
        if size >= BYTES_PER_GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def is_utf8(blocks: Iterable[bytes]) -> bool:
    """True if consecutive blocks are UTF-8 text together."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in blocks:
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
