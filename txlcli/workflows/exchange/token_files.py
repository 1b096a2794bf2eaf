"""Files of token ids of other systems: nanoGPT's, llm.c's and LitGPT's .bin, Megatron's and fairseq's .bin with .idx.

nanoGPT     ids without a header, uint16; its meta.pkl is a pickle, which could run code, and is never read
llm.c       256 int32 of header (magic number, version, number of ids), then uint16 or uint32
LitGPT      24 bytes of header (magic number, version, type, number of ids), then the ids
Megatron    ids in the .bin; the .idx has their type, the length and offset of each sequence, and the documents
fairseq     the same without documents; the older TNTIDX of both has the end of each sequence in ids
"""

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import Slice
from txlcli.corpora.directory import files_by_split
from txlcli.corpora.documents import Documents, documents_at
from txlcli.corpora.locate import is_companion, splits_in, text_files
from txlcli.corpora.signatures import format_of_header
from txlcli.data.vocabulary import MAX_IDS
from txlcli.errors import CorpusInputError, ExportError, UsageError
from txlcli.workflows.exchange.token_types import advice, are_below, has_fractions, other_type, type_named

BLOCK = 1 << 20  # ids
BIN = ".bin"
IDX = ".idx"
VOCABULARY = "vocab.json"
"""File of the vocabulary that an export writes next to the ids."""
WITHOUT_HEADER = "nanoGPT"
"""Format of ids without a header."""
FAIRSEQ = "fairseq"
FAIRSEQ_OLD = "fairseq (TNTIDX)"
"""Older format of fairseq, whose writer adds one to each id."""
LLM_C_HEADER = 1024  # bytes of int32
LLM_C_NUMBERS = struct.Struct("<3i")  # magic, version, ids; the rest of the header is not used
LLM_C_VERSIONS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
"""Magic number and version by the type of ids: of GPT-2's vocabulary, of Llama 3's."""
LLM_C_MAGICS = range(20240101, 20300101)
"""Dates, which are the magic numbers of llm.c: also those of other files than of ids, such as models."""
LITGPT_HEADER = struct.Struct("<7sQBQ")  # magic, version, type, ids
LITGPT_MAGIC = b"LITPKDS"
MAGIC = b"MMIDIDX\0\0"
FAIRSEQ_HEADER = struct.Struct("<9sQBQ")  # magic, version, type, sequences
MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # the same, and documents (one more than there are)
OLD_MAGIC = b"TNTIDX\0\0"
OLD_HEADER = struct.Struct("<8sQQQQQ")  # magic, version, type, bytes of an id, sequences, sizes
TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16", 9: "uint32"}
"""Types of ids by their code in headers."""
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
    joined: tuple[Path, ...] = ()
    """Files of the user that were joined, one document after the other."""
    left_out: tuple[str, ...] = ()
    """Names of what the files have next to the ids."""

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


@dataclass(frozen=True)
class IdType:
    """Known facts about ids without a header."""

    dtype: str | None = None
    """Type that the user gives."""
    vocab_size: int | None = None
    """Size of the vocabulary; None if it is not written down."""
    is_export: bool = False
    """True if txl wrote the files, so that the vocabulary tells the type."""

    @property
    def name(self) -> str:
        """Type as which the ids are read."""
        return self.dtype or dtype_of("nanogpt", self.vocab_size or 1)


def find(source: Path, id_type: IdType) -> TokenFiles | None:
    """Return the token files at a path; None if it is text.

    Token files are a file that ends with .bin or .idx, and the .bin files of a directory if one is named after train,
    or if there is no text; next to text, those that have an index or a header.
    """
    by_split = _by_split(source, is_export=id_type.is_export)
    if not by_split:
        return None
    if (id_type.vocab_size or 0) > MAX_IDS:
        raise UsageError(f"`vocab_size` {id_type.vocab_size} is too large for ids; use at most {MAX_IDS}")
    files: list[_TokenFile] = []
    splits = {}
    for split, paths in by_split.items():
        opened = [_open(path, id_type) for path in paths]
        splits[split] = tuple(file.ids for file in opened)
        files += opened
    types = sorted({f"{file.format} {file.dtype.name}" for file in files})
    if len(types) > 1:
        raise CorpusInputError(f"{source}: its files are of {' and '.join(types)} ids; keep one format in a folder")
    offsets = {file.ids.path: file.documents for file in files if file.documents is not None}
    return TokenFiles(files[0].format, files[0].dtype, splits, documents_at(offsets, splits))


def has_ids(source: Path) -> bool:
    """Return True if `find` reads token ids at a path, whatever vocabulary is next to them."""
    return bool(_by_split(source, is_export=False))


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
        files = [path for path in files if _has_index(path) or _has_header(path)]
        if not files:
            return {}
    return files_by_split(files, source)


def _is_text(path: Path) -> bool:
    return path.suffix.lower() not in (BIN, IDX, ".pkl") and not is_companion(path)


def _indexes(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(IDX), path.with_suffix(IDX.upper())


def _has_index(path: Path) -> bool:
    return any(index.is_file() for index in _indexes(path))


def _has_header(path: Path) -> bool:
    """Return True if a file begins with the header of llm.c or LitGPT."""
    return _of_llm_c(path, "uint16") is not None or _of_litgpt(path) is not None


def _open(path: Path, id_type: IdType) -> _TokenFile:
    if not path.is_file() or not path.stat().st_size:
        raise CorpusInputError(f"{path}: missing or empty; the ids of an .idx are in the .bin next to it")
    for index in _indexes(path):
        if index.is_file():
            return _of_index(path, index)
    return _of_llm_c(path, id_type.dtype) or _of_litgpt(path) or _without_header(path, id_type)


def _without_header(path: Path, id_type: IdType) -> _TokenFile:
    size = path.stat().st_size
    ids = type_named(id_type.name)
    if id_type.is_export and np.iinfo(ids).max < (id_type.vocab_size or 0) - 1:
        raise CorpusInputError(
            f"{path}: txl wrote the ids of a vocabulary of {id_type.vocab_size:,}, too many for {ids.name}; leave out "
            "`dtype`"
        )
    known = format_of_header(path)
    if known is not None:
        raise CorpusInputError(f"{path}: {known}, not ids without a header; write its ids alone to a .bin")
    if size % ids.itemsize:
        raise CorpusInputError(
            f"{path}: {size:,} bytes are not a whole number of {ids.name} ids; the file is truncated, or has another "
            "`dtype`; `tokenizer` byte reads its bytes"
        )
    if ids.itemsize > 1 and has_fractions(path):
        raise CorpusInputError(f"{path}: its bytes are those of floating-point numbers; write the ids as whole numbers")
    if not id_type.is_export or id_type.dtype is not None:
        _check_type(path, ids, id_type)
    return _TokenFile(WITHOUT_HEADER, ids, Slice(path, 0, size))


def _check_type(path: Path, ids: np.dtype[Any], id_type: IdType) -> None:
    """Reject ids that seem to be of another type than the user's or the default one."""
    guess = other_type(path, ids)
    if guess is None or (id_type.dtype is not None and not guess.is_certain):
        return
    if not guess.is_certain and id_type.vocab_size and are_below(path, ids, id_type.vocab_size):
        return
    way = advice(path, guess, id_type.vocab_size)
    raise CorpusInputError(f"{path}: its bytes do not look like {id_type.name} ids; {way}")


def _of_litgpt(path: Path) -> _TokenFile | None:
    """Return the ids of a packed chunk of LitGPT; None for another file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        magic, version, code, count = _unpacked(LITGPT_HEADER, file)
    if magic != LITGPT_MAGIC:
        return None
    ids = type_named(TYPES.get(code, "uint8"))
    if version != 1 or code not in TYPES or size != LITGPT_HEADER.size + count * ids.itemsize:
        raise CorpusInputError(
            f"{path}: {size:,} bytes do not fit its header of LitGPT (version {version}, type {code}, {count:,} ids); "
            "write it again"
        )
    return _TokenFile("LitGPT", ids, Slice(path, LITGPT_HEADER.size, size))


def _of_llm_c(path: Path, dtype: str | None) -> _TokenFile | None:
    """Return the ids after a header of llm.c; None if there is none, or if it is wrong and the user gave a type."""
    with path.open("rb") as file:
        magic, version, count = _unpacked(LLM_C_NUMBERS, file)
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
    if magic in LLM_C_MAGICS and dtype is None and _has_zeros_at_end_of_header(path):
        raise CorpusInputError(
            f"{path}: another file of llm.c than token ids (magic number {magic}); write its ids alone to a .bin, or "
            "give `dtype` uint16 if the file has no header"
        )
    return None


def _has_zeros_at_end_of_header(path: Path) -> bool:
    """Return True if a file has zeros where the header of llm.c is not used."""
    with path.open("rb") as file:
        header = file.read(LLM_C_HEADER)
    return len(header) == LLM_C_HEADER and not any(header[LLM_C_HEADER // 2 :])


@dataclass(frozen=True)
class _Index:
    """Sequences of a .bin, as its .idx describes them."""

    format: str
    dtype: np.dtype[Any]
    lengths: NDArray[np.integer]
    """Ids of each sequence."""
    offsets: NDArray[np.integer]
    """Bytes before each sequence."""
    bounds: NDArray[np.integer]
    """Sequences before each document, and all of them."""


def _of_index(path: Path, index: Path) -> _TokenFile:
    """Return the ids of a .bin, which must be the sequences of its index, one after the other."""
    size = path.stat().st_size
    with index.open("rb") as file:
        is_old = file.peek().startswith(OLD_MAGIC)
        read = _read_old_index if is_old else _read_index
        sequences = read(file, index.stat().st_size)
    if sequences is not None:
        # Bytes before each sequence, as their lengths say, and the size of all.
        offsets = np.cumsum(np.append(0, sequences.lengths)) * sequences.dtype.itemsize
        is_complete = np.array_equal(offsets, np.append(sequences.offsets, size))
        has_lengths = sequences.lengths.min(initial=0) >= 0
        sequences_per_document = np.diff(sequences.bounds, prepend=0, append=len(sequences.lengths))
        if is_complete and has_lengths and sequences_per_document.min() >= 0:
            starts = np.unique(offsets[sequences.bounds])
            documents = array("q", starts[starts < size].tobytes())
            return _TokenFile(sequences.format, sequences.dtype, Slice(path, 0, size), documents)
    if is_old:
        raise CorpusInputError(
            f"{index}: not the index of {path.name}, in the older format of fairseq and Megatron (TNTIDX); write both "
            "again in their mmap format, or move the .idx away and give the `dtype` of the ids"
        )
    raise CorpusInputError(f"{index}: damaged, or not the index of {path.name}; write both again")


def _read_index(file: BinaryIO, size: int) -> _Index | None:
    """Return the content of an index; None if it is damaged, or of another program."""
    magic, version, code, count, n_bounds = _unpacked(MEGATRON_HEADER, file)
    if magic != MAGIC or version != 1 or code not in TYPES:
        return None
    format = "Megatron"
    if size == FAIRSEQ_HEADER.size + 12 * count:
        format = FAIRSEQ
        file.seek(FAIRSEQ_HEADER.size)
    elif size - (MEGATRON_HEADER.size + 12 * count + 8 * n_bounds) not in (0, count):  # some data has a byte each
        return None
    lengths = np.fromfile(file, "<i4", count)
    offsets = np.fromfile(file, "<i8", count)
    bounds = np.arange(count + 1) if format == FAIRSEQ else np.fromfile(file, "<i8", n_bounds)
    return _Index(format, type_named(TYPES[code]), lengths, offsets, bounds)


def _read_old_index(file: BinaryIO, size: int) -> _Index | None:
    """Return the content of an older index: the first size and the first id of each sequence, the sizes, documents."""
    _, version, code, itemsize, count, n_sizes = _unpacked(OLD_HEADER, file)
    if version != 1 or code not in TYPES or count != n_sizes or 24 * count > size:
        return None
    numbers = np.fromfile(file, "<i8")
    dtype = type_named(TYPES[code])
    n_sequences = 3 * count + 2
    format = FAIRSEQ_OLD
    bounds = np.arange(count + 1)
    if len(numbers) > n_sequences and len(numbers) == 1 + n_sequences + numbers[0]:
        format = "Megatron"
        bounds = numbers[1 + n_sequences :]
        numbers = numbers[1:]
    elif len(numbers) != n_sequences:
        return None
    firsts = numbers[count + 1 : 2 * count + 1]
    lengths = numbers[2 * count + 2 : n_sequences]
    if itemsize != dtype.itemsize or len(bounds) == 0:
        return None
    return _Index(format, dtype, lengths, firsts * itemsize, bounds)


def _unpacked(header: struct.Struct, file: BinaryIO) -> tuple[Any, ...]:
    """Return the fields of a header, as if zeros followed a file that is too short for it."""
    return header.unpack(file.read(header.size).ljust(header.size, b"\0"))


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
        if starts is None:
            firsts = np.arange(0, count, LONGEST_DOCUMENT)
        else:
            firsts = starts.astype(np.int64)
        _write_index(path.with_suffix(IDX), dtype, firsts, count)


def _write_index(path: Path, dtype: np.dtype[Any], firsts: NDArray[np.int64], total: int) -> None:
    code = 8 if dtype.itemsize == 2 else 4
    count = len(firsts)
    with path.open("wb") as file:
        file.write(MEGATRON_HEADER.pack(MAGIC, 1, code, count, count + 1))
        np.diff(firsts, append=total).astype("<i4").tofile(file)
        (firsts * dtype.itemsize).astype("<i8").tofile(file)
        np.arange(count + 1, dtype="<i8").tofile(file)
