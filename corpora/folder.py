"""Any text file or folder of the user's.

Source      the file, or all files below the folder in the order of their names; hidden files are skipped, and so is a
            byte order mark at the beginning of a file
Unit        byte by default (all 256 symbols); --tokenizer chooses characters, words or SentencePiece
Splits      what the names in a folder speak of where they do (train, valid, dev, validation, val, test): those of files
            as in wiki.train.tokens or train-00.txt, and of the folders that hold them; files of one split are joined;
            otherwise 90/5/5 of the bytes (--split), cut at a line end near that place, else at a blank,
            else between characters
"""

import codecs
import math
from itertools import pairwise
from pathlib import Path

from corpora.corpus import SPLITS, Corpus, CorpusError, ReadOptions, Slice, Text, VocabularyRule
from corpora.locate import missing_note, printable, split_of, text_files
from corpora.signatures import refuse_beside_text, refuse_packed

SHARES = (90.0, 5.0, 5.0)
NEAR = 1 << 16  # bytes around the exact place in which a line end is looked for
CHARACTER = 4  # bytes of one in UTF-8, at most
JSON_ENDINGS = (".json", ".jsonl", ".ndjson")


def read(place: Path, wishes: ReadOptions) -> Text:
    """The splits of a file or folder."""
    if place.is_file():
        files = [place]
    else:
        files = text_files(place, every_folder=True)
        refuse_beside_text(files)
    refuse_packed(files)
    if place.is_dir() and wishes.shares is None and (named := _named_as_splits(files, place)):
        listed = "; ".join(f"{split}: {_listed(paths, place)}" for split, paths in named.items())
        said = f"the splits are as the folder's names say ({listed}); --split cuts the whole text"
        return Text(
            {split: tuple(_text_of(path) for path in paths) for split, paths in named.items()},
            (said, *missing_note(named), *_json_note(files, place)),
            {"split": "the folder's own files"},
        )
    return Text(_cut(files, place, wishes.shares or SHARES), _json_note(files, place))


def _json_note(files: list[Path], place: Path) -> tuple[str, ...]:
    """A note where files look like records that hold the text."""
    records = [path for path in files if path.suffix.lower() in JSON_ENDINGS]
    if not records:
        return ()
    named = _listed(records, place if place.is_dir() else place.parent)
    return (
        f"{named}: read as it is, JSON's keys, quotes and escapes are text, too; take the text out if it alone counts",
    )


def _text_of(path: Path) -> Slice:
    """A file without its byte order mark, which is no text either."""
    size, begin = path.stat().st_size, 0
    if size:  # a pipe has none, and would wait for its writer
        with path.open("rb") as file:
            begin = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    return Slice(path, begin, size)


def _named_as_splits(files: list[Path], folder: Path) -> dict[str, list[Path]]:
    """Split -> files, in the splits' order; nothing where no name speaks of a split.

    Below the first level a name means a split only where train is among them: source code is full of files named test.

    Raises:
        CorpusError: names speak of splits, but not the name of every file, or one speaks of two.
    """
    named = {path: _splits_in(path.relative_to(folder)) for path in files}
    example = next((path for path, splits in named.items() if splits and _at_the_top(path.relative_to(folder))), None)
    example = example or next((path for path, splits in named.items() if "train" in splits), None)
    if example is None:
        return {}
    others = [path for path, splits in named.items() if len(splits) != 1 and path.stat().st_size]
    if others:
        raise CorpusError(
            f"{folder}: {_listed([example], folder)} speaks of a split, {_listed(others, folder)} of none or of "
            "several; rename or move such files, or give --split 90,5,5 to cut the whole text"
        )
    return {split: paths for split in SPLITS if (paths := [path for path in named if named[path] == {split}])}


def _splits_in(name: Path) -> set[str]:
    """The splits that the name of a file, and those of the folders that hold it, speak of."""
    return {split for part in name.parts if (split := split_of(part))}


def _at_the_top(name: Path) -> bool:
    """Whether a file lies in the folder itself, or in a sub-folder that is named after a split."""
    return len(name.parts) == 1 or split_of(name.parts[0]) is not None


def _listed(paths: list[Path], folder: Path) -> str:
    """The names of files; of many the first three, and how many more."""
    names = [printable(path.relative_to(folder).as_posix()) for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _cut(files: list[Path], place: Path, shares: tuple[float, float, float]) -> dict[str, tuple[Slice, ...]]:
    slices = [piece for path in files if (piece := _text_of(path)).size]
    total = sum(piece.size for piece in slices)
    if not total:
        raise CorpusError(f"{place}: there is no text in it; give a file or folder that has some")
    wanted = {name: total * share / 100 for name, share in zip(SPLITS, shares, strict=True) if share}  # bytes
    cuts, exact = [0], 0.0
    for before, after in pairwise(wanted.values()):
        exact += before
        within = math.ceil(min(before, after) / 2) - 1  # so that something is left of both
        cuts.append(_near(slices, int(exact), min(NEAR, max(0, within))))
    splits = {name: tuple(_between(slices, *ends)) for name, ends in zip(wanted, pairwise([*cuts, total]), strict=True)}
    if not all(splits.values()):
        raise CorpusError(f"{place}: {total:,} bytes are too short to split; give more text or another --split")
    return splits


def _between(slices: list[Slice], start: int, stop: int) -> list[Slice]:
    """The parts of the slices that lie between two places of their concatenation."""
    found, done = [], 0
    for piece in slices:
        low, high = max(start - done, 0), min(stop - done, piece.size)
        if low < high:
            found.append(Slice(piece.path, piece.start + low, piece.start + high))
        done += piece.size
    return found


def _near(slices: list[Slice], place: int, within: int) -> int:
    """Where the concatenation may be cut, as near as may be to a place and no farther than so many bytes."""
    done = 0
    for piece in slices:
        if place < done + piece.size:
            return done + _cut_in_file(piece, place - done, within)
        done += piece.size
    return done


def _cut_in_file(piece: Slice, place: int, within: int) -> int:
    """A cut inside one file: after the line end, else the blank, nearest to `place`, else between two characters."""
    low, high = max(place - within - CHARACTER, 0), min(place + within + 1, piece.size)
    with piece.path.open("rb") as file:
        file.seek(piece.start + low)
        window = file.read(high - low)
    middle = place - low
    for mark in (b"\n", b" "):
        after = window.find(mark, middle, middle + within) + 1
        before = window.rfind(mark, max(0, middle - within), middle) + 1
        around = [cut for cut in (before, after) if cut]
        if around:
            return low + min(around, key=lambda cut: abs(cut - middle))
    while 0 < middle < len(window) and window[middle] & 0xC0 == 0x80:  # inside a UTF-8 character
        middle -= 1
    return low + middle


CORPUS = Corpus(
    name="text",
    title="own text",
    licence="your own",
    unit="byte",
    read=read,
    rule=VocabularyRule(all_bytes=True),
    conventions={"vocabulary": "all 256 bytes"},
    splittable=True,
)
