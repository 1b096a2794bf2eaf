"""The user's own text: any file or directory.

Source      the file, or all files below the directory in the order of their names; hidden files and
            byte order marks are skipped
Unit        byte by default (all 256 symbols); --tokenizer chooses characters, words or SentencePiece
Splits      as named by the files, as in wiki.train.tokens or train-00.txt, or by their directories (train, valid, dev,
            validation, val, test); files of one split are joined. Without such names 90/5/5 of the bytes (--split), cut
            at the nearest line end, else at the nearest blank, else between characters
"""

import codecs
import math
from itertools import pairwise
from pathlib import Path

from .corpus import SPLITS, Corpus, CorpusError, ReadOptions, Slice, Text, VocabularyRule
from .locate import list_names, missing_note, split_of, text_files
from .signatures import reject_other_than_text, reject_packed

SHARES = (90.0, 5.0, 5.0)
SEARCH_RANGE = 1 << 16  # bytes before and after the exact cut that are searched for a line end
CHARACTER = 4  # largest number of bytes of a UTF-8 character
JSON_ENDINGS = (".json", ".jsonl", ".ndjson")


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits of a file or directory."""
    if source.is_file():
        files = [source]
    else:
        files = text_files(source, every_directory=True)
        reject_other_than_text(files)
    reject_packed(files)
    if source.is_dir() and options.shares is None and (named := _files_by_split(files, source)):
        listed = "; ".join(f"{split}: {list_names(paths, source)}" for split, paths in named.items())
        note = f"the splits are as the folder's names say ({listed}); --split cuts the whole text"
        return Text(
            {split: tuple(_text_of(path) for path in paths) for split, paths in named.items()},
            (note, *missing_note(named), *_json_note(files, source)),
            {"split": "the folder's own files"},
        )
    return Text(_cut(files, source, options.shares or SHARES), _json_note(files, source))


def _json_note(files: list[Path], source: Path) -> tuple[str, ...]:
    """Return a note if files look like JSON records that contain the text."""
    records = [path for path in files if path.suffix.lower() in JSON_ENDINGS]
    if not records:
        return ()
    named = list_names(records, source if source.is_dir() else source.parent)
    return (f"{named}: read as plain text, including the keys, quotes and escapes of JSON; extract the text if needed",)


def _text_of(path: Path) -> Slice:
    """Return a file without its byte order mark."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    return Slice(path, begin, size)


def _files_by_split(files: list[Path], directory: Path) -> dict[str, list[Path]]:
    """Return the files of each split, in the order of the splits; empty if no name mentions a split.

    Below the first level, names count only if one of them is train: source code has many files named test.
    """
    named = {path: _splits_in(path.relative_to(directory)) for path in files}
    example = next(
        (path for path, splits in named.items() if splits and _at_the_top(path.relative_to(directory))), None
    )
    example = example or next((path for path, splits in named.items() if "train" in splits), None)
    if example is None:
        return {}
    others = [path for path, splits in named.items() if len(splits) != 1 and path.stat().st_size]
    if others:
        raise CorpusError(
            f"{directory}: {list_names([example], directory)} names a split, "
            f"{list_names(others, directory)} names none or several; rename or move such files, "
            "or give --split 90,5,5 to cut the whole text"
        )
    return {split: paths for split in SPLITS if (paths := [path for path in named if named[path] == {split}])}


def _splits_in(name: Path) -> set[str]:
    """Return the splits mentioned by the name of a file and of the directories that contain it."""
    return {split for part in name.parts if (split := split_of(part))}


def _at_the_top(name: Path) -> bool:
    """Return True if a file is in the directory itself, or in a subdirectory named after a split."""
    return len(name.parts) == 1 or split_of(name.parts[0]) is not None


def _cut(files: list[Path], source: Path, shares: tuple[float, float, float]) -> dict[str, tuple[Slice, ...]]:
    slices = [piece for path in files if (piece := _text_of(path)).size]
    total = sum(piece.size for piece in slices)
    if not total:
        raise CorpusError(f"{source}: there is no text in it; give a file or folder that has some")
    wanted = {name: total * share / 100 for name, share in zip(SPLITS, shares, strict=True) if share}  # bytes
    cuts, exact = [0], 0.0
    for before, after in pairwise(wanted.values()):
        exact += before
        distance = math.ceil(min(before, after) / 2) - 1  # so that neither split becomes empty
        cuts.append(_find_cut(slices, int(exact), min(SEARCH_RANGE, max(0, distance))))
    splits = {name: tuple(_between(slices, *ends)) for name, ends in zip(wanted, pairwise([*cuts, total]), strict=True)}
    if not all(splits.values()):
        raise CorpusError(f"{source}: {total:,} bytes are too short to split; give more text or another --split")
    return splits


def _between(slices: list[Slice], start: int, stop: int) -> list[Slice]:
    """Return the parts of the slices between two offsets of their concatenation."""
    parts, done = [], 0
    for piece in slices:
        low, high = max(start - done, 0), min(stop - done, piece.size)
        if low < high:
            parts.append(Slice(piece.path, piece.start + low, piece.start + high))
        done += piece.size
    return parts


def _find_cut(slices: list[Slice], target: int, distance: int) -> int:
    """Return the best offset at which to cut the concatenation, at most `distance` bytes from `target`."""
    done = 0
    for piece in slices:
        if target < done + piece.size:
            return done + _find_cut_in_file(piece, target - done, distance)
        done += piece.size
    return done


def _find_cut_in_file(piece: Slice, target: int, distance: int) -> int:
    """Return the offset after the line end, else the blank, nearest to `target`, else between two characters."""
    low, high = max(target - distance - CHARACTER, 0), min(target + distance + 1, piece.size)
    with piece.path.open("rb") as file:
        file.seek(piece.start + low)
        window = file.read(high - low)
    middle = target - low
    for mark in (b"\n", b" "):
        after = window.find(mark, middle, middle + distance) + 1
        before = window.rfind(mark, max(0, middle - distance), middle) + 1
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
