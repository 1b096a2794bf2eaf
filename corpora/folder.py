"""Any text file or folder of the user's.

Source      the file, or all files below the folder in the order of their names; hidden files are skipped
Unit        byte by default (all 256 symbols); --tokenizer chooses characters, words or SentencePiece
Splits      files named train, valid (dev, validation, val) and test where the folder has them;
            otherwise 90/5/5 of the bytes (--split), cut at a line end near that place, else at a blank,
            else between characters
"""

from pathlib import Path

from corpora.corpus import SPLITS, Corpus, CorpusError, ReadWishes, Slice, Text, VocabularyRule, whole
from corpora.locate import SPLIT_WORDS, text_files

SHARES = (90.0, 5.0, 5.0)
NEAR = 1 << 16  # bytes around the exact place in which a line end is looked for


def read(place: Path, wishes: ReadWishes) -> Text:
    """The splits of a file or folder."""
    if place.is_file():
        return _cut([place], place, wishes.shares or SHARES)
    used = _files_named_as_splits(place) if wishes.shares is None else {}
    if used:
        names = ", ".join(path.name for path in used.values())
        return Text(
            {split: whole(path) for split, path in used.items()},
            (f"the splits are the folder's files {names}; --split cuts the whole text instead",),
            {"split": "the folder's own files"},
        )
    return _cut(text_files(place), place, wishes.shares or SHARES)


def _files_named_as_splits(folder: Path) -> dict[str, Path]:
    """Split -> file, in the splits' order; nothing where no file is named as the train split."""
    named: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in sorted(folder.iterdir()):
        split = SPLIT_WORDS.get(path.stem.lower()) if path.is_file() and not path.name.startswith(".") else None
        if split:
            named[split].append(path)
    if not named["train"]:
        return {}
    for split, paths in named.items():
        if len(paths) > 1:
            both = " and ".join(str(path) for path in paths[:2])
            raise CorpusError(f"{both}: both are named as the {split} split; keep one, or give --split")
    return {split: paths[0] for split, paths in named.items() if paths}


def _cut(files: list[Path], place: Path, shares: tuple[float, float, float]) -> Text:
    slices = [piece for path in files for piece in whole(path) if piece.size]
    total = sum(piece.size for piece in slices)
    if not total:
        raise CorpusError(f"{place}: there is no text in it; give a file or folder that has some")
    cuts = [0, _near(slices, total * shares[0] / 100), _near(slices, total * (shares[0] + shares[1]) / 100), total]
    if shares[2] == 0:
        cuts[2] = total
    if shares[1] == 0:
        cuts[1] = cuts[2]
    splits = {}
    for number, (name, share) in enumerate(zip(SPLITS, shares, strict=True)):
        if share:
            splits[name] = tuple(_between(slices, cuts[number], cuts[number + 1]))
            if not splits[name]:
                raise CorpusError(f"{place}: {total:,} bytes are too short to split; give more text or another --split")
    return Text(splits)


def _between(slices: list[Slice], start: int, stop: int) -> list[Slice]:
    """The parts of the slices that lie between two places of their concatenation."""
    found, done = [], 0
    for piece in slices:
        low, high = max(start - done, 0), min(stop - done, piece.size)
        if low < high:
            found.append(Slice(piece.path, piece.start + low, piece.start + high))
        done += piece.size
    return found


def _near(slices: list[Slice], exact: float) -> int:
    """The place nearest to `exact` where the concatenation may be cut."""
    place, done = int(exact), 0
    for piece in slices:
        if place < done + piece.size:
            return done + _cut_in_file(piece, place - done)
        done += piece.size
    return done


def _cut_in_file(piece: Slice, place: int) -> int:
    """A cut inside one file: after the line end, else the blank, nearest to `place`, else between two characters."""
    low, high = max(place - NEAR, 0), min(place + NEAR, piece.size)
    with piece.path.open("rb") as file:
        file.seek(low)
        window = file.read(high - low)
    middle = place - low
    for mark in (b"\n", b" "):
        after = window.find(mark, middle) + 1
        before = window.rfind(mark, 0, middle) + 1
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
