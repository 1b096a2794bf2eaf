"""Unpacks archives into a folder that no member can leave."""

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from corpora.corpus import CorpusError

BLOCK = 1 << 20
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"  # what such files begin with
# What packed files of any kind have near their beginning, and where.
PACKED = (
    (GZIP, 0),
    (ZIP, 0),
    (b"1AY&SY", 4),  # bzip2
    (b"\xfd7zXZ\0", 0),
    (b"\x28\xb5\x2f\xfd", 0),  # zstd
    (b"7z\xbc\xaf\x27\x1c", 0),
    (b"ustar\0", 257),  # tar by POSIX, and GNU's
    (b"ustar  \0", 257),
)


def is_archive(path: Path) -> bool:
    """Whether a file is a zip, tar or gzip archive, by its content; the beginning of a zip or gzip file is one too."""
    if not path.is_file():
        return False
    return _begins(path, GZIP) or _is_zip(path) or (path.stat().st_size > 0 and tarfile.is_tarfile(path))


def refuse_packed(paths: Iterable[Path]) -> None:
    """Refuse archives and compressed files, whose bytes are no text.

    Raises:
        CorpusError: naming the first of them.
    """
    for path in filter(Path.is_file, paths):  # a pipe would wait for its writer
        if is_packed(path):
            raise CorpusError(f"{path}: an archive or compressed file is no text; unpack it first")


def is_packed(path: Path) -> bool:
    """Whether a file begins as packed files do, also those that nothing here unpacks.

    `is_archive` would take a text of zeros for a tar without members.
    """
    with path.open("rb") as file:
        head = file.read(512)
    return any(head.startswith(mark, offset) for mark, offset in PACKED)


def _is_zip(path: Path) -> bool:
    return _begins(path, ZIP) or zipfile.is_zipfile(path)


def _begins(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def unpack(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Write the wanted members of an archive below `folder`.

    Raises:
        CorpusError: the archive is damaged, has a member that would leave the folder or is a link, or nothing wanted.
    """
    try:
        if _is_zip(archive):
            written = _unpack_zip(archive, folder, wanted)
        elif _is_tar(archive):
            written = _unpack_tar(archive, folder, wanted)
        else:
            written = _unpack_gzip(archive, folder)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CorpusError(f"{archive}: the archive is damaged ({error}); fetch it again") from error
    if not written:
        raise CorpusError(f"{archive}: the archive has none of the files that are needed; give the corpus's own")


def _is_tar(archive: Path) -> bool:
    try:
        return tarfile.is_tarfile(archive)
    except (EOFError, zlib.error):
        return False


def _inside(archive: Path, folder: Path, member: str) -> Path:
    """Where a member is to be written; refused where that is not below the folder."""
    parts = PurePosixPath(member.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or PureWindowsPath(member).drive:
        raise CorpusError(f'{archive}: the member "{member}" would leave the folder; this archive is not to be trusted')
    return folder / parts


def _unpack_zip(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> int:
    written = 0
    with zipfile.ZipFile(archive) as source:
        for member in source.infolist():
            target = _inside(archive, folder, member.filename)
            if (member.external_attr >> 28) == 0o12:  # the high bits hold the Unix mode; 0o12 is a symbolic link
                raise CorpusError(f'{archive}: the member "{member.filename}" is a link; links are not unpacked')
            if not member.is_dir() and wanted(member.filename):
                target.parent.mkdir(parents=True, exist_ok=True)
                with source.open(member) as content, target.open("wb") as file:
                    shutil.copyfileobj(content, file, BLOCK)
                written += 1
    return written


def _unpack_tar(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> int:
    written = 0
    with tarfile.open(archive, "r:*") as source:
        for member in source:
            target = _inside(archive, folder, member.name)
            if not (member.isfile() or member.isdir()):
                raise CorpusError(f'{archive}: the member "{member.name}" is a link or device; such are not unpacked')
            content = source.extractfile(member) if wanted(member.name) else None
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file, BLOCK)
                written += 1
    return written


def _unpack_gzip(archive: Path, folder: Path) -> int:
    with gzip.open(archive, "rb") as content, (folder / archive.stem).open("wb") as file:
        shutil.copyfileobj(content, file, BLOCK)
    return 1
