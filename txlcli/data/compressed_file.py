"""The file that `txl compress` writes: a header, the words of the arithmetic coder, and a checksum.

b"TXLZ1"                     marker and version of the format
header length                2 bytes, little-endian
header                       JSON, deflated with the dictionary `LIKELY`, and the digests of `DIGESTS`, 8 bytes each
words                        32 bits each, little-endian
checksum                     8 bytes of BLAKE2b of everything before
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.ranges import MAX_COUNT
from txlcli.errors import CompressedFileError
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import MAX_TEXT, read_bytes
from txlcli.system.plain_json import parse_json

MAGIC = b"TXLZ1"
DIGESTS = ("weights", "vocabulary", "probe", "content")
"""Digests of the header, in this order."""
DIGEST_BYTES = 8
MAX_HEADER_BYTES = 4096
MAX_LANES = 4096
"""Most lanes of a file: each needs memory for itself."""
LIKELY = b'["0.1.0","2.12.0","2.13.0+cpu","0.5.0","0.4.2","AVX2","AVX512",1,"m",[1e-05,1],"off",2,64,64,null,"m",null]'
"""A likely header, of which most headers are parts: part of the format."""
RAW_DEFLATE = -zlib.MAX_WBITS
TYPES: dict[str, tuple[type, ...]] = {
    "txl": (str,),
    "torch": (str,),
    "constriction": (str,),
    "processor": (str,),
    "threads": (int,),
    "bytes": (int,),
    "tokens": (int,),
    "lanes": (int,),
    "seg_len": (int,),
    "mem_len": (int,),
    "max_distance": (int, type(None)),
    "same_length": (str,),
    "dynamic": (list, type(None)),
}
"""Entries of the header, with the types of their values."""
RANGES = {
    "threads": (1, 4096),
    "bytes": (0, MAX_TEXT),
    "tokens": (0, MAX_TEXT),
    "lanes": (1, MAX_LANES),
    "seg_len": (1, MAX_COUNT),
    "mem_len": (0, MAX_COUNT),
}
"""Smallest and largest value of each number."""


@dataclass(frozen=True)
class CompressedFile:
    """A compressed text with the conditions under which it can be restored."""

    header: dict[str, Any]
    """The entries of `TYPES`."""
    digests: dict[str, bytes]
    """The digests of `DIGESTS`."""
    words: NDArray[np.uint32]
    """Of the arithmetic coder."""


def digest(*parts: bytes) -> bytes:
    """Return 8 bytes of BLAKE2b."""
    total = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        total.update(part)
    return total.digest()


def write(path: Path, header: Mapping[str, Any], digests: Mapping[str, bytes], words: NDArray[np.uint32]) -> int:
    """Write a file atomically, and return its length in bytes."""
    deflated = zlib.compressobj(9, wbits=RAW_DEFLATE, zdict=LIKELY)
    packed = deflated.compress(json.dumps([header[name] for name in TYPES], separators=(",", ":")).encode())
    packed += deflated.flush() + b"".join(digests[name] for name in DIGESTS)
    content = MAGIC + len(packed).to_bytes(2, "little") + packed + words.astype("<u4").tobytes()
    with replacing(path) as draft:
        draft.write_bytes(content + digest(content))
    return len(content) + DIGEST_BYTES


def read(path: Path) -> CompressedFile:
    """Read a file that `write` wrote.

    Raises:
        CompressedFileError: it is another kind of file, of another version of the format, truncated or altered.
        UsageError: it is a special file, or larger than any such file.
        OSError: it cannot be read.
    """
    content = read_bytes(path, MAX_TEXT)
    if not content.startswith(MAGIC[:-1]):
        raise CompressedFileError(f'{path}: no file of "txl compress"; give the file that it wrote')
    if not content.startswith(MAGIC):
        raise CompressedFileError(f"{path}: a format that this release does not know; use the release that wrote it")
    if digest(content[:-DIGEST_BYTES]) != content[-DIGEST_BYTES:]:
        raise CompressedFileError(f"{path}: truncated or altered (its checksum differs); restore it from a copy")
    try:
        return _parse(content[len(MAGIC) : -DIGEST_BYTES])
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise CompressedFileError(f"{path}: its header cannot be read ({error}); restore it from a copy") from error


def _parse(content: bytes) -> CompressedFile:
    """Return the parts of a file whose checksum is right; another program may still have written them.

    Raises:
        ValueError, TypeError, zlib.error: they are not those of a file of txl.
    """
    size = int.from_bytes(content[:2], "little")
    header, words = content[2 : 2 + size], content[2 + size :]
    length = len(DIGESTS) * DIGEST_BYTES
    if len(header) != size or size < length or len(words) % 4:
        raise ValueError("its lengths are inconsistent")
    inflated = zlib.decompressobj(RAW_DEFLATE, zdict=LIKELY)
    values = parse_json(inflated.decompress(header[:-length], MAX_HEADER_BYTES).decode())
    if not isinstance(values, list) or len(values) != len(TYPES):
        raise ValueError(f"it does not have {len(TYPES)} entries")
    entries = dict(zip(TYPES, values, strict=True))
    for name, types in TYPES.items():
        if type(entries[name]) not in types:
            raise ValueError(f"{name} is {entries[name]!r}")
    for name, (least, most) in RANGES.items():
        if not least <= entries[name] <= most:
            raise ValueError(f"{name} is {entries[name]}")
    dynamic = entries["dynamic"]
    if dynamic is not None and not (len(dynamic) == 2 and all(type(value) is float for value in dynamic)):
        raise ValueError(f"dynamic is {dynamic!r}")
    starts = range(len(header) - length, len(header), DIGEST_BYTES)
    digests = {name: header[at : at + DIGEST_BYTES] for name, at in zip(DIGESTS, starts, strict=True)}
    return CompressedFile(entries, digests, np.frombuffer(words, dtype="<u4").astype(np.uint32))
