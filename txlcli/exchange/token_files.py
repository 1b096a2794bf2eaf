"""Files of token ids of other systems: nanoGPT's and llm.c's .bin, Megatron's .bin with its .idx.

nanoGPT     ids without a header, uint16; its meta.pkl is a pickle, which could run code, and is never read
llm.c       256 int32 of header (magic number, version, number of ids), then uint16 or uint32
Megatron    ids in the .bin; the .idx has their type and the length and offset of each document
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import SPLITS
from txlcli.corpora.locate import split_of
from txlcli.errors import CorpusInputError, ExportError
from txlcli.exchange.vocabularies import META_OF_NANOGPT
from txlcli.system.input_files import check_regular

BLOCK = 1 << 20  # ids
BIN, IDX = ".bin", ".idx"
VOCABULARY = "vocab.json"
"""File of the vocabulary that an export writes next to the ids."""
WITHOUT_HEADER = "nanoGPT"
"""Format of ids without a header."""
LLM_C_HEADER = 256  # int32
LLM_C_BEGINNING = struct.Struct("<iii")  # magic, version, number of ids; the rest is not used
LLM_C_TYPES = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""Version and type of the ids by magic number: GPT-2's vocabulary, Llama 3's."""
MAGIC = b"MMIDIDX\0\0"
MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents (one more than there are)
MEGATRON_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
DTYPES = ("uint16", "uint32")
"""Types of ids in files without a header."""
PROBE = 1 << 16
"""Ids at the beginning of a file that tell if it has another type."""
LONGEST_DOCUMENT = 1 << 30
"""Most ids of a document that is written for Megatron, whose lengths are int32."""
MAX_IDS = (1 << 31) - 1
"""Most ids of a file of llm.c, whose header has an int32."""


@dataclass(frozen=True)
class TokenPart:
    """Ids in a file."""

    path: Path
    dtype: np.dtype[Any]
    offset: int
    """First byte."""
    count: int
    """Number of ids."""
    first: int = 0
    """Number of ids before them in the file."""

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the ids in blocks."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, self.count, BLOCK):
                expected = min(BLOCK, self.count - start)
                block = np.fromfile(file, self.dtype, expected)
                if len(block) < expected:
                    raise CorpusInputError(f"{self.path}: became shorter while it was read; prepare it again")
                yield block

    def between(self, start: int, stop: int) -> "TokenPart":
        """Return the ids from `start` up to `stop`."""
        offset = self.offset + start * self.dtype.itemsize
        return TokenPart(self.path, self.dtype, offset, stop - start, self.first + start)


@dataclass(frozen=True)
class TokenFiles:
    """Files of token ids, by split."""

    format: str
    splits: Mapping[str, tuple[TokenPart, ...]]
    """Ids of each split; those of a single file are under "" until they are cut."""
    has_pickle: bool
    """True if nanoGPT's vocabulary lies next to the ids."""


def find(source: Path, dtype: str | None) -> TokenFiles | None:
    """Return the token files at a path; None if it is text.

    Token files are a file that ends with .bin or .idx, and the .bin files of a directory if one is named after train.

    Args:
        source: file or directory.
        dtype: type of ids without a header, one of DTYPES; None is uint16.
    """
    if source.is_file():
        ending = source.suffix.lower()
        if ending not in (BIN, IDX):
            return None
        name, part = _open(source if ending == BIN else _with_ending(source, BIN), dtype)
        return TokenFiles(name, {"": (part,)}, (source.parent / META_OF_NANOGPT).exists())
    visible = sorted(path for path in source.iterdir() if not path.name.startswith("."))
    files = [path for path in visible if path.suffix.lower() == BIN]
    indexes = [path for path in visible if path.suffix.lower() == IDX and _is_of_megatron(path)]
    if alone := [path for path in indexes if _with_ending(path, BIN) not in files]:
        raise CorpusInputError(f"{alone[0]}: the .bin with its ids is not next to it; copy it there, or move this away")
    if not any(split_of(path.name) == "train" for path in files):
        if indexes:
            raise CorpusInputError(
                f"{source}: no file is named after train; give {indexes[0]} to split its ids, or rename the files"
            )
        return None
    if unnamed := [path for path in files if split_of(path.name) is None]:
        raise CorpusInputError(f"{unnamed[0]}: its name mentions no split, or several; rename it, or move it away")
    opened = {path: _open(path, dtype) for path in files}
    formats = {name for name, _ in opened.values()}
    if len(formats) > 1:
        raise CorpusInputError(
            f"{source}: its files are of {' and '.join(sorted(formats))}; keep one format in a folder"
        )
    by_split = {
        split: tuple(part for path, (_, part) in opened.items() if split_of(path.name) == split) for split in SPLITS
    }
    return TokenFiles(
        formats.pop(), {split: parts for split, parts in by_split.items() if parts}, (source / META_OF_NANOGPT).exists()
    )


def _with_ending(path: Path, ending: str) -> Path:
    """Return the path with another ending, in capitals if that of the path is."""
    return path.with_suffix(ending.upper() if path.suffix.isupper() else ending)


def _is_of_megatron(index: Path) -> bool:
    if not check_regular(index).is_file():
        return False
    with index.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _open(path: Path, dtype: str | None) -> tuple[str, TokenPart]:
    """Return the format of a file, and its ids."""
    if not check_regular(path).is_file():
        raise CorpusInputError(f"{path}: not a file; the ids of an .idx are in the .bin next to it")
    size = path.stat().st_size
    if not size:
        raise CorpusInputError(f"{path}: the file is empty; give one with token ids")
    index = _with_ending(path, IDX)
    if check_regular(index).is_file():
        return "Megatron", _of_megatron(path, size, index)
    with path.open("rb") as file:
        head = file.read(LLM_C_BEGINNING.size)
    magic, version, count = LLM_C_BEGINNING.unpack(head.ljust(LLM_C_BEGINNING.size, b"\0"))
    known_version, known_type = LLM_C_TYPES.get(magic, (None, ""))
    if version == known_version:
        return "llm.c", _of_llm_c(path, size, np.dtype(known_type), count)
    if known_version is not None and dtype is None and size >= 4 * LLM_C_HEADER:
        raise CorpusInputError(
            f"{path}: its header of llm.c has version {version}, but ids have version {known_version}; write it again, "
            "or give --dtype uint16 if the file has no header"
        )
    kind = np.dtype(dtype or DTYPES[0]).newbyteorder("<")
    if size % kind.itemsize:
        raise CorpusInputError(
            f"{path}: {size:,} bytes are not a whole number of {kind.name} ids; the file is truncated, or has another "
            "--dtype; --tokenizer byte reads its bytes"
        )
    part = TokenPart(path, kind, 0, size // kind.itemsize)
    if dtype is None and size % 4 == 0 and _seems_uint32(part):
        raise CorpusInputError(
            f"{path}: every second uint16 is small, as in a file of uint32 ids; give --dtype uint32, or --dtype uint16 "
            "if that is right"
        )
    return WITHOUT_HEADER, part


def _seems_uint32(part: TokenPart) -> bool:
    """True if ids that are read as uint16 seem to be the halves of uint32: the upper ones are 0, or below 256."""
    ids = next(part.blocks())[:PROBE]
    lower, upper = ids[0::2], ids[1::2]
    least = 1 if not upper.any() else 256
    return len(ids) >= 64 and bool(upper.max() < 256 and lower.max() >= least)


def _of_llm_c(path: Path, size: int, dtype: np.dtype[Any], count: int) -> TokenPart:
    offset = 4 * LLM_C_HEADER
    expected = offset + count * dtype.itemsize
    if count <= 0 or size != expected:
        raise CorpusInputError(
            f"{path}: {size:,} bytes, but its header of llm.c declares {count:,} ids, which are {expected:,}; the file "
            "is truncated or damaged, write it again"
        )
    return TokenPart(path, dtype.newbyteorder("<"), offset, count)


def _of_megatron(path: Path, size: int, index: Path) -> TokenPart:
    """Check the index: its documents must be the ids of the .bin, one after the other."""

    def damaged(what: str) -> CorpusInputError:
        return CorpusInputError(f"{index}: {what}; it does not belong to {path.name}, or is damaged: write both again")

    with index.open("rb") as file:
        header = file.read(MEGATRON_HEADER.size).ljust(MEGATRON_HEADER.size, b"\0")
        magic, version, code, sequences, documents = MEGATRON_HEADER.unpack(header)
        if magic != MAGIC or version != 1 or code not in MEGATRON_TYPES:
            raise damaged(f"not an index of ids (version {version}, type {code})")
        length = MEGATRON_HEADER.size + sequences * (4 + 8) + documents * 8
        if index.stat().st_size not in (length, length + sequences):  # with a mode per sequence
            raise damaged(f"{index.stat().st_size:,} bytes instead of {length:,}")
        lengths = np.fromfile(file, "<i4", sequences).astype(np.int64)
        offsets = np.fromfile(file, "<i8", sequences)
    dtype = np.dtype(MEGATRON_TYPES[code]).newbyteorder("<")
    ends = np.cumsum(lengths) * dtype.itemsize
    if (lengths < 0).any() or not np.array_equal(offsets, ends - lengths * dtype.itemsize):
        raise damaged("lengths and offsets of its sequences disagree")
    end = int(ends[-1]) if sequences else 0
    if end != size:
        raise damaged(f"its sequences are {end:,} bytes of {path.name}, which has {size:,}")
    return TokenPart(path, dtype, 0, size // dtype.itemsize)


def write_nanogpt(path: Path, ids: NDArray[Any], vocab_size: int) -> None:
    """Write ids without a header, as uint16, or uint32 for a vocabulary that needs it."""
    with path.open("wb") as file:
        _write_ids(file, ids, np.dtype(dtype_of("nanogpt", vocab_size)))


def write_llm_c(path: Path, ids: NDArray[Any], vocab_size: int) -> None:
    """Write ids with llm.c's header."""
    if len(ids) > MAX_IDS:
        raise ExportError(
            f"{path.name}: {len(ids):,} ids are more than an llm.c file can declare ({MAX_IDS:,}); give --format "
            "nanogpt or megatron"
        )
    dtype = np.dtype(dtype_of("llm.c", vocab_size))
    magic, version = next((magic, version) for magic, (version, name) in LLM_C_TYPES.items() if name == dtype.name)
    header = np.zeros(LLM_C_HEADER, dtype="<i4")
    header[:3] = magic, version, len(ids)
    with path.open("wb") as file:
        file.write(header.tobytes())
        _write_ids(file, ids, dtype)


def write_megatron(path: Path, ids: NDArray[Any], vocab_size: int, starts: NDArray[Any] | None) -> None:
    """Write ids as a .bin, and its .idx: one document per sentence if `starts` has their first tokens."""
    name = dtype_of("megatron", vocab_size)
    dtype = np.dtype(name)
    code = next(code for code, other in MEGATRON_TYPES.items() if other == name)
    firsts = np.arange(0, len(ids), LONGEST_DOCUMENT) if starts is None else starts
    count = len(firsts)
    with path.open("wb") as file:
        _write_ids(file, ids, dtype)
    with path.with_suffix(IDX).open("wb") as file:
        file.write(MEGATRON_HEADER.pack(MAGIC, 1, code, count, count + 1))
        np.diff(firsts.astype(np.int64), append=len(ids)).astype("<i4").tofile(file)
        (firsts.astype("<i8") * dtype.itemsize).tofile(file)
        np.arange(count + 1, dtype="<i8").tofile(file)


def dtype_of(format: str, vocab_size: int) -> str:
    """Return the type of the ids in a file that is written: the one that the system chooses for a vocabulary."""
    if format == "megatron":
        return "uint16" if vocab_size < 65_500 else "int32"
    return DTYPES[0] if vocab_size <= 1 << 16 else DTYPES[1]


def _write_ids(file: BinaryIO, ids: NDArray[Any], dtype: np.dtype[Any]) -> None:
    for start in range(0, len(ids), BLOCK):
        file.write(ids[start : start + BLOCK].astype(dtype.newbyteorder("<")).tobytes())


def total(parts: Iterable[TokenPart]) -> int:
    """Return the number of ids of several parts."""
    return sum(part.count for part in parts)
