"""Unpacks zip, tar and gzip archives into a folder, and refuses members that would be written elsewhere."""

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath

from .corpus import CorpusError
from .signatures import GZIP, ZIP

BLOCK = 1 << 20
SYMLINK = 0o12  # file type in the highest 4 bits of a zip member's Unix mode


def is_archive(path: Path) -> bool:
    """Return True if the content of a file is a zip, tar or gzip archive, or the beginning of a zip or gzip archive."""
    if not path.is_file():
        return False
    return _begins_with(path, GZIP) or _is_zip(path) or (path.stat().st_size > 0 and tarfile.is_tarfile(path))


def _is_zip(path: Path) -> bool:
    return _begins_with(path, ZIP) or zipfile.is_zipfile(path)


def _begins_with(path: Path, signature: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(signature)) == signature


def unpack(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Extract the wanted members of an archive into `folder`.

    Raises:
        CorpusError: the archive is damaged, has a member that is a link or would leave the folder, or has no wanted
            member.
    """
    try:
        if _is_zip(archive):
            extracted = _unpack_zip(archive, folder, wanted)
        elif _is_tar(archive):
            extracted = _unpack_tar(archive, folder, wanted)
        else:
            extracted = _unpack_gzip(archive, folder)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CorpusError(f"{archive}: the archive is damaged ({error}); fetch it again") from error
    if not extracted:
        raise CorpusError(f"{archive}: the archive has none of the files that are needed; give the corpus's own")


def _is_tar(archive: Path) -> bool:
    try:
        return tarfile.is_tarfile(archive)
    except (EOFError, zlib.error):
        return False


def _check_name(archive: Path, member: str) -> None:
    # zipfile and tarfile would rename such members instead of refusing them, and accept Windows paths on other systems.
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or PureWindowsPath(member).drive:
        raise CorpusError(f'{archive}: the member "{member}" would leave the folder; this archive is not to be trusted')


def _unpack_zip(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> int:
    extracted = 0
    with zipfile.ZipFile(archive) as source:
        for member in source.infolist():
            _check_name(archive, member.filename)
            if (member.external_attr >> 28) == SYMLINK:
                raise CorpusError(f'{archive}: the member "{member.filename}" is a link; links are not unpacked')
            if not member.is_dir() and wanted(member.filename):
                source.extract(member, folder)
                extracted += 1
    return extracted


def _unpack_tar(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> int:
    extracted = 0
    with tarfile.open(archive, "r:*") as source:
        source.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have no filters
        for member in source:
            _check_name(archive, member.name)
            if not (member.isfile() or member.isdir()):
                raise CorpusError(f'{archive}: the member "{member.name}" is a link or device; such are not unpacked')
            if member.isfile() and wanted(member.name):
                source.extract(member, folder)
                extracted += 1
    return extracted


def _unpack_gzip(archive: Path, folder: Path) -> int:
    with gzip.open(archive, "rb") as content, (folder / archive.stem).open("wb") as file:
        shutil.copyfileobj(content, file, BLOCK)
    return 1
