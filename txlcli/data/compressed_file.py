"""The file that `txl compress` writes: a JSON header, the words of the arithmetic coder, and a checksum.

b"TXLZ1"         marker and version of the format
header length    4 bytes, little-endian
header           JSON: the fields of `CompressionHeader`
words            32 bits each, little-endian
checksum         8 bytes of BLAKE2b of everything before
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from txlcli.config.ranges import NaturalInt, PositiveInt, Range, from_json
from txlcli.errors import CompressedFileError, RecipeError
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import MAX_TEXT, read_bytes
from txlcli.system.plain_json import parse_json

MAGIC = b"TXLZ1"
MAX_THREADS = 1024
MAX_LANES = 4096
MAX_TOKENS_PER_BYTE = 2
"""More than any vocabulary has: a token has at least one byte."""
LENGTH_BYTES = 4
CHECKSUM_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class CompressionHeader:
    """Everything that must match to restore a file."""

    txl: str
    """Release of txl, as of `torch` and `constriction`."""
    torch: str
    constriction: str
    threads: Annotated[int, Range(least=1, most=MAX_THREADS)]
    weights: str
    """Digest of the weights."""
    probe: str
    """Digest of predictions after fixed tokens: equal if and only if the machine rounds in the same way."""
    content: str
    """Digest of the original file."""
    bytes: Annotated[int, Range(least=0, most=MAX_TEXT)]
    """Size of the original file."""
    tokens: NaturalInt
    lanes: Annotated[int, Range(least=1, most=MAX_LANES)]
    seg_len: PositiveInt
    mem_len: NaturalInt
    max_distance: NaturalInt | None
    same_length: str
    portable: bool = False
    """True if the predictions come from portable arithmetic (`core.measures.portable`)."""


def digest(data: bytes) -> str:
    """Return 8 bytes of BLAKE2b as hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).hexdigest()


def write(path: Path, header: CompressionHeader, words: NDArray[np.uint32]) -> int:
    """Write a file atomically, and return its length in bytes."""
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    length = len(text).to_bytes(LENGTH_BYTES, "little")
    content = MAGIC + length + text + words.astype("<u4").tobytes()
    with replacing(path) as draft:
        draft.write_bytes(content + bytes.fromhex(digest(content)))
    return len(content) + CHECKSUM_BYTES


def read(path: Path) -> tuple[CompressionHeader, NDArray[np.uint32]]:
    """Read the header and the words of a file that `write` wrote."""
    content = read_bytes(path, MAX_TEXT)
    if not content.startswith(MAGIC):
        raise CompressedFileError(f'{path}: no file of this version of "txl compress"; give the file that it wrote')
    checked = content[:-CHECKSUM_BYTES]
    start = len(MAGIC) + LENGTH_BYTES
    stop = start + int.from_bytes(checked[len(MAGIC) : start], "little")
    try:
        if bytes.fromhex(digest(checked)) != content[-CHECKSUM_BYTES:]:
            raise ValueError("its checksum differs")
        header = from_json(CompressionHeader, parse_json(checked[start:stop]))
        if header.tokens > MAX_TOKENS_PER_BYTE * header.bytes:
            raise ValueError(f"{header.tokens:,} tokens are too many for {header.bytes:,} bytes")
        words = np.frombuffer(checked[stop:], dtype="<u4").astype(np.uint32)
        return header, words
    except (ValueError, LookupError, RecipeError) as error:
        raise CompressedFileError(f"{path}: truncated or altered ({error}); restore it from a copy") from error
