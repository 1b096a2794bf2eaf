"""A text column of Parquet files, as datasets of the Hugging Face Hub have it: read into text files, and written.

Each row is a line or a document, so a line end follows it unless it has one. The rows that txl writes are pieces of one
text and are joined as they are, which a key of the file's metadata says.
"""

import codecs
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as arrow
from pyarrow import compute, parquet

from txlcli.corpora.unpack import MAX_RATIO, SMALL
from txlcli.errors import CorpusInputError, shortened
from txlcli.system import child
from txlcli.system.input_files import check_regular

TEXT = "text"
"""Column that is read if no other is named, and that is written."""
ROWS, PIECES = b"txl.rows", b"pieces"
"""Key and value of the metadata of files whose rows are pieces of one text."""
END_OF_FOOTER = struct.Struct("<I4s")
"""Length of the footer, and a marker."""
ENCRYPTED = b"PARE"
"""Marker of a file whose footer is encrypted."""
DELTAS = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings that are never read as a dictionary."""
KEYS = b'"keyMaterialType"'
"""Part of a footer that names the keys of encrypted columns."""
MAX_FOOTER = 256 << 20
"""Most bytes of a footer."""
BUFFER = 1 << 20  # bytes of a file that are read at once
BYTES_PER_BATCH, MAX_ROWS = 16 << 20, 1 << 14
"""Most text and most rows that are read at once, except for a longer row."""
MAX_EXCESS = 32
"""Times BYTES_PER_BATCH that a batch of values stored by their differences may take: if each value is as long as all
stored bytes of its group."""
LONGEST_ROW = 1 << 20  # bytes of a row that is written
BYTES_PER_GROUP = 32 << 20  # of text in a row group that is written
TEXT_TYPES = (arrow.string(), arrow.large_string(), arrow.string_view(), arrow.binary(), arrow.large_binary())
LEAST_SECONDS, LEAST_BYTES_PER_S, LEAST_GROUPS_PER_S = 5, 2 << 20, 1000
"""Time that the library may compute: a hundredth of its usual bytes and a tenth of its usual row groups per second."""
BYTES_PER_VALUE = 32
"""More than an encoding adds to a value: its length, its level, and its share of headers."""
MAX_LISTED = 10
"""Most columns that an error names."""
DAMAGE = (arrow.ArrowException, OSError, ValueError, KeyError, OverflowError, RuntimeError)


@dataclass(frozen=True)
class ParquetText:
    """The text column of a file."""

    path: Path
    column: str
    is_pieces: bool
    """True if the rows are pieces of one text."""


def open_text(path: Path, column: str | None) -> ParquetText:
    """Find the text column of a file.

    Args:
        path: of the file.
        column: its name; None is "text", or the only column with text.

    Raises:
        CorpusInputError: the file is damaged, or has no such column.
    """
    if not check_regular(path).exists():
        raise CorpusInputError(f"{path}: a link to a file that does not exist; copy the file there, or remove the link")
    _check_footer(path)
    _try_in_copy(path, lambda: _read_metadata(path))
    try:
        schema = parquet.read_schema(path)
    except DAMAGE as error:
        raise _not_read(path, str(error)) from error
    name = _text_column(path, schema, column)
    return ParquetText(path, name, (schema.metadata or {}).get(ROWS) == PIECES)


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
    if column is None:
        column = TEXT if TEXT in names else names[0]
    if schema.names.count(column) > 1:
        raise CorpusInputError(f'{path}: several columns are called "{shortened(column)}"; rename all but one')
    return column


def _is_text(kind: Any) -> bool:
    value = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return value in TEXT_TYPES


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
    return ", ".join(f'"{shortened(name)}"' for name in names[:MAX_LISTED]) + more


def _not_read(path: Path, reason: str) -> CorpusInputError:
    """Return the error for a file that the library refuses: it is encrypted, of an unknown kind, or damaged."""
    reason = " ".join(reason.split())[:160]
    if _is_encrypted(path):
        return CorpusInputError(f"{path}: encrypted, which txl cannot read; write it again without encryption")
    return CorpusInputError(f"{path}: damaged, or no Parquet file ({reason}); fetch it again")


def _check_footer(path: Path) -> None:
    """Refuse a footer that would take much memory: the library reads as many bytes as the file states."""
    length, _ = _end_of_footer(path)
    if MAX_FOOTER < length < path.stat().st_size:
        raise _not_read(path, f"it states a footer of {length:,} bytes, more than {MAX_FOOTER:,}")


def _is_encrypted(path: Path) -> bool:
    """Return True if the footer of a file is encrypted, or names the keys of encrypted columns."""
    length, marker = _end_of_footer(path)
    if marker == ENCRYPTED or length > MAX_FOOTER:
        return marker == ENCRYPTED
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - END_OF_FOOTER.size - length))
        return KEYS in file.read(length)


def _end_of_footer(path: Path) -> tuple[int, bytes]:
    """Return the length that a file states for its footer, and the marker after it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - END_OF_FOOTER.size))
        end = file.read(END_OF_FOOTER.size)
    return END_OF_FOOTER.unpack(end) if len(end) == END_OF_FOOTER.size else (0, b"")


def _try_in_copy(path: Path, function: Callable[[], object], *, groups: int = 0) -> None:
    """Call a function in a copy of this process first: on some damaged files, the library ends the process.

    Args:
        path: of the file.
        function: reads it.
        groups: number of row groups whose values are read.

    Raises:
        CorpusInputError: the copy did not survive.
    """
    seconds = LEAST_SECONDS + path.stat().st_size // LEAST_BYTES_PER_S + groups // LEAST_GROUPS_PER_S
    end = child.end_of(function, cpu_seconds=seconds, seconds=10 * seconds)
    if end is not None:
        raise _not_read(path, f"the library {end}")


def _read_metadata(path: Path) -> None:
    metadata = parquet.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            metadata.row_group(group).column(number)


def extract(
    text: ParquetText, target: Path, *, only_utf8: bool, blank: bytes = b"\n", append: bool = False
) -> tuple[int, int]:
    """Write the text of a file to `target`; return its size in bytes, and the number of rows without a text.

    Args:
        text: the column.
        target: the text file.
        only_utf8: True refuses bytes that are not UTF-8.
        blank: line that is written for an empty row.
        append: True keeps what `target` already has, and writes after it.

    Raises:
        CorpusInputError: the file is damaged, or has much more text than its size allows; or a row is not UTF-8 and
            `only_utf8` is set.
    """
    most = max(SMALL, MAX_RATIO * text.path.stat().st_size)
    least, groups = _stated_size(text)
    if least > most:  # before the library reads a value, which may be as large
        raise _too_large(text, most)
    _try_in_copy(text.path, lambda: _total(text, most), groups=groups)
    size = missing = row = 0
    with target.open("ab" if append else "wb") as file:
        start = file.tell()
        for column in _batches(text):
            if only_utf8:
                _check_utf8(text, column, row)
            row += len(column)
            missing += column.null_count
            size += compute.sum(compute.binary_length(column)).as_py() or 0
            if size > most:
                raise _too_large(text, most)
            rows = column.drop_null().cast(arrow.large_binary()).to_pylist()
            if not text.is_pieces:
                rows = [row if row.endswith(b"\n") else row + b"\n" if row else blank for row in rows]
            elif not file.tell() and rows and rows[0].startswith(codecs.BOM_UTF8):
                file.write(codecs.BOM_UTF8)  # the one that begins a file is skipped
            file.writelines(rows)
        return file.tell() - start, missing


def _check_utf8(text: ParquetText, column: Any, first: int) -> None:
    """Refuse bytes that are not UTF-8.

    Args:
        text: where the column is from.
        column: rows of the file; strings are UTF-8 already.
        first: number of the first row, from 0.
    """
    if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
        return
    for row, value in enumerate(column.to_pylist(), first + 1):
        if value is not None and not is_utf8([value]):
            raise CorpusInputError(
                f'{text.path}: row {row:,} of the column "{shortened(text.column)}" is not valid UTF-8; repair the '
                "file or use --tokenizer byte"
            )


def _too_large(text: ParquetText, most: int) -> CorpusInputError:
    return CorpusInputError(
        f"{text.path}: its text has more than {most:,} bytes, the most for a file of its size; write it as a text file"
    )


def _stated_size(text: ParquetText) -> tuple[int, int]:
    """Return the size of the text as the metadata states it, and the number of row groups.

    The size is that without compression, less what encodings may add.
    """
    size = 0
    try:
        metadata = parquet.read_metadata(text.path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            size += min(_sizes(group, text), default=0) - BYTES_PER_VALUE * group.num_rows
    except DAMAGE as error:  # the name of a chunk may be damaged, too
        raise _not_read(text.path, str(error)) from error
    return size, metadata.num_row_groups


def _sizes(group: Any, text: ParquetText) -> list[int]:
    """Return the sizes, without compression, of the chunks of a group of rows that may be those of the text's column.

    There are two if a field of a structure has the same path, as "b" of "a" has beside the column "a.b".
    """
    return [chunk.total_uncompressed_size for chunk in _chunks(group, text)]


def _has_deltas(group: Any, text: ParquetText) -> bool:
    """Return True if values of a group of rows may be stored by their differences, which cannot be a dictionary."""
    return any(not DELTAS.isdisjoint(chunk.encodings) for chunk in _chunks(group, text))


def _chunks(group: Any, text: ParquetText) -> Iterator[Any]:
    """Yield the chunks of a group of rows that may be those of the text's column."""
    chunks = (group.column(number) for number in range(group.num_columns))
    return (chunk for chunk in chunks if chunk.path_in_schema == text.column)


def _total(text: ParquetText, most: int) -> int:
    """Read a text up to `most` bytes; return its size."""
    size = 0
    for column in _batches(text):
        size += compute.sum(compute.binary_length(column)).as_py() or 0
        if size > most:
            break
    return size


def _batches(text: ParquetText) -> Iterator[Any]:
    """Yield the column in parts of some MiB."""
    options = {"columns": [text.column], "use_threads": False}
    try:
        with _open(text) as file, _open(text, read_dictionary=[text.column]) as dictionaries:
            for group in range(file.metadata.num_row_groups):
                missing = file.metadata.row_group(group).num_rows
                rows = max(1, BYTES_PER_BATCH // _longest(text, dictionaries, group))
                for batch in file.iter_batches(min(rows, MAX_ROWS), row_groups=[group], **options):
                    column = batch.column(text.column)
                    column.validate(full=True)
                    missing -= len(column)
                    yield _decoded(column)
                if missing:
                    raise ValueError(f"{missing:,} rows are missing")
    except DAMAGE as error:
        raise _not_read(text.path, str(error)) from error


def _decoded(column: Any) -> Any:
    """Return an array of a type that has all functions."""
    column = column.dictionary_decode() if arrow.types.is_dictionary(column.type) else column
    return column.cast(arrow.large_string()) if arrow.types.is_string_view(column.type) else column


def _longest(text: ParquetText, file: Any, group: int) -> int:
    """Return the mean size of the rows of a group, or that of the longest value of its dictionary if it is larger.

    Few bytes of a file with a dictionary may be many long rows. So may those of a file whose values are stored by their
    differences; each of them is at most as long as all stored bytes of the group.

    Args:
        text: the column.
        file: opened so that it returns the dictionaries.
        group: number of the group.
    """
    about = file.metadata.row_group(group)
    if not about.num_rows:
        return 1
    sizes = _sizes(about, text)
    if _has_deltas(about, text):
        return max(1, max(sizes) // min(MAX_EXCESS, about.num_rows))
    first = next(file.iter_batches(1, row_groups=[group], columns=[text.column], use_threads=False), None)
    if first is None or not sizes:
        raise ValueError("a group of rows lacks the column")
    column = first.column(text.column)
    values = _decoded(column.dictionary if arrow.types.is_dictionary(column.type) else column)
    return max(1, max(sizes) // about.num_rows, compute.max(compute.binary_length(values)).as_py() or 0)


def _open(text: ParquetText, **options: Any) -> Any:
    return parquet.ParquetFile(
        text.path, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True, **options
    )


def write(path: Path, blocks: Iterable[bytes], *, is_utf8: bool) -> None:
    """Write consecutive blocks of a text as rows: its lines with their ends, long ones cut between characters.

    Args:
        path: of the file.
        blocks: of the text; may end inside a line or a character.
        is_utf8: False writes a column of binary values, for text that is not UTF-8.
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
