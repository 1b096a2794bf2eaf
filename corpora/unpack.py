"""Unpacks zip, tar and compressed files into a directory; rejects damage and bombs."""

import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .compressed import COMPRESSIONS, DAMAGE, is_damage, open_content
from .corpus import CorpusError
from .signatures import HEAD, format_of

BLOCK = 1 << 20
SMALL = 64 << 20  # bytes that every archive may unpack to
MAX_RATIO = 20  # of unpacked to packed size, beyond that; text is packed to a third, the best packers reach a tenth
TAR = (b"ustar", 257)
"""Signature of a tar archive, which may be compressed, and its offset."""


def unpack(archive: Path, directory: Path, wanted: Callable[[str], bool]) -> None:
    """Write the files of an archive whose names are `wanted` into `directory`, without their folders.

    The archive is read to its end and its checksums. A compressed file loses the ending of its name.
    """
    left = max_bytes(archive)
    extracted = 0
    try:
        for name, content in _wanted_files(archive, wanted):
            with (directory / name).open("wb") as file:
                while block := content.read(BLOCK):
                    left -= len(block)
                    if left < 0:
                        raise too_large(archive)
                    file.write(block)
            extracted += 1
    except RuntimeError as error:  # it is encrypted, or of an unknown method or version
        raise CorpusError(f"{archive}: {error}; unpack it with another program and name the folder") from error
    except DAMAGE as error:
        if not is_damage(error):
            raise
        raise CorpusError(f"{archive}: the archive is damaged ({error}); fetch it again") from error
    if not extracted:
        raise CorpusError(f"{archive}: the archive has none of the files that are needed; give the corpus's own")


def max_bytes(path: Path) -> int:
    """Return the largest size to which a file may unpack."""
    return max(SMALL, MAX_RATIO * path.stat().st_size)


def too_large(archive: Path) -> CorpusError:
    """Return the error for a file whose text is far larger than itself."""
    return CorpusError(
        f"{archive}: would unpack to more than {max_bytes(archive) >> 20:,} MiB, far more than its size; "
        "this file is not to be trusted"
    )


def _wanted_files(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Yield the name, without folders, and the content of each wanted file; two with one name are a CorpusError."""
    paths: dict[str, str] = {}
    for path, content in _files(archive):
        if path is None:
            yield archive.stem, content
            continue
        name = re.split(r"[/\\:]", path)[-1]
        if not wanted(name):
            continue
        first = paths.setdefault(name, path)
        if first != path:
            raise CorpusError(f"{archive}: {first} and {path} have the same name; unpack it, and name a folder of one")
        yield name, content


def _files(archive: Path) -> Iterator[tuple[str | None, Any]]:
    """Yield the path in the archive and the content of each file; a compressed file has no path."""
    kind = format_of(archive)
    if kind == "zip":
        with zipfile.ZipFile(archive) as source:
            for member in source.infolist():  # opening compares the two names of a member, so that damage hides no file
                with source.open(member) as content:
                    yield member.filename, content
    elif kind not in (*COMPRESSIONS, "tar"):
        raise RuntimeError(f"the format {kind} is not known")
    else:
        with open_content(archive, None if kind == "tar" else kind) as stream:
            if not stream.peek(HEAD)[:HEAD].startswith(*TAR):
                yield None, stream
                return
            yield from _tar_members(stream)


def _tar_members(stream: "io.BufferedReader[Any]") -> Iterator[tuple[str, Any]]:
    """Yield the path and the content of each file of a tar; zeros alone may follow the last one."""
    with tarfile.open(fileobj=stream, mode="r|") as members:
        for part in members:
            if part.isfile() and not part.issparse():
                yield part.name, members.extractfile(part)
        # The standard library ends without a word at a damaged header.
        while rest := members.fileobj.read(BLOCK):
            if any(rest):
                raise tarfile.ReadError(f"no file begins at byte {members.offset:,} of its content")
