"""Files that are no text, told by what they begin with."""

from collections.abc import Iterable
from pathlib import Path

from corpora.corpus import CorpusError

GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
_PACKED = "an archive or compressed file"
# What files of a kind have near their beginning, where, and what they are called.
PACKED = (
    (GZIP, 0, _PACKED),
    (ZIP, 0, _PACKED),
    (b"1AY&SY", 4, _PACKED),  # bzip2
    (b"\xfd7zXZ\0", 0, _PACKED),
    (b"\x28\xb5\x2f\xfd", 0, _PACKED),  # zstd
    (b"7z\xbc\xaf\x27\x1c", 0, _PACKED),
    (b"ustar\0", 257, _PACKED),  # tar by POSIX, and GNU's
    (b"ustar  \0", 257, _PACKED),
)
BESIDE_TEXT = (
    (b"\x89HDF\r\n", 0, "an HDF5 file"),
    (b'\0{"', 7, "a file of weights"),  # safetensors: after the length of what describes the tensors
    (b"%PDF-", 0, "a PDF file"),
    (b"\x89PNG", 0, "a picture"),
    (b"\xff\xd8\xff", 0, "a picture"),
    (b"GIF8", 0, "a picture"),
)
HEAD = 512  # bytes


def refuse_packed(paths: Iterable[Path]) -> None:
    """Refuse archives and compressed files, whose bytes are no text; zeros are no tar without members here.

    Raises:
        CorpusError: naming the first of them.
    """
    _refuse(paths, PACKED, "unpack it first")


def refuse_beside_text(paths: Iterable[Path]) -> None:
    """Refuse what a folder of text may hold beside it, txl's own files among them.

    Raises:
        CorpusError: naming the first of them.
    """
    _refuse(paths, BESIDE_TEXT, "keep the text in a folder of its own, or name a file of it")


def _refuse(paths: Iterable[Path], marks: Iterable[tuple[bytes, int, str]], instead: str) -> None:
    for path in filter(Path.is_file, paths):  # a pipe would wait for its writer
        with path.open("rb") as file:
            head = file.read(HEAD)
        for mark, offset, kind in marks:
            if head.startswith(mark, offset):
                raise CorpusError(f"{path}: {kind} is no text; {instead}")
