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
from collections.abc import Callable
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
"""Classes of the exceptions that damaged files raise in the standard library, if `is_damage`."""
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
        self._content = _content(self._file, compression)

    def readable(self) -> bool:
        """Return True, which the base class does not."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end of the file."""
        try:
            data: bytes = self._content.read(len(buffer))
        except DAMAGE as error:
            if not is_damage(error):
                raise
            size = self._path.stat().st_size
            raise CorpusError(
                f"{self._path}: damaged, or not {self._compression} ({error}, reached byte {self._file.tell():,} of "
                f"{size:,}); fetch or write it again"
            ) from error
        buffer[: len(data)] = data
        return len(data)

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
    """Return False for an error of the system, such as a full disk, which has another number than EINVAL."""
    return getattr(error, "errno", None) in (None, errno.EINVAL)


def _content(file: BinaryIO, compression: str) -> Any:
    """Return the decompressed content of an open file."""
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file)
    if compression == "zstd":
        import pyarrow as arrow

        return arrow.CompressedInputStream(arrow.PythonFile(file, "r"), "zstd")
    return _Streams(file, STREAMS[compression])


class _Streams:
    """The content of consecutive compressed streams, with zeros after each of them as padding."""

    def __init__(self, file: BinaryIO, stream_format: StreamFormat) -> None:
        self._file = file
        self._format = stream_format
        self._decoder = stream_format.new_decoder()
        self._packed = b""
        self._at_end = False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end of the file."""
        data = b""
        while not data and not self._at_end:
            if self._decoder.eof:
                self._begin_stream()
                continue
            packed = b""
            if self._decoder.needs_input:
                packed = self._packed or self._file.read(BLOCK)
                self._packed = b""
                if not packed:
                    raise EOFError("the file ends inside a stream")
            data = self._decoder.decompress(packed, size)
        return data

    def _begin_stream(self) -> None:
        """Begin to read the stream after the padding, if the file does not end."""
        magic = self._format.magic
        rest = self._decoder.unused_data or self._file.read(BLOCK)
        zeros = 0
        while rest and not rest.strip(b"\0"):
            zeros += len(rest)
            rest = self._file.read(BLOCK)
        begin = rest.lstrip(b"\0")
        zeros += len(rest) - len(begin)
        if len(begin) < len(magic):
            begin += self._file.read(BLOCK)
        offset = self._file.tell() - len(begin)
        if zeros % self._format.padding or (begin and not begin.startswith(magic)):
            raise EOFError(f"no stream begins at byte {offset:,}, after a complete one")
        self._packed = begin
        self._decoder = self._format.new_decoder()
        self._at_end = not begin
