"""The description of a corpus: the source of its text, its splits, and the conventions of its benchmark."""

import fnmatch
import functools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Unit = Literal["byte", "char", "word"]
SPLITS = ("train", "valid", "test")
SHARES = (90.0, 5.0, 5.0)
"""Default shares of the splits, in percent, of a text that has none of its own."""


class CorpusError(Exception):
    """A corpus could not be downloaded, unpacked, read or split; the message says why and where."""


@dataclass(frozen=True)
class Download:
    """One file of the original distribution.

    `digest` is "algorithm:hex" and `size` is in bytes; None if not published. Addresses are tried in order. `mirror`
    are files of another host that contain the same text together; they are fetched if no address has this file. The
    rows of a Parquet file are lines of the original file `rows_of`, in the order of the mirror.
    """

    file: str
    addresses: Sequence[str]
    size: int | None = None
    digest: str | None = None
    mirror: "Sequence[Download]" = ()
    rows_of: str | None = None


@dataclass(frozen=True)
class Slice:
    """The bytes from `start` up to `stop` of a file, and a tail."""

    path: Path
    start: int
    stop: int
    tail: bytes = b""
    """Bytes that follow those of the file: the line end that its last line lacks."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start + len(self.tail)

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Read the bytes between two offsets in the slice, by default all."""
        if stop is None:
            stop = self.size
        length = self.stop - self.start
        with self.path.open("rb") as file:
            file.seek(self.start + start)
            data = file.read(max(0, min(stop, length) - start))
        return data + self.tail[: max(0, stop - length)]

    def blocks(self, size: int = 1 << 22) -> Iterator[bytes]:
        """Yield the bytes in blocks."""
        return (self.read(start, start + size) for start in range(0, self.size, size))


Slices = Sequence[Slice]
Splits = Mapping[str, Slices]
"""The text of each split."""


def size_of(slices: Slices) -> int:
    """Return the number of bytes."""
    return sum(piece.size for piece in slices)


@dataclass(frozen=True)
class Text:
    """The location of each split's text; notes and conventions describe differences from the full benchmark."""

    splits: Splits
    notes: tuple[str, ...] = ()
    conventions: Mapping[str, str] = field(default_factory=dict)
    vocabulary_file: Path | None = None
    changes: Mapping[str, int] = field(default_factory=dict)
    """Number of files, records and bytes that were skipped or changed, by name."""

    def with_remarks(self, notes: Iterable[str], **changes: int) -> "Text":
        """Return the text with further notes and changes."""
        return replace(self, notes=(*self.notes, *notes), changes={**self.changes, **changes})


@dataclass(frozen=True)
class ReadOptions:
    """Options of a reader: the released convention, or shares of train, valid and test in percent, and documents."""

    released: bool = False
    shares: tuple[float, ...] | None = None
    starts: Callable[[Slices], Sequence[int]] | None = None
    """Offsets, in the concatenation of slices, between which own text is cut; None to cut at line ends."""


@dataclass(frozen=True)
class VocabularyRule:
    """The rule by which a benchmark builds its vocabulary.

    The symbols of `splits`, counted in that order, are sorted by frequency, with ties in first-seen order; `specials`
    get the first ids. `boundary` ends every line. `dropped` bytes are removed before anything is counted. `file` is the
    name of the list of symbols, if the benchmark has one.
    """

    splits: Sequence[str] = SPLITS
    specials: Sequence[str] = ()
    boundary: str | None = None
    unknown: str | None = None
    lower_case: bool = False
    all_bytes: bool = False
    dropped: str = ""
    file: str | None = None


def unchanged(text: str) -> str:
    """Return text that needs no detokenization."""
    return text


@dataclass(frozen=True)
class Corpus:
    """A corpus: facts, and a reader that locates the text of each split."""

    name: str
    title: str
    unit: Unit
    """Token unit of the benchmark."""
    reader: Callable[["Corpus", Path, ReadOptions], Text]
    """Locates the text in a file or an (unpacked) directory; raises CorpusError."""
    conventions: dict[str, str]
    rule: VocabularyRule = VocabularyRule()
    released_rule: VocabularyRule | None = None
    """Rule of the released code if it differs; None if --released-convention does not change the symbols."""
    released_conventions: dict[str, str] = field(default_factory=dict)
    """Differences of the released code; empty if --released-convention does not apply."""
    downloads: Sequence[Download] = ()
    files: dict[str, str] = field(default_factory=dict)
    """Shell pattern of the names of each split's files; empty if all text is in one file with the corpus's name."""
    left_out: str = ""
    """Shell pattern of the names of files that are left out, although a pattern of `files` matches them."""
    symbols: str = ""
    """Regular expression of the bytes that such a file may have."""
    otherwise: str = ""
    """Reason why a file with other bytes is rejected."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Digest, "algorithm:hex", of each original file in the archive."""
    published: Mapping[str, int] = field(default_factory=dict)
    """Tokens per split, and "types", of the full benchmark in its own convention."""
    counts_line_ends: bool = True
    """True if perplexity per word counts one word per line end, as in benchmarks with <eos>."""
    sentences: bool = False
    """True if lines are unrelated sentences, whose offsets are stored."""
    home: str | None = None
    """Name that Python has for a directory with the text; None if it must be downloaded or given."""
    detokenize: Callable[[str], str] = unchanged

    def read(self, source: Path, options: ReadOptions) -> Text:
        """Return the location of the text in a file or directory."""
        return self.reader(self, source, options)

    def has_file(self, name: str) -> bool:
        """True if the corpus has a file of that name."""
        if fnmatch.fnmatchcase(name, self.left_out):
            return False
        patterns = (*self.files.values(), self.rule.file or self.name)
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def from_card(name: str, reader: Callable[[Corpus, Path, ReadOptions], Text], **own: Any) -> Corpus:
    """Return the corpus whose facts are in cards.toml; `own` are fields that no file can hold, such as functions."""
    facts = cards()[name] | own
    for key in ("rule", "released_rule"):
        if key in facts:
            facts[key] = VocabularyRule(**facts[key])
    facts["downloads"] = _downloads(facts.get("downloads", ()))
    return Corpus(name=name, reader=reader, **facts)


@functools.cache
def cards() -> dict[str, dict[str, Any]]:
    """Return the data cards, and under "tokenizers" what holds for text that has none of its own."""
    return tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))


def _downloads(cards: Sequence[dict[str, Any]]) -> list[Download]:
    downloads = []
    for card in cards:
        mirror = _downloads(card.get("mirror", ()))
        downloads.append(Download(**card | {"mirror": mirror}))
    return downloads
