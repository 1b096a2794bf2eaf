"""Files of token ids of other systems: nanoGPT's and llm.c's .bin, Megatron's .bin with its .idx.

nanoGPT     ids without a header, uint16; its meta.pkl is a pickle, which could run code, and is never read
llm.c       256 int32 of header (magic number, version, number of ids), then uint16 or uint32
Megatron    ids in the .bin; the .idx has their type and the length and offset of each document
"""

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
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
from txlcli.workflows.exchange.token_types import has_fractions, head_of, other_type, type_named

BLOCK = 1 << 20  # ids
BIN = ".bin"
IDX = ".idx"
VOCABULARY = "vocab.json"
"""File of the vocabulary that an export writes next to the ids."""
WITHOUT_HEADER = "nanoGPT"
"""Format of ids without a header."""
LLM_C_HEADER = 1024  # bytes of int32
LLM_C_VERSIONS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
"""Magic number and version by the type of ids: of GPT-2's vocabulary, of Llama 3's."""
MAGIC = b"MMIDIDX\0\0"
MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents (one more than there are)
MEGATRON_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Types of ids by their code."""
LONGEST_DOCUMENT = 1 << 30
"""Most ids of a document that is written for Megatron, whose lengths are int32."""
MAX_LLM_C_IDS = (1 << 31) - 1
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
    by_split = _by_split(source, is_export=vocab_size is not None)
    if not by_split:
        return None
    if dtype is None and vocab_size is not None:
        dtype = dtype_of("nanogpt", vocab_size)
    files: list[_TokenFile] = []
    splits = {}
    for split, paths in by_split.items():
        opened = [_open(path, dtype) for path in paths]
        splits[split] = tuple(file.ids for file in opened)
        files += opened
    types = sorted({f"{file.format} {file.dtype.name}" for file in files})
    if len(types) > 1:
        raise CorpusInputError(f"{source}: its files are of {' and '.join(types)} ids; keep one format in a folder")
    return TokenFiles(files[0].format, files[0].dtype, splits, _documents(files))


def _by_split(source: Path, *, is_export: bool) -> dict[str, list[Path]]:
    """Return the .bin files of each split, or all under "" if none has a split; none if the source is text."""
    if not source.is_dir():
        ending = source.suffix.lower()
        if ending == IDX:
            return {"": [source.with_suffix(BIN)]}
        return {"": [source]} if ending == BIN else {}
    visible = text_files(source)
    files = [path for path in visible if path.suffix.lower() == BIN]
    if not files:
        return {}
    is_named = is_export or any(splits_in(path.relative_to(source)) == {"train"} for path in files)
    if not is_named and any(_is_text(path) for path in visible):
        return {}
    return files_by_split(files, source, "rename or move such files") or {"": files}


def _is_text(path: Path) -> bool:
    return path.suffix.lower() not in (BIN, IDX, ".pkl") and not is_companion(path)


def _documents(files: Sequence[_TokenFile]) -> Documents | None:
    """Return the documents of all files; None if they are not several."""
    offsets = {file.ids.path: file.documents for file in files if file.documents is not None}
    if sum(map(len, offsets.values())) <= 1:
        return None
    return Documents("index", offsets=offsets)


def _open(path: Path, dtype: str | None) -> _TokenFile:
    if not path.is_file() or not path.stat().st_size:
        raise CorpusInputError(f"{path}: missing or empty; the ids of an .idx are in the .bin next to it")
    for index in (path.with_suffix(IDX), path.with_suffix(IDX.upper())):
        if index.is_file():
            return _of_megatron(path, index)
    return _of_llm_c(path, dtype) or _without_header(path, dtype)


def _without_header(path: Path, dtype: str | None) -> _TokenFile:
    size = path.stat().st_size
    ids = type_named(dtype or "uint16")
    if size % ids.itemsize:
        raise CorpusInputError(
            f"{path}: {size:,} bytes are not a whole number of {ids.name} ids; the file is truncated, or has another "
            "`dtype`; `tokenizer` byte reads its bytes"
        )
    if format_of(path) == "zip":
        raise CorpusInputError(f"{path}: an archive, such as a checkpoint of PyTorch, not ids; write its ids to a .bin")
    if ids.itemsize > 1 and has_fractions(head_of(path)):
        raise CorpusInputError(f"{path}: its bytes are those of floating-point numbers; write the ids as whole numbers")
    guess = other_type(path, ids)
    if guess is not None and (guess.is_certain or dtype is None):
        otherwise = "" if guess.is_certain else f", or `dtype` {ids.name} if that is right"
        raise CorpusInputError(
            f"{path}: its bytes are those of {guess.dtype} ids, not of {dtype or ids.name}; "
            f"give `dtype` {guess.dtype}{otherwise}"
        )
    return _TokenFile(WITHOUT_HEADER, ids, Slice(path, 0, size))


def _of_llm_c(path: Path, dtype: str | None) -> _TokenFile | None:
    """Return the ids after a header of llm.c; None if there is none, or if it is wrong and the user gave a type."""
    numbers = np.fromfile(path, "<i4", 3).tolist()  # the rest of the header is not used
    if len(numbers) < 3:
        numbers += [0, 0, 0]
    magic, version, count = numbers[:3]
    size = path.stat().st_size
    for name, known in LLM_C_VERSIONS.items():
        ids = type_named(name)
        if (magic, version) == known and count > 0 and size == LLM_C_HEADER + count * ids.itemsize:
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
    file = _read_index(path, index, size)
    if file is None:
        raise CorpusInputError(f"{index}: damaged, or not the index of {path.name}; write both again")
    return file


def _read_index(path: Path, index: Path, size: int) -> _TokenFile | None:
    """Return the ids of a .bin of `size` bytes and their documents; None if the index is not of such a file."""
    with index.open("rb") as file:
        header = file.read(MEGATRON_HEADER.size).ljust(MEGATRON_HEADER.size, b"\0")
        magic, version, code, n_sequences, n_documents = MEGATRON_HEADER.unpack(header)
        if magic != MAGIC or version != 1 or code not in MEGATRON_TYPES:
            return None
        modes_size = index.stat().st_size - (MEGATRON_HEADER.size + 12 * n_sequences + 8 * n_documents)
        if modes_size not in (0, n_sequences):  # some data has a mode of one byte per sequence
            return None
        lengths = np.fromfile(file, "<i4", n_sequences)
        offsets = np.fromfile(file, "<i8", n_sequences)
        bounds = np.fromfile(file, "<i8", n_documents)  # numbers of sequences
    dtype = type_named(MEGATRON_TYPES[code])
    edges = np.cumsum(np.append(0, lengths)) * dtype.itemsize
    steps = np.diff(bounds, prepend=0, append=n_sequences)
    if not np.array_equal(edges, np.append(offsets, size)) or lengths.min(initial=0) < 0 or steps.min() < 0:
        return None
    starts = array("q", np.unique(edges[bounds]).tobytes())
    return _TokenFile("Megatron", dtype, Slice(path, 0, size), starts)


def dtype_of(format: str, vocab_size: int) -> str:
    """Return the type of the ids in a file that is written: the one that the system chooses for a vocabulary."""
    if format == "megatron":
        return "uint16" if vocab_size < 65_500 else "int32"
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def write(format: str, path: Path, ids: NDArray[Any], vocab_size: int, starts: NDArray[Any] | None = None) -> None:
    """Write ids as a .bin of nanogpt, llm.c or megatron, and for Megatron the .idx.

    If `starts` has the first tokens of sentences, each is a document of Megatron.
    """
    dtype = type_named(dtype_of(format, vocab_size))
    count = len(ids)
    if format == "llm.c" and count > MAX_LLM_C_IDS:
        raise ExportError(
            f"{path.name}: {count:,} ids are more than an llm.c file can declare ({MAX_LLM_C_IDS:,}); give `format` "
            "nanogpt or megatron"
        )
    with path.open("wb") as file:
        if format == "llm.c":
            header = np.array([*LLM_C_VERSIONS[dtype.name], count], "<i4")
            file.write(header.tobytes().ljust(LLM_C_HEADER, b"\0"))
        for start in range(0, count, BLOCK):
            file.write(ids[start : start + BLOCK].astype(dtype).tobytes())
    if format == "megatron":
        firsts = np.arange(0, count, LONGEST_DOCUMENT) if starts is None else starts.astype(np.int64)
        _write_index(path.with_suffix(IDX), dtype, firsts, count)


def _write_index(path: Path, dtype: np.dtype[Any], firsts: NDArray[np.int64], total: int) -> None:
    code = 8 if dtype.itemsize == 2 else 4
    count = len(firsts)
    with path.open("wb") as file:
        file.write(MEGATRON_HEADER.pack(MAGIC, 1, code, count, count + 1))
        np.diff(firsts, append=total).astype("<i4").tofile(file)
        (firsts * dtype.itemsize).astype("<i8").tofile(file)
        np.arange(count + 1, dtype="<i8").tofile(file)
