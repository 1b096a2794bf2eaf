"""Provides the files of a corpus: downloads or finds them, unpacks archives, checks digests."""

import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from txlcli import __version__
from txlcli.corpora.corpus import Corpus, CorpusError, Download, Rows, Slice, Text
from txlcli.corpora.download import digest_fault, fetch, is_complete
from txlcli.corpora.locate import list_names, text_files
from txlcli.corpora.signatures import format_of
from txlcli.corpora.unpack import unpack
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.planning import Plan
from txlcli.workflows.reporter import Reporter

_BLOCK = 1 << 22


def locate_text(plan: Plan, work: Path, reporter: Reporter) -> tuple[Text, tuple[str, ...]]:
    """Return the location of each split's text, and notes on the source; archives are unpacked into `work`."""
    source = plan.source
    if source is None:
        _download(plan, work, reporter)
        if wrong := "; ".join(f"{path}: {fault}" for path, fault in _altered_files(work, plan.corpus)):
            raise CorpusError(f"{wrong}; remove {plan.downloads} and try again")
        return plan.corpus.read(work, plan.read), ()
    if plan.parquet:
        return _read_parquet(plan, source, work / "text", reporter)
    if packed := _packed_files(source, plan.corpus):
        for path in packed:
            _unpack_or_copy(path, work, plan.corpus, reporter)
        source = work
    text = plan.corpus.read(source, plan.read)
    return text, tuple(f"{path.name} is not the original file" for path, _ in _altered_files(source, plan.corpus))


def _read_parquet(plan: Plan, source: Path, work: Path, reporter: Reporter) -> tuple[Text, tuple[str, ...]]:
    """Write the text column of Parquet files into text files of the same names, and find the splits in these."""
    from txlcli.exchange import parquet_text

    directory = source if source.is_dir() else source.parent
    size = missing = 0
    with reporter.progress("reading Parquet files", len(plan.parquet), "files") as step:
        for text in plan.parquet:
            target = work / text.path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            bytes_of_file, missing_of_file = parquet_text.extract(text, target, only_utf8=plan.tokenizer != "byte")
            size, missing = size + bytes_of_file, missing + missing_of_file
            step.advance(1)
    if not size:
        raise CorpusError(f"{source}: the column {plan.parquet[0].column} has no text; give `column` another")
    written = work if source.is_dir() else work / source.name
    try:
        found = plan.corpus.read(written, plan.read)
    except CorpusError as error:
        raise CorpusError(str(error).replace(str(written), str(source))) from error
    columns = ", ".join(dict.fromkeys(text.column for text in plan.parquet))
    notes = [f"text of the column {columns} of {len(plan.parquet):,} Parquet file{'s' * (len(plan.parquet) > 1)}"]
    used = {*(text.path for text in plan.parquet), plan.vocab_file}
    if others := [path for path in text_files(source) if path not in used] if source.is_dir() else []:
        notes.append(f"files in the folder that are not Parquet, which were left out: {list_names(others, source)}")
    if missing:
        notes.append(f"rows without a text (null), which were left out: {missing:,}")
    return found, tuple(notes)


def _download(plan: Plan, work: Path, reporter: Reporter) -> None:
    for download in plan.corpus.downloads:
        for path in _fetch_or_mirror(plan, download, reporter):
            try:
                _unpack_or_copy(path, work, plan.corpus, reporter)
            except CorpusInputError as error:
                path.unlink()  # it has the right size, so it would not be fetched again
                raise CorpusError(str(error)) from error


def _rows_by_file(corpus: Corpus) -> dict[str, Rows]:
    """Return the description of the rows of each Parquet file that a mirror has, by the name of the file."""
    files = [file for download in corpus.downloads for file in download.mirror]
    return {file.file: file.rows for file in files if file.rows is not None}


def _fetch_or_mirror(plan: Plan, download: Download, reporter: Reporter) -> list[Path]:
    """Return the downloaded file, or the files of its mirror if they were fetched before or no address has the file."""
    directory = plan.downloads
    has_mirror = download.mirror and all(is_complete(file, directory) for file in download.mirror)
    if has_mirror and not is_complete(download, directory):
        return [directory / file.file for file in download.mirror]
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
        return fetch(download, plan.downloads, step.reach, f"txl/{__version__}")


def _packed_files(source: Path, corpus: Corpus) -> list[Path]:
    """Return the published files in a directory that has no unpacked text, or a source that is such a file; else [].

    Files of a mirror are used in its order, and only if the directory lacks the file that they replace.
    """
    rows = _rows_by_file(corpus)
    if not corpus.downloads:
        return []
    if not source.is_dir():
        return [source] if format_of(source) or source.name in rows else []
    published = {file.file for download in corpus.downloads for file in (download, *download.mirror)}
    published -= set(corpus.digests)
    files = text_files(source)
    if any(re.fullmatch(corpus.wanted, path.name) for path in files if path.name not in published):
        return []
    by_name = {path.name: path for path in files if path.name in published}
    paths = []
    for download in corpus.downloads:
        instead = () if download.file in by_name else download.mirror
        paths += [by_name[file.file] for file in (download, *instead) if file.file in by_name]
    return paths if any(format_of(path) or path.name in rows for path in paths) else []


def _unpack_or_copy(path: Path, work: Path, corpus: Corpus, reporter: Reporter) -> None:
    rows = _rows_by_file(corpus).get(path.name)
    if rows is not None:
        from txlcli.exchange import parquet_text

        with reporter.progress(f"reading {path.name}"):
            text = parquet_text.open_text(path, None)
            parquet_text.extract(text, work / rows.file, only_utf8=False, blank=rows.blank, append=True)
    elif format_of(path):
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
    """Return the SHA-256 of the text of all splits, in order."""
    total = hashlib.sha256()
    for piece in (piece for slices in splits.values() for piece in slices):
        with piece.path.open("rb") as file:
            file.seek(piece.start)
            left = piece.size
            while left and (block := file.read(min(left, _BLOCK))):
                total.update(block)
                left -= len(block)
    return total.hexdigest()
