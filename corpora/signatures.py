"""Recognizes archives, and other files that are not text, by their first bytes."""

from collections.abc import Mapping
from pathlib import Path

from .corpus import CorpusError
from .special_files import reject_special

# Signature and its offset.
PACKED = {
    "zip": (b"PK\x03\x04", 0),
    "gzip": (b"\x1f\x8b", 0),
    "bzip2": (b"1AY&SY", 4),
    "xz": (b"\xfd7zXZ\0", 0),
    "zstd": (b"\x28\xb5\x2f\xfd", 0),
    "7z": (b"7z\xbc\xaf\x27\x1c", 0),
    "tar": (b"ustar", 257),
}
OTHER = {
    "an HDF5 file": (b"\x89HDF\r\n", 0),
    "a file of weights": (b'\0{"', 7),  # safetensors: after the length of the header
    "a PDF file": (b"%PDF-", 0),
    "a PNG picture": (b"\x89PNG", 0),
    "a JPEG picture": (b"\xff\xd8\xff", 0),
    "a GIF picture": (b"GIF8", 0),
}
HEAD = 512  # bytes


def format_of(path: Path, signatures: Mapping[str, tuple[bytes, int]] = PACKED) -> str | None:
    """Return the format of a file, by default that of an archive or compressed file; None if it is another file."""
    if not reject_special(path).is_file():
        return None
    with path.open("rb") as file:
        head = file.read(HEAD)
    return next((name for name, (signature, offset) in signatures.items() if head.startswith(signature, offset)), None)


def reject_packed(*paths: Path) -> None:
    """Reject archives and compressed files."""
    for path in filter(format_of, paths):
        raise CorpusError(f"{path}: an archive or compressed file is not text; unpack it first")


def reject_other_than_text(*paths: Path) -> None:
    """Reject files that a directory may have next to its text, including txl's own files."""
    for path in paths:
        if name := format_of(path, OTHER):
            raise CorpusError(f"{path}: {name} is not text; keep the text in a folder of its own, or name a file of it")
