"""Unpacks archives into a folder that no member can leave."""

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath

from corpora.corpus import CorpusError
from corpora.signatures import GZIP, ZIP

BLOCK = 1 << 20


def is_archive(path: Path) -> bool:
    """Whether a file is a zip, tar or gzip archive, by its content; the beginning of a zip or gzip file is one too."""
    if not path.is_file():
        return False
    return _begins(path, GZIP) or _is_zip(path) or (path.stat().st_size > 0 and tarfile.is_tarfile(path))


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
