"""Reads compressed files to their last byte: consecutive streams are one text, and anything else is damage."""

import bz2
import errno
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .corpus import CorpusError

BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class StreamFormat:
    """A format whose streams are read one after the other."""

    magic: bytes
    """Bytes with which every stream begins."""
    padding: int
    """Zeros after a stream are padding if their number is a multiple of this."""
    new_decoder: Callable[[], Any]


DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    OSError,
)
"""Exceptions that damaged files raise in the standard library; `is_damage` tells those of the system apart."""
STREAMS = {
    "bzip2": StreamFormat(b"BZh", 1, bz2.BZ2Decompressor),
    "xz": StreamFormat(b"\xfd7zXZ\0", 4, lzma.LZMADecompressor),
}
"""Formats of which the standard library loses all that follows the first stream if the next one is damaged."""
COMPRESSIONS = ("gzip", "bzip2", "xz", "zstd")
"""Formats of compressed files that are read."""


class CompressedFile(io.RawIOBase):
    """The content of a compressed file. Damage, or data that is not part of the format, is a CorpusError."""

    def __init__(self, path: Path, compression: str) -> None:
        self._path = path
        self._compression = compression
        self._file = path.open("rb")
        self._blocks = _blocks(self._file, compression)
        self._rest = b""

    def readable(self) -> bool:
        """Return True, which the base class does not."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end of the file."""
        try:
            data = self._rest or next(self._blocks, b"")
        except DAMAGE as error:
            if not is_damage(error):
                raise
            if "requires too much memory" in str(error):
                raise CorpusError(
                    f"{self._path}: its zstd window is larger than 128 MiB; unpack it first, with zstd -d --long=31"
                ) from error
            size = self._path.stat().st_size
            raise CorpusError(
                f"{self._path}: damaged, or not {self._compression} ({error}, reached byte {self._file.tell():,} of "
                f"{size:,}); fetch or write it again"
            ) from error
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        self._rest = data[count:]
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def open_content(path: Path, compression: str | None) -> "io.BufferedReader[Any]":
    """Open a file for reading, or the content of a compressed one."""
    if compression is None:
        return path.open("rb")
    return io.BufferedReader(CompressedFile(path, compression), BLOCK)


def is_damage(error: Exception) -> bool:
    """Return True if damaged data raised an exception, not the system, whose errors have another errno."""
    return getattr(error, "errno", None) in (None, errno.EINVAL)


def _blocks(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """Yield the decompressed content of an open file in blocks, none of them empty."""
    if compression in STREAMS:
        yield from _stream_blocks(file, STREAMS[compression])
        return
    content: Any = gzip.GzipFile(fileobj=file)
    if compression == "zstd":
        import pyarrow as arrow

        content = arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
    while block := content.read(BLOCK):
        yield block


def _stream_blocks(file: BinaryIO, stream_format: StreamFormat) -> Iterator[bytes]:
    """Yield the content of consecutive streams, with zeros after each of them as padding."""
    packed = file.read(BLOCK)
    while packed:
        decoder = stream_format.new_decoder()
        while not decoder.eof:
            if decoder.needs_input and not packed:
                packed = file.read(BLOCK)
                if not packed:
                    raise EOFError("the file ends inside a stream")
            data = decoder.decompress(packed, BLOCK)
            packed = b""
            if data:
                yield data
        packed = _next_stream(file, decoder.unused_data, stream_format)


def _next_stream(file: BinaryIO, unused: bytes, stream_format: StreamFormat) -> bytes:
    """Return the first bytes of the stream after the padding; none if the file ends."""
    rest = unused or file.read(BLOCK)
    zeros = 0
    while rest and not rest.strip(b"\0"):
        zeros += len(rest)
        rest = file.read(BLOCK)
    begin = rest.lstrip(b"\0")
    zeros += len(rest) - len(begin)
    if len(begin) < len(stream_format.magic):
        begin += file.read(BLOCK)
    if zeros % stream_format.padding or (begin and not begin.startswith(stream_format.magic)):
        raise EOFError(f"no stream begins at byte {file.tell() - len(begin):,}, after a complete one")
    return begin
