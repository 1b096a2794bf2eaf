"""Finds the files of a corpus in whatever place the user points at."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from corpora.corpus import SPLITS, CorpusError, Slice, Text, whole
from corpora.signatures import refuse_packed
from corpora.unpack import is_archive

# What people call the three splits.
SPLIT_WORDS = {
    "train": "train",
    "valid": "valid",
    "dev": "valid",
    "validation": "valid",
    "val": "valid",
    "test": "test",
}


def text_files(folder: Path, *, every_folder: bool = False) -> list[Path]:
    """All files below a folder that are not hidden, sorted by their relative name.

    Args:
        folder: where to look.
        every_folder: links to folders are followed, each folder once; else they are left out, and so is a folder that
            cannot be read.

    Raises:
        CorpusError: with `every_folder`, a folder cannot be read.
    """
    paths, known = [], set()
    walk = os.walk(folder, onerror=_refuse_folder if every_folder else None, followlinks=every_folder)
    for place, folders, files in walk:
        real = os.path.realpath(place)
        if real in known:
            folders.clear()
            continue
        known.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [Path(place, name) for name in files if not name.startswith(".")]
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def _refuse_folder(error: OSError) -> None:
    raise CorpusError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from error


def printable(name: str) -> str:
    """A file name as text that can be printed and written: what is no UTF-8 in it becomes the replacement character."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def split_of(name: str) -> str | None:
    """The split that a file name speaks of: one of its words is train, valid, dev, validation, val or test."""
    named = {SPLIT_WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLIT_WORDS}
    return named.pop() if len(named) == 1 else None


def split_files(place: Path, official: Mapping[str, str], corpus: str) -> dict[str, Path]:
    """Split -> file, for a corpus that comes as one file per split.

    The official names win; for a split that has none of them, a file whose name speaks of that split is taken. An
    archive is no text, whatever its name.
    """
    files = text_files(place) if place.is_dir() else [place]
    by_split = {split: path for path in files for split, name in official.items() if path.name == name}
    by_split = _by_loose_name([path for path in files if split_of(path.name) not in by_split]) | by_split
    if not by_split:
        names = ", ".join(official.values())
        raise CorpusError(
            f"{place}: nothing here looks like {corpus}; expected {names}, or names with train, valid or test"
        )
    return {split: by_split[split] for split in SPLITS if split in by_split}


def _by_loose_name(files: Iterable[Path]) -> dict[str, Path]:
    by_split: dict[str, Path] = {}
    for path in files:
        split = split_of(path.name)
        if split is None or is_archive(path):
            continue
        if split in by_split:
            raise CorpusError(f"{by_split[split]} and {path}: both look like the {split} split; keep one of them")
        by_split[split] = path
    return by_split


def one_file(place: Path, name: str) -> Path:
    """The only file of a corpus that comes as one file: `place` itself, or the one below it of that name.

    Where there is none, one whose name begins so is taken, a prefix of the corpus say; but no archive.
    """
    if not place.is_dir():
        return place
    near = [path for path in text_files(place) if path.name.startswith(name)]
    candidates = [path for path in near if path.name == name] or [path for path in near if not is_archive(path)]
    if len(candidates) != 1:
        raise CorpusError(
            f"{place}: expected one file {name}, or one whose name begins so, found {len(candidates)}; "
            "give --source the file itself"
        )
    return candidates[0]


def cut_prefix(path: Path, full_size: int, corpus: str) -> Text:
    """Train, valid and test of a corpus or a prefix of it: n // 20 symbols each for valid and test, the rest train."""
    refuse_packed([path])
    size = path.stat().st_size
    if size > full_size:
        raise CorpusError(
            f"{path}: {size:,} bytes, but {corpus} has {full_size:,}: this is another file; "
            f"give {corpus} or a prefix of it"
        )
    part = size // 20
    if part == 0:
        raise CorpusError(f"{path}: {size:,} bytes are too short to split; give at least 20")
    cuts = (0, size - 2 * part, size - part, size)
    splits = {name: (Slice(path, cuts[i], cuts[i + 1]),) for i, name in enumerate(SPLITS)}
    notes = () if size == full_size else (f"a prefix of {size:,} of {full_size:,} bytes",)
    return Text(splits, notes)


def text_of_files(files: Mapping[str, Path]) -> Text:
    """One whole file per split; the splits that are missing are noted."""
    return Text({split: whole(path) for split, path in files.items()}, missing_note(files))


def missing_note(splits: Mapping[str, object]) -> tuple[str, ...]:
    """A note that names the splits that are not there, if any."""
    missing = [split for split in SPLITS if split not in splits]
    return (f"no {' and no '.join(missing)} split in this source",) if missing else ()
