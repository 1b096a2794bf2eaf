"""The HDF5 file that `txl prepare` writes: the token ids of each split, the vocabulary, and facts about both."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from txlcli.corpora import CORPORA
from txlcli.corpora.corpus import SPLITS
from txlcli.data.hdf5 import array, member, read_array
from txlcli.data.sealed_hdf5 import DamagedFileError, NewFile, read_hdf5, replacing_hdf5
from txlcli.data.vocabulary import Vocab, smallest_dtype
from txlcli.errors import StoreError, VocabularyError
from txlcli.system.input_files import check_regular
from txlcli.system.plain_json import parse_json, value_of

FORMAT = "txl token store"
VERSION = 1
SUFFIX = ".h5"
_HASH_BLOCK = 1 << 22  # tokens
_ALIGNMENT = 64  # bytes; tensors need aligned memory maps
_TEXTS = ("name", "corpus", "tokenizer", "unit", "metric", "source_digest")


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of one split, which are known before it is written."""

    tokens: int
    """Length of the token stream."""
    words: int
    """Number of original words, plus one per line end if the benchmark counts those."""
    bytes: int
    """Number of original bytes."""
    unknown: int
    """Number of tokens whose symbol is not in the vocabulary."""
    types: int
    """Number of distinct ids."""


@dataclass(frozen=True, kw_only=True)
class SplitInfo(SplitCounts):
    """Counts of one split, and its digest."""

    sha256: str
    """Digest of the ids as stored in the file."""


@dataclass(frozen=True)
class StoreFacts:
    """Facts about a store as a whole."""

    name: str
    corpus: str
    tokenizer: str
    unit: str
    """Meaning of one token: byte, char, word, piece, or id if it is not known."""
    metric: str
    """Either bpc or ppl."""
    conventions: Mapping[str, str]
    notes: tuple[str, ...]
    source_digest: str
    every_byte_scored: bool
    """True if the tokens of a split represent every byte of its text, so that bits per byte can be computed."""


@dataclass(frozen=True)
class _Arrays:
    """Place and type of the ids of a split."""

    offset: int | None
    """First byte in the file; None if they are not stored in one piece, or if there are none."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has_sentence_starts: bool


@dataclass(frozen=True, kw_only=True)
class _Header:
    """Everything in a store but the ids and the sentences."""

    facts: StoreFacts
    vocabulary: str
    fingerprint: str
    splits: dict[str, SplitInfo]
    arrays: dict[str, _Arrays]


class TokenStore:
    """An open token store."""

    def __init__(self, path: Path, header: _Header, *, is_verified: bool = False) -> None:
        self._is_verified = is_verified
        self.path, self.facts, self.splits = path, header.facts, header.splits
        facts = header.facts
        self.name, self.corpus, self.tokenizer = facts.name, facts.corpus, facts.tokenizer
        self.unit, self.metric = facts.unit, facts.metric
        self.conventions, self.notes = dict(facts.conventions), facts.notes
        self.source_digest, self.every_byte_scored = facts.source_digest, facts.every_byte_scored
        self._vocabulary, self._fingerprint, self._arrays = header.vocabulary, header.fingerprint, header.arrays
        self._open: dict[str, NDArray[Any]] = {}

    @classmethod
    def open(cls, path: Path, *, is_verified: bool = False) -> "TokenStore":
        """Open a store for reading.

        Args:
            path: of the store.
            is_verified: True if another process of this machine verifies the tokens, and ends this one if it has to.

        Raises:
            StoreError: the file is missing, damaged, in a newer format, or not a token store.
        """
        path = check_regular(Path(path))
        if not path.is_file():
            raise StoreError(f'no token store at {path}; run "{prepare_command(path.stem)}" first')
        try:
            return cls(path, read_hdf5(path, partial(_read_header, path)), is_verified=is_verified)
        except PermissionError as error:
            raise StoreError(f"{path}: cannot be read (Permission denied); check its permissions") from error
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise StoreError(f"{path} is damaged or no HDF5 file ({_short(error)}); {_again(path)}") from error

    @cached_property
    def vocab(self) -> Vocab:
        """Vocabulary of the store."""
        try:
            vocab = Vocab.from_json(self._vocabulary)
        except VocabularyError as error:
            raise StoreError(f"{self.path}: {error}; {_again(self.path)}") from error
        if vocab.fingerprint != self._fingerprint:
            raise StoreError(f"{self.path}: the vocabulary is damaged (wrong fingerprint); {_again(self.path)}")
        return vocab

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the vocabulary."""
        return self.vocab.fingerprint

    def ids(self, split: str) -> NDArray[Any]:
        """Return the token stream of a split as a read-only memory map; the checksum is verified at the first call.

        Raises:
            StoreError: the split is missing or damaged.
        """
        if split not in self._open:
            self._open[split] = self._map(split)
        return self._open[split]

    def info(self, split: str) -> SplitInfo:
        """Return the counts of a split.

        Raises:
            StoreError: the store has no such split.
        """
        if split not in self.splits:
            existing = ", ".join(self.splits)
            raise StoreError(
                f'{self.path} has no {split} split (it holds {existing}); run "{prepare_command(self.name)} --force" '
                "with a source that has it"
            )
        return self.splits[split]

    def digest(self, split: str) -> str | None:
        """Return the digest of a split; None if the store does not have it."""
        return self.splits[split].sha256 if split in self.splits else None

    def verify(self) -> None:
        """Check the checksums of all tokens and sentences, and the vocabulary.

        Raises:
            StoreError: a part is damaged.
        """
        for split in self.splits:
            self.ids(split)
            self.sentence_starts(split)
        assert self.vocab

    def sentence_starts(self, split: str) -> NDArray[Any] | None:
        """Return the offset of each sentence in the stream; None unless the corpus consists of unrelated sentences."""
        info = self.info(split)
        if not self._arrays[split].has_sentence_starts:
            return None
        try:
            starts, digest = read_hdf5(self.path, partial(_read_sentence_starts, split=split))
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise StoreError(f"{self.path} cannot be read ({_short(error)}); {_again(self.path)}") from error
        rising = starts.ndim == 1 and starts.dtype.kind in "iu" and bool(np.all(starts[1:] > starts[:-1]))
        inside = not starts.size or 0 <= starts[0] <= starts[-1] < info.tokens
        if not (rising and inside) or digest not in (None, _digest(starts)):
            raise StoreError(f"{self.path}: the sentences of the {split} split are damaged; {_again(self.path)}")
        return starts

    def _map(self, split: str) -> NDArray[Any]:
        info = self.info(split)
        offset, dtype, shape = self._arrays[split].offset, self._arrays[split].dtype, self._arrays[split].shape
        if offset is None or shape != (info.tokens,) or dtype.kind != "u":
            raise StoreError(f"{self.path}: the {split} split is damaged; {_again(self.path)}")
        try:
            ids: NDArray[Any] = np.memmap(self.path, dtype=dtype, mode="r", offset=offset, shape=shape)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path}: the {split} split cannot be read ({error}); {_again(self.path)}") from error
        if not self._is_verified:
            self._check(split, dtype, offset)
        return ids

    def _check(self, split: str, dtype: np.dtype[Any], offset: int) -> None:
        """Compare the tokens of a split with its checksum and with the vocabulary, without mapping them into memory."""
        digest, largest = hashlib.sha256(), -1
        with self.path.open("rb") as file:
            file.seek(offset)
            for start in range(0, self.info(split).tokens, _HASH_BLOCK):
                block = np.fromfile(file, dtype, min(_HASH_BLOCK, self.info(split).tokens - start))
                digest.update(block.data)
                largest = max(largest, int(block.max(initial=0)))
        if digest.hexdigest() != self.info(split).sha256:
            raise StoreError(f"{self.path}: the {split} split is damaged (wrong checksum); {_again(self.path)}")
        if largest >= self.vocab.size:
            raise StoreError(
                f"{self.path}: the {split} split has the id {largest:,}, but its vocabulary {self.vocab.size:,}; "
                f"{_again(self.path)}"
            )


def _read_header(path: Path, file: h5py.File) -> _Header:
    if file.attrs.get("format") != FORMAT:
        raise StoreError(f"{path} is an HDF5 file, but no token store of txl; give another --data-dir or move it away")
    version = int(file.attrs["version"])
    if version > VERSION:
        raise StoreError(
            f"{path} has format {version}, this txl reads up to {VERSION}; upgrade txl, or prepare the store again"
        )
    groups = member(file, "splits")
    splits = {name: _read_info(member(groups, name)) for name in groups}
    return _Header(
        facts=_read_facts(file),
        vocabulary=bytes(read_array(file, "vocabulary")).decode(),
        fingerprint=str(file.attrs["fingerprint"]),
        splits={name: splits[name] for name in sorted(splits, key=SPLITS.index)},
        arrays={name: _describe_arrays(groups[name]) for name in splits},
    )


def _read_facts(file: h5py.File) -> StoreFacts:
    facts = parse_json(file.attrs["facts"])
    conventions, notes = value_of(facts, "conventions", dict), value_of(facts, "notes", list)
    if not all(isinstance(text, str) for text in (*conventions.values(), *notes)):
        raise ValueError("a convention or a note is no text")
    texts = {key: value_of(facts, key, str) for key in _TEXTS}
    return StoreFacts(
        **texts,
        conventions=conventions,
        notes=tuple(notes),
        every_byte_scored=value_of(facts, "every_byte_scored", bool),
    )


def _read_info(group: h5py.Group) -> SplitInfo:
    info = parse_json(group.attrs["info"])
    counts = {field.name: value_of(info, field.name, int) for field in fields(SplitCounts)}
    if any(count < 0 for count in counts.values()):
        raise ValueError("a count is negative")
    return SplitInfo(**counts, sha256=value_of(info, "sha256", str))


def _describe_arrays(group: h5py.Group) -> _Arrays:
    ids = array(group, "ids")
    return _Arrays(ids.id.get_offset(), ids.dtype, ids.shape, "sentence_starts" in list(group))


def _read_sentence_starts(file: h5py.File, split: str) -> tuple[NDArray[Any], str | None]:
    """Return the offsets of the sentences and their digest, which files of earlier versions do not have."""
    group = member(file["splits"], split)
    return read_array(group, "sentence_starts"), group.attrs.get("sentence_starts_sha256")


def _again(path: Path) -> str:
    return f'run "{prepare_command(path.stem)} --force" again'


def prepare_command(name: str) -> str:
    """Return the command that prepares the store of that name; the path of own text is left for the user to fill in."""
    parts = re.fullmatch(r"(.+)-(released|byte|char|word|sp|bpe|vocab)(\d*|-[0-9a-f]{8})", name)
    if (parts[1] if parts else name) not in CORPORA:
        return f"txl prepare PATH --name {name}"
    if parts is None:
        return f"txl prepare {name}"
    options = {
        "released": "--released-convention",
        "vocab": "--vocab FILE",
        "sp": f"--tokenizer sentencepiece --vocab-size {parts[3]}",
        "bpe": f"--tokenizer sentencepiece --vocab-size {parts[3]} --sp-type bpe",
    }
    return f"txl prepare {parts[1]} {options.get(parts[2], f'--tokenizer {parts[2]}')}"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


def _digest(ids: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(ids), _HASH_BLOCK):
        digest.update(ids[start : start + _HASH_BLOCK].data)
    return digest.hexdigest()


class StoreWriter:
    """Writes the splits of one store."""

    def __init__(self, file: NewFile, dtype: np.dtype[Any]) -> None:
        self._file, self._splits = file, file.hdf5.create_group("splits")
        self.dtype = dtype

    def add(self, split: str, counts: SplitCounts, blocks: Iterable[NDArray[Any]]) -> None:
        """Write one split from consecutive blocks of ids, `counts.tokens` ids in total."""
        group = self._splits.create_group(split)
        dataset = group.create_dataset("ids", shape=(counts.tokens,), dtype=self.dtype)
        self._file.leave_unsealed(dataset)
        digest, done = hashlib.sha256(), 0
        for block in blocks:
            ids = np.ascontiguousarray(block, dtype=self.dtype)
            if ids.size:
                dataset.write_direct(ids, dest_sel=np.s_[done : done + ids.size])
                self._file.raise_error()
            digest.update(ids.data)
            done += ids.size
        info = SplitInfo(**vars(counts), sha256=digest.hexdigest())
        group.attrs["info"] = json.dumps(vars(info))

    def add_sentence_starts(self, split: str, starts: NDArray[Any]) -> None:
        """Write the offsets of the sentences of a split."""
        group = self._splits[split]
        self._file.leave_unsealed(group.create_dataset("sentence_starts", data=starts))
        group.attrs["sentence_starts_sha256"] = _digest(starts)


@contextmanager
def writing(path: Path, facts: StoreFacts, vocab: Vocab, *, work: Path | None = None) -> Iterator[StoreWriter]:
    """Yield a writer for a new store, which is written to a temporary file and renamed if the block succeeds.

    Args:
        path: path of the store.
        facts: facts about the store.
        vocab: vocabulary of the store.
        work: folder for the temporary file, on the same disk; by default that of the store.

    Raises:
        StoreError: the file cannot be written; no partial file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = (work or path.parent) / f".{path.name}.{os.getpid()}.tmp"
    alignment = {"alignment_threshold": 1, "alignment_interval": _ALIGNMENT}
    try:
        with replacing_hdf5(path, draft, check=_check_everything, **alignment) as file:
            hdf5 = file.hdf5
            hdf5.attrs["format"], hdf5.attrs["version"] = FORMAT, VERSION
            hdf5.attrs["facts"] = json.dumps({**vars(facts), "conventions": dict(facts.conventions)})
            hdf5.attrs["fingerprint"] = vocab.fingerprint
            hdf5["vocabulary"] = np.frombuffer(vocab.to_json().encode(), dtype=np.uint8)
            yield StoreWriter(file, smallest_dtype(vocab.size))
    except (OSError, RuntimeError, DamagedFileError) as error:
        raise StoreError(
            f"could not write {path} ({_reason(error)}); free some space or give another --data-dir"
        ) from error


def _check_everything(path: Path) -> None:
    TokenStore.open(path).verify()


def _reason(error: BaseException) -> str:
    """Return the system's reason for an error, without internals of the library."""
    number = getattr(error, "errno", None)
    if number:
        return os.strerror(number)
    inner = re.search(r"errno = (\d+)", str(error))
    return os.strerror(int(inner[1])) if inner else _short(error)


def stores_in(folder: Path) -> list[Path]:
    """Return the files that may be stores, sorted by name."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))
