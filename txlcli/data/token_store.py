"""The HDF5 file that `txl prepare` writes: the token ids of each split, the vocabulary, and facts about both."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from txlcli.data.hdf5 import (
    READ_ERRORS,
    DiskFile,
    Facts,
    array,
    creating,
    read_array,
    reading,
    set_attributes,
)
from txlcli.data.vocabulary import Ids, Vocab, smallest_dtype
from txlcli.errors import StoreError, VocabularyError, reason_of
from txlcli.system.atomic_files import replacing
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import check_regular
from txlcli.system.plain_json import parse_json

FORMAT = "txl token store"
VERSION = 1
IDS = "ids"
SENTENCE_STARTS = "sentence_starts"
STARTS_DIGEST = "sentence_starts_sha256"
SPLITS = ("train", "valid", "test")
BENCHMARKS = frozenset({"enwik8", "text8", "wt103", "wt2", "lm1b", "ptb", "stdlib"})
"""Corpora that `txl prepare` knows by name."""
BLOCK = 1 << 22  # bytes that are read at once
NAME = re.compile(r"(?s)^(.+?)(?:-(released|byte|char|word|sp|bpe|vocab)(\d*|-[0-9a-f]{8}))?$")
"""Name of a store: the corpus, and, if it is a benchmark with another convention, that one, and its size or digest."""


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of one split before its ids are written."""

    tokens: int
    """Length of the token stream."""
    words: int
    """Number of original words, plus one per line end if the benchmark counts those."""
    bytes: int
    """Number of original bytes."""


@dataclass(frozen=True, kw_only=True)
class SplitInfo(SplitCounts):
    """Counts of one split of a store, and its digest."""

    unknown: int
    """Number of tokens whose symbol is not in the vocabulary."""
    types: int
    """Number of distinct ids."""
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
    conventions: dict[str, str]
    notes: tuple[str, ...]
    source_digest: str
    every_byte_scored: bool
    """True if the tokens of a split represent every byte of its text, so that bits per byte can be computed."""
    changes: dict[str, int] = field(default_factory=dict)
    """Number of files, records, bytes and symbols of the source that were skipped or changed, by name."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts by name."""
        return {fact.name: getattr(self, fact.name) for fact in fields(StoreFacts)}


@dataclass(frozen=True)
class _Array:
    """Place and type of the elements of a dataset in the file."""

    path: Path
    offset: int
    """First byte of the elements in the file."""
    size: int
    """In bytes."""
    dtype: np.dtype[Any]
    sha256: str
    """Digest of the elements."""

    def problem(self, limit: int) -> str | None:
        """Return what is wrong with the elements, whole numbers below the limit with the digest; None if nothing is.

        Blocks are read, since pages of a memory map would count as memory.
        """
        if self.dtype.kind != "u":
            return f"elements of type {self.dtype}"
        digest = hashlib.sha256()
        largest = 0
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, self.size, BLOCK):
                block = file.read(min(BLOCK, self.size - start))
                digest.update(block)
                largest = max(largest, int(np.frombuffer(block, self.dtype).max()))
        if digest.hexdigest() != self.sha256:
            return "wrong checksum"
        if largest >= limit:
            return f"it contains {largest:,}, and the limit is {limit - 1:,}"
        return None

    def map(self) -> Ids:
        """Map the elements into memory, read-only."""
        if not self.size:  # HDF5 gives it no place
            return np.empty(0, self.dtype)
        count = self.size // self.dtype.itemsize
        return np.memmap(self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=(count,))


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStore(StoreFacts):
    """An open token store."""

    path: Path
    splits: Mapping[str, SplitInfo]
    arrays: Mapping[tuple[str, str], _Array] = field(repr=False)
    """Ids of each split, and where its sentences start if it was prepared with them."""
    vocabulary: str = field(repr=False)
    """Vocabulary as JSON; verified when `vocab` is read."""
    stored_fingerprint: str
    opened: dict[str, Ids] = field(default_factory=dict, repr=False)
    """Ids whose digest has been verified, by split."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a store for reading."""
        path = check_regular(Path(path))
        if not path.is_file():
            raise StoreError(f'no token store at {path}; run "{prepare_command(path.stem)}" first')
        try:
            with reading(path) as file:
                if file.attrs.get("format") != FORMAT.encode() or file.attrs["version"] != VERSION:
                    raise ValueError("an HDF5 file, but not a token store of this version of txl")
                return cls._read(path, file)
        except PermissionError as error:
            raise StoreError(f"{path}: cannot be read (Permission denied); check its permissions") from error
        except READ_ERRORS as error:
            raise StoreError(f"{path} is damaged or not a token store ({reason_of(error)}); {_again(path)}") from error

    @classmethod
    def _read(cls, path: Path, file: h5py.File) -> Self:
        facts = parse_json(file.attrs["facts"].decode())
        splits = {}
        arrays = {}
        for split in sorted(file["splits"], key=SPLITS.index):
            group = file["splits"][split]
            info = SplitInfo(**parse_json(group.attrs["info"].decode()))
            splits[split] = info
            arrays[split, IDS] = _describe(path, group, IDS, info.sha256)
            if SENTENCE_STARTS in group:
                sha256 = group.attrs[STARTS_DIGEST].decode()
                arrays[split, SENTENCE_STARTS] = _describe(path, group, SENTENCE_STARTS, sha256)
        facts["notes"] = (*facts["notes"], *_notes_on_unknown(splits))
        return cls(
            **facts,
            path=path,
            splits=splits,
            arrays=arrays,
            vocabulary=bytes(read_array(file, "vocabulary")).decode(),
            stored_fingerprint=file.attrs["fingerprint"].decode(),
        )

    @cached_property
    def vocab(self) -> Vocab:
        """Vocabulary of the store."""
        try:
            vocab = Vocab.from_json(self.vocabulary)
            if vocab.fingerprint != self.stored_fingerprint:
                raise VocabularyError("wrong fingerprint")
        except VocabularyError as error:
            raise StoreError(f"{self.path}: the vocabulary is damaged ({error}); {_again(self.path)}") from error
        return vocab

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the vocabulary."""
        return self.vocab.fingerprint

    def ids(self, split: str) -> Ids:
        """Return the token stream of a split as a read-only memory map; the digest is verified at the first call."""
        if split not in self.opened:
            self.info(split)  # raises the error if there is none
            self.opened[split] = self._map(self.arrays[split, IDS], f"the {split} split", self.vocab.size)
        return self.opened[split]

    def info(self, split: str) -> SplitInfo:
        """Return the counts of a split."""
        if split not in self.splits:
            raise StoreError(
                f"{self.path} has no {split} split (it holds {', '.join(self.splits)}); choose one of these, or run "
                f'"{prepare_command(self.name, force=True)}" with a source that has it'
            )
        return self.splits[split]

    def digest(self, split: str) -> str | None:
        """Return the digest of a split; None if the store does not have it."""
        return self.splits[split].sha256 if split in self.splits else None

    def verify(self) -> None:
        """Check the digests of all tokens and sentences, and the vocabulary."""
        for split in self.splits:
            self.ids(split)
            self.sentence_starts(split)
        assert self.vocab

    def sentence_starts(self, split: str) -> Ids | None:
        """Return the offset of each document in the stream as a read-only memory map, after verifying the digest.

        None unless the corpus consists of unrelated sentences, or was prepared with the places of its documents.
        """
        info = self.info(split)
        array = self.arrays.get((split, SENTENCE_STARTS))
        if array is None:
            return None
        return self._map(array, f"the list of sentences of the {split} split", info.tokens + 1)

    def _map(self, array: _Array, what: str, limit: int) -> Ids:
        """Map an array of numbers below a limit into memory, after verifying it."""
        problem = array.problem(limit)
        if problem is not None:
            raise StoreError(f"{self.path}: {what} is damaged ({problem}); {_again(self.path)}")
        return array.map()


def _notes_on_unknown(splits: Mapping[str, SplitInfo]) -> Iterator[str]:
    """Yield a note on each split that is mostly unknown."""
    for split, info in splits.items():
        if 2 * info.unknown > info.tokens:
            yield (
                f"{info.unknown:,} of the {info.tokens:,} tokens of {split} are not in the vocabulary; check that it "
                "is a vocabulary of this text"
            )


def _describe(path: Path, group: h5py.Group, name: str, sha256: str) -> _Array:
    dataset = array(group, name)
    offset = dataset.id.get_offset() or 0
    return _Array(path, offset, dataset.nbytes, dataset.dtype, sha256)


def corpus_name(store: str) -> str:
    """Return the name of the corpus whose text a store of that name has."""
    return NAME.sub(r"\1", store)


def _again(path: Path) -> str:
    return f'run "{prepare_command(path.stem, force=True)}" again'


def prepare_command(name: str, *, force: bool | None = None) -> str:
    """Return the command that prepares the store of that name; the path of own text is left for the user to fill in."""
    match = NAME.match(name)
    assert match is not None
    corpus, convention, size = match.groups(default="")
    if corpus not in BENCHMARKS:
        return command_line("prepare", "PATH", name=name, force=force)
    sentencepiece = {"tokenizer": "sentencepiece", "vocab_size": size}
    options: dict[str, dict[str, Any]] = {
        "": {},
        "released": {"released_convention": True},
        "vocab": {"vocab": "FILE"},
        "sp": sentencepiece,
        "bpe": {**sentencepiece, "sp_type": "bpe"},
    }
    chosen = options.get(convention, {"tokenizer": convention})
    return command_line("prepare", corpus, **chosen, force=force)


@dataclass(frozen=True)
class StoreWriter:
    """Writes the splits of one store."""

    splits: h5py.Group
    disk: DiskFile
    vocab: Vocab

    def add(
        self,
        split: str,
        counts: SplitCounts,
        blocks: Iterable[Ids],
        starts: Ids | None = None,
    ) -> None:
        """Write one split from consecutive blocks of ids, `counts.tokens` in total; -1 is a symbol that is unknown.

        Also write the offsets of documents, `starts`, but for those behind the last id.
        """
        group = self.splits.create_group(split)
        size = self.vocab.size
        used = np.zeros(size, dtype=np.bool_)
        unknown = 0

        def known() -> Iterator[Ids]:
            nonlocal unknown
            for block in blocks:
                is_unknown = block < 0
                if is_unknown.any():
                    assert self.vocab.unknown is not None
                    unknown += int(is_unknown.sum())
                    block[is_unknown] = self.vocab.unknown
                used[block] = True
                yield block

        sha256 = self._write(group, IDS, counts.tokens, smallest_dtype(size), known())
        info = SplitInfo(**vars(counts), unknown=unknown, types=int(used.sum()), sha256=sha256)
        set_attributes(group, {"info": json.dumps(asdict(info))})
        if starts is not None:
            offsets = starts[starts < max(counts.tokens, 1)]
            starts_sha256 = self._write(group, SENTENCE_STARTS, offsets.size, smallest_dtype(counts.tokens), [offsets])
            set_attributes(group, {STARTS_DIGEST: starts_sha256})

    def _write(self, group: h5py.Group, name: str, count: int, dtype: np.dtype[Any], blocks: Iterable[Ids]) -> str:
        """Write a dataset from consecutive blocks and return its digest."""
        dataset = group.create_dataset(name, shape=(count,), dtype=dtype)
        digest = hashlib.sha256()
        done = 0
        for block in blocks:
            elements = np.ascontiguousarray(block, dtype=dtype)
            if elements.size:
                dataset.write_direct(elements, dest_sel=np.s_[done : done + elements.size])
                self.disk.raise_error()
            digest.update(elements.data)
            done += elements.size
        if done < count:
            raise StoreError(f"{group.name}: {done:,} of {count:,} numbers; a source became shorter while it was read")
        return digest.hexdigest()


@contextmanager
def writing(path: Path, facts: StoreFacts, vocab: Vocab, *, work: Path | None = None) -> Iterator[StoreWriter]:
    """Yield a writer for a new store, which is written to a temporary file and renamed if the block succeeds.

    The temporary file is in `work`, a directory on the same disk, by default that of the store. A link to a store stays
    a link: the file that it leads to, often on another disk, is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path = path.resolve()
        work = None
    attributes: Facts = {
        "format": FORMAT,
        "version": VERSION,
        "facts": json.dumps(facts.to_json()),
        "fingerprint": vocab.fingerprint,
    }
    try:
        temporary = None if work is None else work / path.name
        with replacing(path, temporary) as draft:
            with creating(draft) as (file, disk):
                set_attributes(file, attributes)
                file["vocabulary"] = np.frombuffer(vocab.to_json().encode(), dtype=np.uint8)
                yield StoreWriter(file.create_group("splits"), disk, vocab)
            TokenStore.open(draft).verify()
    except (OSError, RuntimeError) as error:
        raise StoreError(
            f"could not write {path} ({reason_of(error)}); free some space or give another `data_dir`"
        ) from error


def stores_in(directory: Path) -> list[Path]:
    """Return the files that may be stores, sorted by name."""
    return sorted(path for path in directory.glob("*.h5") if not path.name.startswith("."))
