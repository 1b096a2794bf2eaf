"""What a corpus is: where its text comes from, how it is cut, what its benchmark counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Unit = Literal["byte", "char", "word"]
SPLITS = ("train", "valid", "test")


class CorpusError(Exception):
    """A corpus could not be downloaded, unpacked, read or split; the message says what and where."""


@dataclass(frozen=True)
class Download:
    """One file of the original distribution.

    `digest` is "algorithm:hex", or None where no published digest is known; `size` is in bytes, or None likewise.
    Addresses are tried in order.
    """

    file: str
    addresses: tuple[str, ...]
    size: int | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Slice:
    """The bytes `start` to `stop` of a file."""

    path: Path
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Bytes in the slice."""
        return self.stop - self.start


@dataclass(frozen=True)
class Text:
    """Where the text of each split lies; notes and conventions say what differs from the full benchmark."""

    splits: Mapping[str, tuple[Slice, ...]]
    notes: tuple[str, ...] = ()
    conventions: Mapping[str, str] = field(default_factory=dict)
    vocabulary_file: Path | None = None


@dataclass(frozen=True)
class ReadOptions:
    """What a reader may be asked for: the released convention, or shares of train, valid and test in percent."""

    released: bool = False
    shares: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class VocabularyRule:
    """How a benchmark builds its own vocabulary.

    Symbols of `splits`, counted in that order, by frequency; ties in first-seen order; `specials` get the first ids.
    `boundary` closes every line. `dropped` symbols leave the stream before anything is counted. `file` names the list
    of symbols where the benchmark comes with one.
    """

    splits: tuple[str, ...] = SPLITS
    specials: tuple[str, ...] = ()
    boundary: str | None = None
    unknown: str | None = None
    lower_case: bool = False
    all_bytes: bool = False
    dropped: bytes = b""
    file: str | None = None


def as_it_is(text: str) -> str:
    """Text that needs no detokenizing."""
    return text


@dataclass(frozen=True)
class Corpus:
    """A corpus: facts, plus one reader that says where the text of each split lies."""

    name: str
    title: str
    licence: str
    unit: Unit
    """What the benchmark's own tokens are."""
    read: Callable[[Path, ReadOptions], Text]
    """Gets a file or an (unpacked) folder; raises CorpusError."""
    rule: VocabularyRule
    conventions: Mapping[str, str]
    released_rule: VocabularyRule | None = None
    """The rule of the released code where it differs; None means that --released-convention changes no symbol."""
    released_conventions: Mapping[str, str] = field(default_factory=dict)
    """What the released code did otherwise; empty means that there is no such choice."""
    downloads: tuple[Download, ...] = ()
    wanted: Callable[[str], bool] = lambda member: True
    """Which members of the archive are needed."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """File name -> "algorithm:hex" of the original files inside the archive."""
    published: Mapping[str, int] = field(default_factory=dict)
    """Tokens per split, and "types", in the benchmark's own convention at full size."""
    counts_line_ends: bool = True
    """Whether perplexity per word counts one word per line end, as benchmarks with <eos> do."""
    sentences: bool = False
    """Whether lines are unrelated sentences whose starts are kept."""
    splittable: bool = False
    """Whether --split may choose the shares."""
    home: Callable[[], Path] | None = None
    """Where the text lies on every machine; None where it has to be downloaded or pointed at."""
    detokenize: Callable[[str], str] = as_it_is


def whole(path: Path) -> tuple[Slice, ...]:
    """All of a file as one slice."""
    return (Slice(path, 0, path.stat().st_size),)
