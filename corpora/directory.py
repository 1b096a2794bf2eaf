"""The user's own text: any file or directory.

Source      the file, or all files below the directory in the order of their names; hidden files, backups of
            editors and byte order marks are skipped
Unit        byte by default (all 256 symbols); --tokenizer chooses characters, words or SentencePiece
Splits      as named by the files, as in wiki.train.tokens or train-00.txt, or by their directories (train, training,
            valid, dev, validation, val, test, testing); files of one split are joined, a README is left out. Without
            such names 90/5/5 of the bytes (--split), cut at the nearest line end, else at the nearest blank, else
            between characters
"""

import bisect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .compressed import COMPRESSIONS
from .corpus import SHARES, SPLITS, Corpus, CorpusError, ReadOptions, Slice, Slices, Splits, Text, size_of
from .documents import text_of
from .locate import is_companion, list_files, list_names, missing_note, split_of, splits_in
from .signatures import GROUPS, HEAD, OF_IDS, REPLACEMENT, format_of, reject_other_than_text

SEARCH_RANGE = 1 << 16  # bytes before and after the exact cut that are searched for a line end
CHARACTER = 4  # largest number of bytes of a UTF-8 character
BACKUP = re.compile(r"(~|\.bak|\.orig|\.swp)$|^#.*#$")
"""Names that editors give to backups."""
OTHERWISE = "rename or move such files, or give --split 90,5,5 to cut the whole text"
JSON = re.compile(rb'\s*(\{\s*["}]|\[\s*[{"])')
"""Beginning of JSON, whatever the name of the file."""
NUMBERS = re.compile(rb"[\s,;\[\]]*(\d+[\s,;\[\]]+){16}[\d\s,;\[\]]*")
"""Text that is numbers alone, such as token ids or character codes."""
HEX_CODES = re.compile(rb"(?:0x|\\x|U\+|[0-9a-fA-F]{2}|[\s,;\[\]])+[0-9a-fA-F]?")
"""Text that is hexadecimal codes alone, with or without spaces."""
MIN_HEX_CODES = 16
SPELLED = re.compile(rb"\s*(?:([!-~]|[\xc2-\xf4][\x80-\xbf]{1,3})\s+){64,}")
"""Text of single characters separated by blanks."""
END_OF_TEXT = (b"<|endoftext|>", b"<|end_of_text|>", b"<|eot_id|>", b"<|im_end|>", b"</s>", b"<EOT>", b"[SEP]")
"""Marks that other programs write between documents."""
SEARCHED = 1 << 16  # bytes of a text that are searched for them


def read(corpus: Corpus, source: Path, options: ReadOptions) -> Text:
    """Return the splits of a file or directory."""
    listed, hidden = list_files(source)
    files = select_text(source, listed)
    by_split = {"": files}
    if source.is_dir() and options.shares is None:
        by_split = files_by_split(files, source, OTHERWISE)
    texts = {path: text_of(path) for path in itertools.chain.from_iterable(by_split.values())}
    others = [path for path in listed if path not in texts]
    left_out = [path for path in others if path.exists() and path.stat().st_size]  # not a broken link
    notes = []
    splits: Splits
    if "" not in by_split:
        names = "; ".join(f"{split}: {list_names(paths, source)}" for split, paths in by_split.items())
        notes.append(f"the splits are as the folder's names say ({names}); --split cuts the whole text")
        notes += missing_note(by_split)
        convention = "the folder's own files"
        splits = {split: list(map(texts.__getitem__, paths)) for split, paths in by_split.items()}
    else:
        pieces = list(texts.values())
        starts = options.starts(pieces) if options.starts else None
        shares = options.shares or SHARES
        splits = cut(pieces, source, shares, starts)
        place = "at line ends where possible" if starts is None else "between documents"
        convention = f"{format_shares(shares)} by position, cut {place}"
    changes = {
        "files_skipped": len(left_out),
        "hidden_files_skipped": hidden,
        "byte_order_marks_dropped": sum(text.start > 0 for text in texts.values()),
    }
    notes += _notes(source, texts, left_out, has_documents=options.starts is not None)
    return Text(splits, tuple(notes), {"split": convention}, changes=changes)


def select_text(source: Path, listed: list[Path]) -> list[Path]:
    """Return those of the listed files that are read; reject what is not text, and two versions of one text."""
    files = listed
    if source.is_dir():
        files = [path for path in files if not BACKUP.search(path.name)]
        formats = {path: format_of(path, *GROUPS) for path in files}
        text = [path for path, name in formats.items() if name is None]
        describes_ids = all(map(is_companion, text)) and not OF_IDS.isdisjoint(formats.values())
        if text and not describes_ids:
            files = text
    _reject_broken_links(files)
    reject_other_than_text(*files)
    reject_two_versions(files)
    return files


def reject_two_versions(files: list[Path]) -> None:
    """Reject two versions of a text: raw, or compressed by `gzip -k` or by two programs."""
    versions: dict[Path, Path] = {}
    for path in sorted(set(files)):
        text = path
        if path.suffix and (path.suffix == ".raw" or format_of(path, "packed") in COMPRESSIONS):
            text = path.with_name(path.stem)
        if text in versions:
            raise CorpusError(
                f"{versions[text]} and {path.name} are two versions of one text; keep one of them in the folder"
            )
        versions[text] = path


def remarks_on(beginning: bytes, *, has_documents: bool = False) -> Iterator[str]:
    """Yield remarks on text that may not be what it seems: JSON, numbers, or documents that are not kept apart."""
    head = beginning[:HEAD]
    if JSON.match(head):
        yield "read as plain text, including the keys, quotes and escapes of JSON; extract the text if needed"
    end = head.rfind(b"\n") + 1 or head.rfind(b" ") + 1 or len(head)
    complete = head[:end]  # without a number that is cut
    if NUMBERS.fullmatch(complete):
        numbers = "numbers, such as token ids"
        if max(map(int, re.findall(rb"\d+", complete))) < 256:
            numbers = "numbers from 0 to 255, such as the codes of bytes"
        yield (
            f"the text is a list of {numbers}; bits per byte and per character are those of the digits; `tokenizer` "
            "word makes each number between blanks a token; token ids are read with `ids`, from .json, .npy, .npz and "
            ".bin"
        )
    elif HEX_CODES.fullmatch(complete) and len(re.findall(rb"\d[0-9a-fA-F]", complete)) >= MIN_HEX_CODES:
        yield "the text is hexadecimal codes, which are learned digit by digit; decode it first"
    elif SPELLED.fullmatch(complete):
        yield (
            "the text is single characters separated by blanks; `tokenizer` word makes each character a token, other "
            "tokenizers also read the blanks"
        )
    marks = [mark.decode() for mark in END_OF_TEXT if mark in beginning[:SEARCHED]]
    if marks and not has_documents:
        yield f"{marks[0]} ends documents; `documents` '{marks[0]}' keeps them apart"


def remarks_on_bytes(nuls: int, invalid: int) -> Iterator[str]:
    """Yield remarks on text that has NUL bytes, or places that are not UTF-8."""
    if nuls:
        yield f"the text has {nuls:,} NUL bytes, which text rarely has; check that it is text"
    if invalid:
        yield f"the text is not UTF-8 in {invalid:,} places; if it is text in another encoding, name it with `encoding`"


def invalid_places(data: bytes) -> int:
    """Return the number of places that are not UTF-8."""
    return data.decode(errors="replace").count(REPLACEMENT) - data.count(REPLACEMENT.encode())


def _notes(source: Path, texts: Mapping[Path, Slice], left_out: list[Path], *, has_documents: bool) -> Iterator[str]:
    """Yield notes on files whose content may not be what it seems, and on files that were left out."""
    remarks: dict[str, list[Path]] = {}
    for path, text in texts.items():
        beginning = text.read(0, SEARCHED)
        for remark in remarks_on(beginning, has_documents=has_documents):
            remarks.setdefault(remark, []).append(path)
    for remark, paths in remarks.items():
        yield f"{list_names(paths, source)}: {remark}"
    yield from remarks_on_files(source, list(texts), left_out)


def remarks_on_files(source: Path, used: Sequence[Path], left_out: Sequence[Path]) -> Iterator[str]:
    """Yield remarks on files of a folder that were left out, and on descriptions that are part of the text."""
    if left_out:
        yield (
            "files that are not text, are backups or name no split, which were left out: "
            f"{list_names(left_out, source)}"
        )
    at_top = [path for path in used if path.parent == source]
    descriptions = [path for path in at_top if is_companion(path) and not split_of(path.name)]
    if descriptions and len(descriptions) < len(used):
        yield f"{list_names(descriptions, source)}: part of the text; move it away if it only describes the text"


def remarks_on_tables(source: Path, plain: Sequence[Path]) -> Iterator[str]:
    """Yield a remark on tables among files that are read as plain text."""
    tables = [path for path in plain if path.suffix.lower() in (".csv", ".tsv")]
    if tables:
        yield f"{list_names(tables, source)}: read as plain text with all columns; `column` reads one of them"


def _reject_broken_links(files: list[Path]) -> None:
    for path in files:
        if not path.exists():
            raise CorpusError(f"{path}: a link to a file that does not exist; remove it, or restore that file")


def files_by_split(
    files: list[Path], directory: Path, otherwise: str = "rename or move such files"
) -> dict[str, list[Path]]:
    """Return the files of each split, in the order of the splits, or all under "" if no name mentions a split.

    The error for a file that belongs to no split says what to do `otherwise`.

    Below the first level, names count only if one of them is train: source code has many files named test.
    """
    _reject_broken_links(files)
    named = {path: splits_in(path.relative_to(directory)) for path in files}
    examples = [path for path in files if split_of(path.relative_to(directory).parts[0])]
    examples += [path for path in files if "train" in named[path]]
    if not examples:
        return {"": files}
    example = examples[0]
    unnamed = [path for path, splits in named.items() if len(splits) != 1 and path.stat().st_size]
    others = [path for path in unnamed if not is_companion(path)]
    if others:
        raise CorpusError(
            f"{directory}: {list_names([example], directory)} names a split, "
            f"{list_names(others, directory)} names none or several; {otherwise}"
        )
    by_split = {}
    for split in SPLITS:
        paths = [path for path in files if named[path] == {split}]
        if paths:
            by_split[split] = paths
    return by_split


def cut(
    pieces: Slices,
    source: Path,
    shares: tuple[float, ...],
    boundaries: Sequence[int] | None,
    unit: str = "documents",
) -> Splits:
    """Cut a text by shares in percent: at `boundaries`, where units of it begin, else at line ends or blanks."""
    slices = [piece for piece in pieces if piece.size]
    total = size_of(slices)
    if not total:
        raise CorpusError(f"{source}: there is no text in it; give a file or folder that has some")
    wanted = {name: total * share / 100 for name, share in zip(SPLITS, shares, strict=True) if share}  # bytes
    cuts = [0]
    exact = 0.0
    for before, after in itertools.pairwise(wanted.values()):
        exact += before
        if boundaries is None:
            distance = math.ceil(min(before, after) / 2) - 1  # so that neither split becomes empty
            cuts.append(_find_cut(slices, int(exact), min(SEARCH_RANGE, max(0, distance))))
        else:
            cuts.append(_nearest(boundaries, exact, above=cuts[-1], default=total))
    cuts.append(total)
    splits = {}
    for name, (start, stop) in zip(wanted, itertools.pairwise(cuts), strict=True):
        splits[name] = tuple(_between(slices, start, stop))
    if not all(splits.values()):
        fault = f"too few bytes to split ({total:,})"
        if boundaries is not None:
            fault = f"too few {unit} to split ({len(boundaries):,})"
        raise CorpusError(f"{source}: {fault}; give more text, another --split or other --documents")
    return splits


def format_shares(shares: tuple[float, ...]) -> str:
    """Return shares in percent as a convention has them: 90/5/5."""
    return "/".join(f"{share:g}" for share in shares)


def _nearest(boundaries: Sequence[int], exact: float, *, above: int, default: int) -> int:
    """Return the boundary nearest to an offset, of those `above` the last cut."""
    position = bisect.bisect_left(boundaries, exact)
    near = boundaries[max(0, position - 1) : position + 2]
    later = [boundary for boundary in near if boundary > above]
    return min(later, key=lambda boundary: abs(boundary - exact), default=default)


def _between(slices: Slices, start: int, stop: int) -> Iterator[Slice]:
    """Yield the parts of the slices between two offsets of their concatenation."""
    for piece in slices:
        low = max(start, 0)
        high = min(stop, piece.size)
        if low < high:
            yield Slice(piece.path, piece.start + low, piece.start + high)
        start -= piece.size
        stop -= piece.size


def _find_cut(slices: Slices, target: int, distance: int) -> int:
    """Return the best offset at which to cut the concatenation, at most `distance` bytes from `target`.

    It is after the line end, else the blank, nearest to `target`, else between two characters; all in one file.
    """
    begin = 0
    for piece in slices:
        if target < begin + piece.size:
            break
        begin += piece.size
    target -= begin
    low = max(target - distance - CHARACTER, 0)
    high = min(target + distance + 1, piece.size)
    window = piece.read(low, high)
    middle = target - low
    for mark in (b"\n", b" "):
        after = window.find(mark, middle, middle + distance) + 1
        before = window.rfind(mark, max(0, middle - distance), middle) + 1
        around = [cut for cut in (before, after) if cut]
        if around:
            return begin + low + min(around, key=lambda cut: abs(cut - middle))
    while 0 < middle < len(window) and window[middle] & 0xC0 == 0x80:  # inside a UTF-8 character
        middle -= 1
    return begin + low + middle
