"""Files of token ids of other systems: nanoGPT's and llm.c's .bin, Megatron's .bin with its .idx.

nanoGPT     ids without a header, uint16; its meta.pkl is a pickle, which could run code, and is never read
llm.c       256 int32 of header (magic number, version, number of ids), then uint16 or uint32
Megatron    ids in the .bin; the .idx has their type and the length and offset of each document
"""

import itertools
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import Slice
from txlcli.corpora.directory import files_by_split
from txlcli.corpora.documents import Documents
from txlcli.corpora.locate import is_companion, splits_in, text_files
from txlcli.corpora.signatures import format_of
from txlcli.errors import CorpusInputError, ExportError
from txlcli.workflows.exchange import load_table

BLOCK = 1 << 20  # ids
BIN, IDX = ".bin", ".idx"
TYPES = load_table("token_files")
VOCABULARY = "vocab.json"
"""File of the vocabulary that an export writes next to the ids."""
WITHOUT_HEADER = "nanoGPT"
"""Format of ids without a header."""
LLM_C_HEADER = 1024  # bytes of int32
MAGIC = b"MMIDIDX\0\0"
MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents (one more than there are)
PROBE = 1 << 16
"""Most ids of 64 bits at the beginning of a file that tell if it has another type."""
MIN_PROBE, MIN_DISTRIBUTION = 128, 1 << 12
"""Fewest bytes that tell by zeros, and by the distribution of values."""
MIN_USED = 1 / 64
"""Smallest share of bytes that are not zero; a run of one id would otherwise look like wide ids."""
MAX_DISTANCE, MIN_RATIO = 0.2, 1.25
"""Of the two bytes of uint16: largest distance of their distributions, if these are not even, that is taken for uint8;
ratio of the sums of squared shares of the first and the second byte that is taken for big-endian ids."""
LONGEST_DOCUMENT = 1 << 30
"""Most ids of a document that is written for Megatron, whose lengths are int32."""
MAX_IDS = (1 << 31) - 1
"""Most ids of a file of llm.c, whose header has an int32."""


@dataclass(frozen=True)
class TokenFiles:
    """Files of token ids."""

    format: str
    dtype: np.dtype[Any]
    splits: Mapping[str, tuple[Slice, ...]]
    """Bytes of the ids of each split; those of files without splits are under "" until they are cut."""
    documents: Documents | None = None
    """Where documents begin; None if the files do not tell."""

    def blocks(self, piece: Slice) -> Iterator[NDArray[Any]]:
        """Yield the ids in a part of a file, in blocks."""
        for block in piece.blocks():
            yield np.frombuffer(block, self.dtype, len(block) // self.dtype.itemsize)


@dataclass(frozen=True)
class _TokenFile:
    format: str
    dtype: np.dtype[Any]
    ids: Slice
    documents: "array[int] | None" = None
    """Offsets of the documents, in bytes."""


def find(source: Path, dtype: str | None, vocab_size: int | None = None) -> TokenFiles | None:
    """Return the token files at a path; None if it is text.

    Token files are a file that ends with .bin or .idx, and the .bin files of a directory if one is named after train,
    or if there is no text. Ids without a header are of the type `dtype`, by default that of an export of txl with a
    vocabulary of `vocab_size`, which lies next to them, else uint16.
    """
    if source.is_dir():
        by_split = _by_split(source, is_export=vocab_size is not None)
    else:
        ending = source.suffix.lower()
        by_split = {"": [source.with_suffix(BIN) if ending == IDX else source]} if ending in (BIN, IDX) else {}
    exported = None if vocab_size is None else dtype_of("nanogpt", vocab_size)
    opened = {split: [_open(path, dtype or exported) for path in paths] for split, paths in by_split.items()}
    parts = list(itertools.chain(*opened.values()))
    if not parts:
        return None
    if len(kinds := sorted({f"{file.format} {file.dtype.name}" for file in parts})) > 1:
        raise CorpusInputError(f"{source}: its files are of {' and '.join(kinds)} ids; keep one format in a folder")
    offsets = {file.ids.path: file.documents for file in parts if file.documents is not None}
    return TokenFiles(
        parts[0].format,
        parts[0].dtype,
        {split: tuple(file.ids for file in some) for split, some in opened.items()},
        Documents("index", offsets=offsets) if sum(map(len, offsets.values())) > 1 else None,
    )


def _by_split(directory: Path, *, is_export: bool) -> dict[str, list[Path]]:
    """Return the .bin files of each split, or all under "" if none has a split; none if the directory has text."""
    visible = text_files(directory)
    files = [path for path in visible if path.suffix.lower() == BIN]
    is_named = is_export or any(splits_in(path.relative_to(directory)) == {"train"} for path in files)
    others = [path for path in visible if path.suffix.lower() not in (BIN, IDX, ".pkl") and not is_companion(path)]
    if not files or (others and not is_named):
        return {}
    return files_by_split(files, directory, "rename or move such files") or {"": files}


def _open(path: Path, dtype: str | None) -> _TokenFile:
    if not path.is_file() or not path.stat().st_size:
        raise CorpusInputError(f"{path}: missing or empty; the ids of an .idx are in the .bin next to it")
    for index in (path.with_suffix(IDX), path.with_suffix(IDX.upper())):
        if index.is_file():
            return _of_megatron(path, index)
    return _of_llm_c(path, dtype) or _without_header(path, dtype)


def _without_header(path: Path, dtype: str | None) -> _TokenFile:
    size, kind = path.stat().st_size, _type_of(dtype or "uint16")
    if size % kind.itemsize:
        raise CorpusInputError(
            f"{path}: {size:,} bytes are not a whole number of {kind.name} ids; the file is truncated, or has another "
            "`dtype`; `tokenizer` byte reads its bytes"
        )
    if format_of(path) == "zip":
        raise CorpusInputError(f"{path}: an archive, such as a checkpoint of PyTorch, not ids; write its ids to a .bin")
    if kind.itemsize > 1 and _has_fractions(_head_of(path)):
        raise CorpusInputError(f"{path}: its bytes are those of floating-point numbers; write the ids as whole numbers")
    other, is_certain = other_type(path, kind)
    if other and (is_certain or dtype is None):
        otherwise = "" if is_certain else f", or `dtype` {kind.name} if that is right"
        raise CorpusInputError(
            f"{path}: its bytes are those of {other} ids, not of {dtype or kind.name}; give `dtype` {other}{otherwise}"
        )
    return _TokenFile(WITHOUT_HEADER, kind, Slice(path, 0, size))


def _type_of(dtype: str) -> np.dtype[Any]:
    """Return the type with a name like uint16, or uint16-be with the most significant byte first."""
    return np.dtype(dtype.removesuffix("-be")).newbyteorder(">" if dtype.endswith("-be") else "<")


def other_type(path: Path, dtype: np.dtype[Any]) -> tuple[str | None, bool]:
    """Return the type that ids without a header have by their first bytes, and True if `dtype` is wrong.

    None if it is that type, or if the bytes are too few or too alike to tell.
    """
    head = _head_of(path)
    if not len(head) or np.count_nonzero(head) < MIN_USED * len(head):
        return None, False
    used = [column.any() for column in head.reshape(-1, 8).T]
    fitting = (
        row
        for row in TYPES["beginnings"]
        if not any(used[at] for at in row["zero"]) and any(used[at] for at in row.get("used", range(8)))
    )
    row = next(fitting, None) or {"type": _type_by_distribution(head), "used": ()}
    likely = row["type"]
    if likely is None or _type_of(likely).str.replace("u", "i") == dtype.str.replace("u", "i"):
        return None, False
    return likely, "used" not in row


def _head_of(path: Path) -> NDArray[np.uint8]:
    """Return the first bytes of a file, a multiple of 8; none if they are too few to tell anything."""
    head = np.fromfile(path, np.uint64, PROBE).view(np.uint8)
    return head if len(head) >= MIN_PROBE else head[:0]


def _has_fractions(head: NDArray[np.uint8]) -> bool:
    """Return True if bytes are floating-point numbers of a usual size; ids would be tiny or huge ones."""
    sizes = (np.abs(head.view(kind)) for kind in ("<f4", "<f8"))
    return any(((size > 1e-6) & (size < 1e6)).sum() > 0.9 * np.count_nonzero(size) for size in sizes)


def _type_by_distribution(head: NDArray[np.uint8]) -> str | None:
    """Return uint8 if both bytes of uint16 have the same distribution, big-endian uint16 if the upper is more even."""
    if len(head) < MIN_DISTRIBUTION:
        return None
    lower, upper = (np.bincount(head[first::2], minlength=256) / (len(head) / 2) for first in (0, 1))
    unevenness, other = (lower**2).sum(), (upper**2).sum()  # 1 / 256 if all values are as frequent
    if np.abs(lower - upper).sum() / 2 < MAX_DISTANCE and 256 * unevenness > MIN_RATIO:
        return "uint8"
    return "uint16-be" if unevenness > MIN_RATIO * other else "uint16"


def _of_llm_c(path: Path, dtype: str | None) -> _TokenFile | None:
    """Return the ids after a header of llm.c; None if there is none, or if it is wrong and the user gave a type."""
    magic, version, count = (*np.fromfile(path, "<i4", 3).tolist(), 0, 0, 0)[:3]  # the rest is not used
    for kind, known in TYPES["llm_c"].items():
        ids, size = np.dtype(kind).newbyteorder("<"), path.stat().st_size
        if [magic, version] == known and count > 0 and size == LLM_C_HEADER + count * ids.itemsize:
            return _TokenFile("llm.c", ids, Slice(path, LLM_C_HEADER, size))
        if magic == known[0] and dtype is None:
            raise CorpusInputError(
                f"{path}: {size:,} bytes do not fit its header of llm.c (version {version}, {count:,} ids); write it "
                "again, or give `dtype` uint16 if the file has no header"
            )
    return None


def _of_megatron(path: Path, index: Path) -> _TokenFile:
    """Return the ids of a .bin, which must be the documents of its index, one after the other."""
    size = path.stat().st_size
    with index.open("rb") as file:
        header = file.read(MEGATRON_HEADER.size).ljust(MEGATRON_HEADER.size, b"\0")
        *mark, code, sequences, documents = MEGATRON_HEADER.unpack(header)
        length = MEGATRON_HEADER.size + 12 * sequences + 8 * documents
        kind, of_modes = TYPES["megatron"].get(str(code)), index.stat().st_size - length
        if mark == [MAGIC, 1] and kind and of_modes in (0, sequences):
            dtype = np.dtype(kind).newbyteorder("<")
            lengths, offsets = np.fromfile(file, "<i4", sequences), np.fromfile(file, "<i8", sequences)
            edges = np.cumsum(np.append(0, lengths)) * dtype.itemsize
            bounds = np.fromfile(file, "<i8", documents)
            steps = np.diff(bounds, prepend=0, append=sequences)
            if np.array_equal(edges, np.append(offsets, size)) and min(lengths.min(initial=0), steps.min()) >= 0:
                starts = array("q", np.unique(edges[bounds]).tobytes())
                return _TokenFile("Megatron", dtype, Slice(path, 0, size), starts)
    raise CorpusInputError(f"{index}: damaged, or not the index of {path.name}; write both again")


def dtype_of(format: str, vocab_size: int) -> str:
    """Return the type of the ids in a file that is written: the one that the system chooses for a vocabulary."""
    if format == "megatron":
        return "uint16" if vocab_size < 65_500 else "int32"
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def write(format: str, path: Path, ids: NDArray[Any], vocab_size: int, starts: NDArray[Any] | None = None) -> None:
    """Write ids as a .bin of nanogpt, llm.c or megatron, and for Megatron the .idx.

    If `starts` has the first tokens of sentences, each is a document of Megatron.
    """
    dtype, count = np.dtype(dtype_of(format, vocab_size)).newbyteorder("<"), len(ids)
    if format == "llm.c" and count > MAX_IDS:
        raise ExportError(
            f"{path.name}: {count:,} ids are more than an llm.c file can declare ({MAX_IDS:,}); give `format` "
            "nanogpt or megatron"
        )
    with path.open("wb") as file:
        if format == "llm.c":
            header = np.array([*TYPES["llm_c"][dtype.name], count], "<i4")
            file.write(header.tobytes().ljust(LLM_C_HEADER, b"\0"))
        for start in range(0, count, BLOCK):
            file.write(ids[start : start + BLOCK].astype(dtype).tobytes())
    if format == "megatron":
        firsts = np.arange(0, count, LONGEST_DOCUMENT) if starts is None else starts.astype(np.int64)
        _write_index(path.with_suffix(IDX), dtype, firsts, count)


def _write_index(path: Path, dtype: np.dtype[Any], firsts: NDArray[np.int64], total: int) -> None:
    code, count = 8 if dtype.itemsize == 2 else 4, len(firsts)
    with path.open("wb") as file:
        file.write(MEGATRON_HEADER.pack(MAGIC, 1, code, count, count + 1))
        np.diff(firsts, append=total).astype("<i4").tofile(file)
        (firsts * dtype.itemsize).astype("<i8").tofile(file)
        np.arange(count + 1, dtype="<i8").tofile(file)
