"""Provides the files of a corpus: downloads or finds them, unpacks archives, checks digests."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from txlcli import __version__
from txlcli.corpora.corpus import Corpus, CorpusError, Download, Slice, Text
from txlcli.corpora.download import digest_fault, fetch, is_complete
from txlcli.corpora.locate import printable, text_files
from txlcli.corpora.unpack import is_archive, unpack
from txlcli.workflows.preparation.planning import Plan
from txlcli.workflows.reporter import Reporter

_BLOCK = 1 << 22


def locate_text(plan: Plan, work: Path, reporter: Reporter) -> tuple[Text, tuple[str, ...]]:
    """Return the location of each split's text, and notes on the source; archives are unpacked into `work`.

    Raises:
        CorpusError: the source cannot be downloaded, unpacked or read, or a downloaded file is not the original.
    """
    if plan.source is None:
        folder = _download(plan, work, reporter)
        wrong = [f"{path}: {fault}" for path, fault in _altered_files(folder, plan.corpus)]
        if wrong:
            raise CorpusError(f"{'; '.join(wrong)}; remove {plan.downloads} and try again")
        return plan.corpus.read(folder, plan.read), ()
    if plan.parquet:
        return _read_parquet(plan, plan.source, work / "text", reporter)
    source = plan.source
    if archives := _archives(source, plan.corpus):
        for path in archives:
            _unpack_or_copy(path, work, plan.corpus, reporter)
        source = work
    text = plan.corpus.read(source, plan.read)
    return text, tuple(f"{path.name} is not the original file" for path, _ in _altered_files(source, plan.corpus))


def _files_beside(plan: Plan, source: Path) -> list[str]:
    """Return the names of the files in a folder that are neither its Parquet files nor its vocabulary."""
    if not source.is_dir():
        return []
    used = {*(text.path for text in plan.parquet), plan.vocab_file}
    return [printable(path.relative_to(source).as_posix()) for path in text_files(source) if path not in used]


def _read_parquet(plan: Plan, source: Path, work: Path, reporter: Reporter) -> tuple[Text, tuple[str, ...]]:
    """Write the text column of Parquet files into text files of the same names, and find the splits in these.

    Raises:
        CorpusInputError: a file is damaged.
        CorpusError: the files have no text, or not enough to split.
    """
    from txlcli.exchange import parquet_text

    folder = source if source.is_dir() else source.parent
    size = missing = 0
    with reporter.progress("reading Parquet files", len(plan.parquet), "files") as step:
        for text in plan.parquet:
            target = work / text.path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            bytes_of_file, missing_of_file = parquet_text.extract(text, target, only_utf8=plan.tokenizer != "byte")
            size, missing = size + bytes_of_file, missing + missing_of_file
            step.advance(1)
    if not size:
        raise CorpusError(f"{source}: the column {plan.parquet[0].column} has no text; give --column another")
    written = work if source.is_dir() else work / source.name
    try:
        found = plan.corpus.read(written, plan.read)
    except CorpusError as error:
        raise CorpusError(str(error).replace(str(written), str(source))) from error
    columns = ", ".join(dict.fromkeys(text.column for text in plan.parquet))
    notes = [f"text of the column {columns} of {len(plan.parquet):,} Parquet file{'s' * (len(plan.parquet) > 1)}"]
    if others := _files_beside(plan, source):
        named = ", ".join(others[:3]) + (f" and {len(others) - 3:,} more" if len(others) > 3 else "")
        notes.append(f"files in the folder that are not Parquet, which were left out: {named}")
    if missing:
        notes.append(f"rows without a text (null), which were left out: {missing:,}")
    return found, tuple(notes)


def _download(plan: Plan, work: Path, reporter: Reporter) -> Path:
    for download in plan.corpus.downloads:
        for path in _fetch_or_mirror(plan, download, reporter):
            _unpack_or_copy(path, work, plan.corpus, reporter)
    return work


def _fetch_or_mirror(plan: Plan, download: Download, reporter: Reporter) -> list[Path]:
    """Return the downloaded file, or the files of its mirror if they were fetched before or no address has the file.

    Raises:
        CorpusError: the mirror failed, too; the message has all errors.
    """
    folder = plan.downloads
    has_mirror = download.mirror and all(is_complete(file, folder) for file in download.mirror)
    if has_mirror and not is_complete(download, folder):
        return [folder / file.file for file in download.mirror]
    try:
        return [_fetch(plan, download, reporter)]
    except CorpusError as error:
        if not download.mirror:
            raise
        reporter.say(f"{error}; trying a mirror")
        try:
            return [_fetch(plan, file, reporter) for file in download.mirror]
        except CorpusError as another:
            raise CorpusError(f"{error}; {another}") from another


def _fetch(plan: Plan, download: Download, reporter: Reporter) -> Path:
    with reporter.progress(f"downloading {download.file}", download.size, "B") as step:
        return fetch(
            download, plan.downloads, lambda done, _total: step.reach(done), plan.patience, f"txl/{__version__}"
        )


def _archives(source: Path, corpus: Corpus) -> list[Path]:
    """Return the source if it is an archive, or the published files in a folder that has no unpacked text; else []."""
    if not corpus.downloads:
        return []
    if not source.is_dir():
        return [source] if is_archive(source) else []
    published = {file.file for download in corpus.downloads for file in (download, *download.mirror)}
    published -= set(corpus.digests)
    files = text_files(source)
    if any(corpus.wanted(path.name) for path in files if path.name not in published):
        return []
    paths = [path for path in files if path.name in published]
    return paths if any(is_archive(path) for path in paths) else []


def _unpack_or_copy(path: Path, work: Path, corpus: Corpus, reporter: Reporter) -> None:
    if is_archive(path):
        with reporter.progress(f"unpacking {path.name}"):
            unpack(path, work, corpus.wanted)
    else:
        shutil.copyfile(path, work / path.name)


def _altered_files(source: Path, corpus: Corpus) -> list[tuple[Path, str]]:
    """Return the files that have an original's name but not its content, each with the difference."""
    files = text_files(source) if source.is_dir() and corpus.digests else [source]
    faults = [(path, digest_fault(path, corpus.digests[path.name])) for path in files if path.name in corpus.digests]
    return [(path, fault) for path, fault in faults if fault]


def digest(splits: Mapping[str, tuple[Slice, ...]]) -> str:
    """Return the sha256 of the text of all splits, in order."""
    total = hashlib.sha256()
    for piece in (piece for slices in splits.values() for piece in slices):
        with piece.path.open("rb") as file:
            file.seek(piece.start)
            left = piece.size
            while left and (block := file.read(min(left, _BLOCK))):
                total.update(block)
                left -= len(block)
    return total.hexdigest()
