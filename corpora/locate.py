"""Finds the files of a corpus in the file or directory that the user gives."""

import fnmatch
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from .corpus import SPLITS, Corpus, CorpusError, ReadOptions, Slice, Text
from .signatures import format_of, reject_other_than_text

FULL_SIZE = 100_000_000  # bytes of enwik8 and of text8
DESCRIPTION = re.compile(r"(readme|licen[cs]e|copying|notice|authors|changelog|citation)(\W.*)?|.+\.(ya?ml|cff)")
TOOLS = {"__pycache__", "__MACOSX", "node_modules", "Thumbs.db", "desktop.ini", "_metadata", "_common_metadata"}
"""Files and directories that programs and systems write, such as the indexes of Parquet; skipped like hidden ones."""
SAVED_RESULT = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")
"""Files that Hugging Face's datasets writes next to a data set for each `map` and `filter`; skipped likewise."""
CACHE = {"blobs", "snapshots"}
"""Directories of a cache of Hugging Face; `refs`, next to them, has names of commits."""
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "dev": "valid",
    "validation": "valid",
    "val": "valid",
    "test": "test",
    "testing": "test",
}
"""Common names of the three splits."""


def text_files(source: Path) -> list[Path]:
    """Return a file itself, or all files below a directory that are not hidden, sorted by relative path.

    Links to directories are followed, and each directory is read once. So is a file that links repeat, under its own
    name if it is below the directory. Of a cache of Hugging Face only the snapshots are read, which are links to blobs.
    """
    return list_files(source)[0]


def list_files(source: Path) -> tuple[list[Path], int]:
    """Return the files of `text_files`, which must be regular, and the number of hidden files and directories."""
    if not source.is_dir():
        return [source], 0
    paths: list[Path] = []
    visited = set()
    hidden = 0
    has_links = False
    for parent, directories, files in os.walk(source, onerror=_reject_directory, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:
            directories.clear()
            continue
        visited.add(real)
        hidden += sum(map(_is_hidden, directories + files))
        directories[:] = sorted(itertools.filterfalse(_is_hidden, directories))
        if set(directories) >= CACHE:
            directories[:] = ["snapshots"]
        for name in itertools.filterfalse(_is_hidden, files):
            path = Path(parent, name)
            if os.path.exists(path) and not os.path.isfile(path):
                raise CorpusError(f"{path} is a pipe, socket or device, not a regular file; move it out of the folder")
            paths.append(path)
            has_links = has_links or os.path.islink(path)
    paths.sort(key=lambda path: path.relative_to(source).as_posix())
    if has_links:
        paths = _without_repeated_files(paths, source)
    return paths, hidden


def _without_repeated_files(paths: Sequence[Path], source: Path) -> list[Path]:
    """Return one path of each file, its own rather than a link, or one for each split that its paths mention."""
    paths_of: dict[str, dict[frozenset[str], Path]] = {}
    for path in sorted(paths, key=os.path.islink):
        splits = frozenset(splits_in(path.relative_to(source)))
        by_splits = paths_of.setdefault(os.path.realpath(path), {})
        by_splits.setdefault(splits, path)
    kept = set[Path]()
    for by_splits in paths_of.values():
        if len(by_splits) > 1:
            by_splits.pop(frozenset(), None)
        kept.update(by_splits.values())
    return [path for path in paths if path in kept]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in TOOLS or bool(SAVED_RESULT.fullmatch(name))


def _reject_directory(error: OSError) -> None:
    raise CorpusError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from error


def utf8_name(name: str) -> str:
    """Return a file name in which bytes that are not UTF-8 are replaced, so that it can be printed and written."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def list_names(paths: Sequence[Path], source: Path) -> str:
    """Return the names of files below a directory, or of one itself: the first three and the number of others."""
    directory = source if source.is_dir() else source.parent
    names = ", ".join(utf8_name(path.relative_to(directory).as_posix()) for path in paths[:3])
    if len(paths) > 3:
        names += f" and {len(paths) - 3:,} more"
    return names


def is_companion(path: Path) -> bool:
    """True for a file that may describe the text next to it: a README, a licence, metadata, or Markdown."""
    return is_description(path) or path.suffix.lower() in (".md", ".json")


def is_description(path: Path) -> bool:
    """True for a file whose name says that it describes others: a README, a licence, or metadata."""
    return bool(DESCRIPTION.fullmatch(path.name.lower()))


def split_of(name: str) -> str | None:
    """Return the split that a file name mentions, if its words name one."""
    words = re.split(r"[^a-z]+", name.lower())
    named = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    if len(named) != 1:
        return None
    return named.pop()


def read_prefix(corpus: Corpus, source: Path, options: ReadOptions) -> Text:
    """Split a corpus of 10^8 bytes, or a prefix of n: n // 20 each for valid and test, the rest for train.

    It is `source` itself, or the only file below it with the name of the corpus, else the only one whose name begins
    so. A file with bytes that the corpus does not have is rejected.
    """
    name = corpus.name
    paths = [source]
    if source.is_dir():
        paths = [path for path in text_files(source) if path.name.startswith(name) and not format_of(path)]
        paths = [path for path in paths if path.name == name] or paths
    if len(paths) != 1:
        raise CorpusError(
            f"{source}: expected one file {name}, or one whose name begins so, found {len(paths)}; "
            "give --source the file itself"
        )
    path = paths[0]
    reject_other_than_text(path, is_utf8=False)
    size = path.stat().st_size
    other = f"this is another file; give {name} or a prefix of it"
    if size > FULL_SIZE:
        raise CorpusError(f"{path}: {size:,} bytes, but {name} has {FULL_SIZE:,}: {other}")
    if size < 20:
        raise CorpusError(f"{path}: {size:,} bytes are too short to split; give at least 20")
    place = _first_other_byte(path, corpus.symbols)
    if place is not None:
        raise CorpusError(f"{path}: {place}, {corpus.otherwise}: {other}, or prepare the file as own text")
    part = size // 20
    splits = {
        "train": (Slice(path, 0, size - 2 * part),),
        "valid": (Slice(path, size - 2 * part, size - part),),
        "test": (Slice(path, size - part, size),),
    }
    notes = () if size == FULL_SIZE else (f"a prefix of {size:,} of {FULL_SIZE:,} bytes",)
    return Text(splits, notes)


def _first_other_byte(path: Path, symbols: str) -> str | None:
    """Return the offset and the value of the first byte that does not match `symbols`; None if all match."""
    known = b"".join(re.findall(symbols.encode(), bytes(range(256))))
    offset = 0
    for block in whole(path).blocks():
        others = block.translate(None, known)
        if others:
            return f"byte {offset + block.index(others[0]):,} is 0x{others[0]:02x}"
        offset += len(block)
    return None


def whole(path: Path) -> Slice:
    """Return a whole file as one slice."""
    return Slice(path, 0, path.stat().st_size)


def splits_in(path: Path) -> set[str]:
    """Return the splits that the parts of a relative path mention."""
    return {split for split in map(split_of, path.parts) if split}


def read_files(corpus: Corpus, source: Path, options: ReadOptions) -> Text:
    """Return the text of a corpus with whole files for each split.

    Official names take precedence; for other splits a file is used whose name mentions the split. Archives are ignored.
    """
    files = [path for path in text_files(source) if not format_of(path)]
    files = [path for path in files if not fnmatch.fnmatchcase(path.name, corpus.left_out)]
    patterns = dict(corpus.files)
    if options.released:
        patterns["valid"] = corpus.files["test"]
    splits = {}
    for split, pattern in patterns.items():
        official = [path for path in files if fnmatch.fnmatchcase(path.name, pattern)]
        paths = official or [path for path in files if split_of(path.name) == split]
        names = {path.name for path in official}
        if len(paths) > max(1, len(names)):
            raise CorpusError(f"{source}: {list_names(paths, source)} look like the {split} split; keep one of them")
        if paths:
            reject_other_than_text(*paths, is_utf8=False)
            _reject_rows(paths)
            splits[split] = list(map(whole, paths))
    if not splits:
        raise CorpusError(
            f"{source}: found no file of {corpus.name}; expected {', '.join(corpus.files.values())}, or names with "
            "train, valid or test"
        )
    vocabulary_file = None
    if corpus.rule.file is not None:
        lists = [path for path in files if path.name == corpus.rule.file]
        lists.append(source.parent / corpus.rule.file)
        vocabulary_file = next(filter(Path.is_file, lists), None)
    return Text(splits, missing_note(splits), vocabulary_file=vocabulary_file)


def _reject_rows(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.suffix.lower() in (".csv", ".tsv", ".json", ".jsonl"):
            raise CorpusError(
                f"{path} has rows, not the text of the benchmark; prepare it as own text, without --source"
            )


def missing_note(splits: Mapping[str, object]) -> tuple[str, ...]:
    """Return a note that names the missing splits, if any."""
    missing = [split for split in SPLITS if split not in splits]
    if not missing:
        return ()
    return (f"no {' and no '.join(missing)} split in this source",)
