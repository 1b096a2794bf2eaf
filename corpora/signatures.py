"""Recognizes files that are not text by their first bytes."""

from collections.abc import Iterable
from pathlib import Path

from .corpus import CorpusError
from .special_files import reject_special

GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
BZIP2, XZ = b"1AY&SY", b"\xfd7zXZ\0"  # that of bzip2 begins at byte 4
_PACKED = "an archive or compressed file"
# Signature, its offset, and a name for files of that format.
PACKED = (
    (GZIP, 0, _PACKED),
    (ZIP, 0, _PACKED),
    (BZIP2, 4, _PACKED),
    (XZ, 0, _PACKED),
    (b"\x28\xb5\x2f\xfd", 0, _PACKED),  # zstd
    (b"7z\xbc\xaf\x27\x1c", 0, _PACKED),
    (b"ustar\0", 257, _PACKED),  # tar by POSIX, and GNU's
    (b"ustar  \0", 257, _PACKED),
)
OTHER = (
    (b"\x89HDF\r\n", 0, "an HDF5 file"),
    (b'\0{"', 7, "a file of weights"),  # safetensors: after the length of the header
    (b"%PDF-", 0, "a PDF file"),
    (b"\x89PNG", 0, "a picture"),
    (b"\xff\xd8\xff", 0, "a picture"),
    (b"GIF8", 0, "a picture"),
)
HEAD = 512  # bytes


def reject_packed(paths: Iterable[Path]) -> None:
    """Reject archives and compressed files; a file of zeros, which is a tar without members, is accepted."""
    _reject(paths, PACKED, "unpack it first")


def reject_other_than_text(paths: Iterable[Path]) -> None:
    """Reject files that a directory may have next to its text, including txl's own files."""
    _reject(paths, OTHER, "keep the text in a folder of its own, or name a file of it")


def _reject(paths: Iterable[Path], signatures: Iterable[tuple[bytes, int, str]], instead: str) -> None:
    for path in paths:
        with reject_special(path).open("rb") as file:
            head = file.read(HEAD)
        for signature, offset, name in signatures:
            if head.startswith(signature, offset):
                raise CorpusError(f"{path}: {name} is not text; {instead}")
