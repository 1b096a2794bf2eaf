"""Unpacks zip, tar and compressed files into a directory; rejects damage, bombs, and members written elsewhere."""

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, Self

from .corpus import CorpusError
from .signatures import BZIP2, GZIP, XZ, ZIP

BLOCK = 1 << 20
SMALL = 64 << 20  # bytes that every archive may unpack to
MAX_RATIO = 20  # of unpacked to packed size, beyond that; text is packed to a third, the best packers reach a tenth
OPENERS: dict[tuple[bytes, int], Callable[[Path], Any]] = {
    (GZIP, 0): gzip.open,
    (BZIP2, 4): bz2.open,
    (XZ, 0): lzma.open,
}
DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
)
"""Exceptions that damaged archives raise in the standard library, besides an OSError without a number."""


def is_archive(path: Path) -> bool:
    """Return True if a file is a zip or tar archive or a compressed file, or begins like one."""
    if not path.is_file():
        return False
    return any(_begins_with(path, *signature) for signature in OPENERS) or _is_zip(path) or _is_tar(path)


def _is_zip(path: Path) -> bool:
    return _begins_with(path, ZIP) or zipfile.is_zipfile(path)


def _begins_with(path: Path, signature: bytes, offset: int = 0) -> bool:
    with path.open("rb") as file:
        return file.read(offset + len(signature))[offset:] == signature


def _open(path: Path, *, packed: bool = False) -> IO[bytes]:
    """Open a file, decompressed if its signature says so; with `packed` it must."""
    for (signature, offset), opener in OPENERS.items():
        if _begins_with(path, signature, offset):
            opened: IO[bytes] = opener(path)
            return opened
    if packed:
        raise ValueError("no known signature")
    return path.open("rb")


def _is_tar(path: Path) -> bool:
    """Return True if a file begins with the header of a tar member; nothing after it is read."""
    try:
        with _open(path) as file:
            tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except (*DAMAGE, OSError):
        return False
    return True


def unpack(archive: Path, directory: Path, wanted: Callable[[str], bool]) -> None:
    """Extract the wanted members of an archive into `directory`. The archive is read to its end and its checksums."""
    try:
        if _is_zip(archive):
            extracted = _unpack_zip(archive, directory, wanted)
        elif _is_tar(archive):
            extracted = _unpack_tar(archive, directory, wanted)
        else:
            extracted = _decompress(archive, directory)
    except RuntimeError as error:  # it is encrypted, or of an unknown method or version
        raise CorpusError(f"{archive}: {error}; unpack it with another program and name the folder") from error
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise CorpusError(f"{archive}: the archive is damaged ({error}); fetch it again") from error
    if not extracted:
        raise CorpusError(f"{archive}: the archive has none of the files that are needed; give the corpus's own")


def _check_name(archive: Path, member: str) -> None:
    # zipfile and tarfile would rename such members, and accept Windows paths on other systems.
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or PureWindowsPath(member).drive:
        raise CorpusError(f'{archive}: the member "{member}" would leave the folder; this archive is not to be trusted')


def _most_bytes(archive: Path) -> int:
    return max(SMALL, MAX_RATIO * archive.stat().st_size)


def _bomb(archive: Path) -> CorpusError:
    return CorpusError(
        f"{archive}: would unpack to more than {_most_bytes(archive) >> 20:,} MiB, far more than its size; "
        "this archive is not to be trusted"
    )


def _unpack_zip(archive: Path, directory: Path, wanted: Callable[[str], bool]) -> int:
    members = []
    with zipfile.ZipFile(archive) as source:
        for member in source.infolist():
            _check_name(archive, member.filename)
            if not member.is_dir() and wanted(member.filename):
                members.append(member)
            else:
                with contextlib.suppress(RuntimeError):  # encrypted, or packed in an unknown way
                    source.open(member).close()  # compares the two names of the member, so that damage hides no file
        if sum(member.file_size for member in members) > _most_bytes(archive):
            raise _bomb(archive)
        for member in members:  # zipfile writes at most the size that the member declares
            source.extract(member, directory)
    return len(members)


class _Bounded(io.RawIOBase):
    """A stream that yields no more bytes than an archive may unpack to."""

    def __init__(self, archive: Path, file: IO[bytes]) -> None:
        self._archive, self._file, self._left = archive, file, _most_bytes(archive)

    def read(self, size: int = -1) -> bytes:
        """Read a block; raise an error beyond the limit."""
        block = self._file.read(min(size, BLOCK) if size >= 0 else BLOCK)
        self._left -= len(block)
        if self._left < 0:
            raise _bomb(self._archive)
        return block


class _Member(tarfile.TarInfo):
    """A member of a tar. tarfile takes a damaged header for the end of the archive, and would lose what follows it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header; a block of zeros ends the archive."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf == bytes(tarfile.BLOCKSIZE):
                raise
            raise tarfile.ReadError(str(error)) from error


def _unpack_tar(archive: Path, directory: Path, wanted: Callable[[str], bool]) -> int:
    extracted, left = 0, _most_bytes(archive)
    with (
        _open(archive) as file,
        tarfile.open(fileobj=(stream := _Bounded(archive, file)), mode="r|", tarinfo=_Member) as source,
    ):
        source.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have no filters
        for member in source:
            _check_name(archive, member.name)
            if member.issparse() or not (member.isfile() or member.isdir()):
                raise CorpusError(f'{archive}: the member "{member.name}" is a link or device; such are not unpacked')
            left -= member.size
            if left < 0 or member.size < 0:
                raise _bomb(archive)
            if member.isfile() and wanted(member.name):
                source.extract(member, directory)
                extracted += 1
        while stream.read(BLOCK):  # the checksum is at the end
            pass
    return extracted


def _decompress(archive: Path, directory: Path) -> int:
    with _open(archive, packed=True) as content, (directory / archive.stem).open("wb") as file:
        shutil.copyfileobj(_Bounded(archive, content), file, BLOCK)
    return 1
