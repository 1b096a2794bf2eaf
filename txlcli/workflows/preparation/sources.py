"""Provides the files of a corpus: downloads or finds them, unpacks archives, checks digests."""

import hashlib
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

from txlcli import __version__
from txlcli.corpora import OWN_TEXT
from txlcli.corpora.corpus import Corpus, CorpusError, Download, ReadOptions, Splits, Text
from txlcli.corpora.directory import remarks_on_tables
from txlcli.corpora.documents import Documents
from txlcli.corpora.download import digest_fault, fetch, is_complete
from txlcli.corpora.locate import list_files, list_names, text_files
from txlcli.corpora.signatures import format_of, reject_other_than_text
from txlcli.corpora.unpack import unpack
from txlcli.errors import CorpusInputError
from txlcli.system import locks
from txlcli.workflows.exchange import containers
from txlcli.workflows.exchange.containers import Extracted
from txlcli.workflows.exchange.text_rows import UNQUOTED
from txlcli.workflows.preparation.planning import PreparationPlan

BLANK = b" \n"
"""Line that an empty row of a mirror stands for, as in WikiText."""


def locate_text(plan: PreparationPlan, work: Path) -> tuple[Text, Documents | None]:
    """Return the location of each split's text, and the documents of its files, if their places are to be stored.

    A text without splits is cut between documents. Archives are unpacked into `work`.
    """
    unit = plan.options.documents
    documents = Documents(unit) if unit is not None else None
    starts = documents.starts if documents else None
    options = ReadOptions(plan.options.released_convention, plan.options.split, starts)
    if plan.source is None:
        text = _download_text(plan, options, work)
    elif plan.files:
        text = _extract_text(plan, plan.source, options, documents, work / "text")
    else:
        text = _read_source(plan, plan.source, options, work)
    return text, documents


def _read_source(plan: PreparationPlan, source: Path, options: ReadOptions, work: Path) -> Text:
    """Find the splits in the files of the source; archives are unpacked into `work`."""
    packed = _packed_files(source, plan.corpus)
    for path in packed:
        _unpack_or_copy(path, plan, work)
    if packed:
        unpacked = text_files(work)
        source = unpacked[0] if len(unpacked) == 1 else work
    text = plan.corpus.read(source, options)
    notes = [f"{path.name} is not the original file" for path in _altered_files(source, plan.corpus)]
    if plan.corpus is OWN_TEXT:
        notes += remarks_on_tables(source, text_files(source))
    return text.with_remarks(notes)


def _download_text(plan: PreparationPlan, options: ReadOptions, work: Path) -> Text:
    _download(plan, work)
    altered = _altered_files(work, plan.corpus)
    if altered:
        wrong = "; ".join(f"{path}: {fault}" for path, fault in altered.items())
        raise CorpusError(f"{wrong}; remove {plan.downloads} and try again")
    return plan.corpus.read(work, options)


def _extract_text(
    plan: PreparationPlan, source: Path, options: ReadOptions, documents: Documents | None, work: Path
) -> Text:
    """Write the text of files into text files of the same names in `work`, and find the splits in these."""
    directory = source if source.is_dir() else source.parent
    extracted = work / source.relative_to(directory)
    written = _write_text(plan, directory, documents, work)
    columns = ", ".join(dict.fromkeys(file.column for file in plan.files if file.column))
    if columns and not any(part.size for part in written):
        raise CorpusError(f"{source}: the column {columns} has no text; give `column` another")
    try:
        text = plan.corpus.read(extracted, options)
    except CorpusError as error:
        raise CorpusError(str(error).replace(str(extracted), str(source))) from error
    files, hidden = list_files(source)
    read = {file.path for file in plan.files}
    others = [path for path in files if path not in read and path != plan.vocab_file]
    formats = " and ".join(dict.fromkeys(file.format for file in plan.files))
    notes = []
    if columns:
        notes.append(f"text of the column {columns} ({formats} files: {len(plan.files):,})")
    unquoted = [file.path for file in plan.files if not file.is_quoted]
    if unquoted:
        notes.append(f"{list_names(unquoted, source)}: {UNQUOTED}")
    notes += remarks_on_tables(source, [file.path for file in plan.files if not file.column])
    if others:
        notes.append(f"files in the folder that are not {formats}, which were left out: {list_names(others, source)}")
    return text.with_remarks(
        notes,
        files_skipped=len(others) + text.changes["files_skipped"],
        hidden_files_skipped=hidden,
        rows_without_text=sum(part.missing for part in written),
    )


def _write_text(plan: PreparationPlan, directory: Path, documents: Documents | None, work: Path) -> list[Extracted]:
    """Write the text of files in `directory` into files of the same names in `work`.

    Records that are documents get their offsets in these files.
    """
    with_starts = plan.options.documents == "records"
    only_utf8 = plan.tokenizer != "byte"
    written = []
    with plan.reporter.progress("reading files", len(plan.files), "files") as progress:
        for file in plan.files:
            if not (file.column or file.packing):
                reject_other_than_text(file.path, is_utf8=plan.options.encoding is None)
            target = work / file.path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as output:
                text = containers.extract(file, output, only_utf8=only_utf8, with_starts=with_starts)
            if documents and with_starts:
                documents.offsets[target] = text.starts
            written.append(text)
            progress.advance(1)
    return written


def _download(plan: PreparationPlan, work: Path) -> None:
    """Download what is not in the directory of downloads, and unpack it into `work`.

    Stores of one corpus share its downloads, and two processes would write into the same incomplete files.
    """
    plan.downloads.mkdir(parents=True, exist_ok=True)
    busy = f"another process downloads {plan.corpus.name} to {plan.downloads}; wait for it, and repeat the command"
    files = list[Download]()
    with locks.writing(plan.downloads, busy):
        for download in plan.corpus.downloads:
            files += _fetch_or_mirror(plan, download)
    for file in files:
        path = plan.downloads / file.file
        try:
            _unpack_or_copy(path, plan, work)
        except (CorpusError, CorpusInputError) as error:
            path.unlink()  # it is complete by its size, and would not be fetched again
            raise CorpusError(str(error)) from error


def _fetch_or_mirror(plan: PreparationPlan, download: Download) -> Sequence[Download]:
    """Fetch a file, or those of its mirror if they were fetched before or no address has the file; return which."""
    mirror = download.mirror
    directory = plan.downloads
    if mirror and not is_complete(download, directory) and all(is_complete(file, directory) for file in mirror):
        return mirror
    faults: list[str] = []
    for files in filter(None, ((download,), mirror)):
        try:
            for file in files:
                with plan.reporter.progress(f"downloading {file.file}", file.size, "B") as progress:
                    fetch(file, directory, progress.reach, f"txl/{__version__}")
            return files
        except CorpusError as error:
            if mirror and not faults:
                plan.reporter.say(f"{error}; trying a mirror")
            faults.append(str(error))
    raise CorpusError("; ".join(faults))


def _published(corpus: Corpus) -> dict[str, Download]:
    """Return all files that are published, by name."""
    published = {}
    for download in corpus.downloads:
        for file in (download, *download.mirror):
            published[file.file] = file
    return published


def _packed_files(source: Path, corpus: Corpus) -> list[Path]:
    """Return the published files in a directory that has no unpacked text, or a source that is such a file; else [].

    Files of a mirror are used in its order, and only if the directory lacks the file that they replace.
    """
    published = _published(corpus)
    paths = [source]
    if source.is_dir():
        files = text_files(source)
        path_of = {path.name: path for path in files}
        archives = published.keys() - corpus.digests.keys()
        if any(corpus.has_file(name) for name in path_of.keys() - archives):
            return []
        paths = []
        for download in corpus.downloads:
            alternatives = (download,) if download.file in path_of else download.mirror
            paths += [path_of[file.file] for file in alternatives if file.file in path_of]
        for path in paths:
            same = [file for file in files if file.name == path.name]
            if len(same) > 1:
                raise CorpusError(
                    f"{source}: {list_names(same, source)} have the same name; give the folder of one of them"
                )
    for path in paths:
        has_rows = path.name in published and published[path.name].rows_of
        if published and (has_rows or format_of(path)):
            return paths
    return []


def _unpack_or_copy(path: Path, plan: PreparationPlan, work: Path) -> None:
    """Write the text of a published file into `work`."""
    file = _published(plan.corpus).get(path.name)
    if file is not None and file.rows_of:
        with plan.reporter.progress(f"reading {path.name}"), (work / file.rows_of).open("ab") as output:
            for rows in containers.find(path, None, None):
                containers.extract(rows, output, only_utf8=False, blank=BLANK)
    elif format_of(path):
        with plan.reporter.progress(f"unpacking {path.name}"):
            unpack(path, work, plan.corpus.has_file)
    else:
        shutil.copyfile(path, work / path.name)


def _altered_files(source: Path, corpus: Corpus) -> dict[Path, str]:
    """Return the files that have an original's name but not its content, each with the difference."""
    faults = {}
    for path in text_files(source):
        if path.name in corpus.digests:
            fault = digest_fault(path, corpus.digests[path.name])
            if fault:
                faults[path] = fault
    return faults


def digest(splits: Splits) -> str:
    """Return the SHA-256 of the text of all splits, in order."""
    total = hashlib.sha256()
    for piece in itertools.chain(*splits.values()):
        for block in piece.blocks():
            total.update(block)
    return total.hexdigest()
