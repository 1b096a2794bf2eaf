"""Brings the source of a corpus to disk: downloaded or given, unpacked, checked."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from corpora.corpus import Corpus, CorpusError, Slice, Text
from corpora.download import digest_fault, fetch
from corpora.locate import text_files
from corpora.unpack import is_archive, unpack
from txlcli.workflows.preparation.planning import Plan

_BLOCK = 1 << 22


class Step(Protocol):
    """A long step that can be told how far it is."""

    def advance(self, amount: float, detail: str = "") -> None:
        """So many units more are done."""

    def reach(self, done: float, detail: str = "") -> None:
        """So many units are done in all."""


# Description, total, unit -> a step that is shown while the block runs (console.progress).
Progress = Callable[[str, float | None, str], AbstractContextManager[Step]]


def locate(plan: Plan, work: Path, progress: Progress) -> tuple[Text, tuple[str, ...]]:
    """Where the text of each split lies, and notes on the source; archives are unpacked below `work`.

    Raises:
        CorpusError: it cannot be downloaded, unpacked or read, or a downloaded file is not the original.
    """
    if plan.source is None:
        folder = _download(plan, work, progress)
        wrong = [f"{path}: {fault}" for path, fault in _differing(folder, plan.corpus)]
        if wrong:
            raise CorpusError(f"{'; '.join(wrong)}; remove {plan.downloads} and try again")
        return plan.corpus.read(folder, plan.read), ()
    source = plan.source
    if packed := _packed(source, plan.corpus):
        for path in packed:
            _bring(path, work, plan.corpus, progress)
        source = work
    text = plan.corpus.read(source, plan.read)
    return text, tuple(f"{path.name} is not the original file" for path, _ in _differing(source, plan.corpus))


def _download(plan: Plan, work: Path, progress: Progress) -> Path:
    for download in plan.corpus.downloads:
        with progress(f"downloading {download.file}", download.size, "B") as step:
            path = fetch(download, plan.downloads, lambda done, _total, step=step: step.reach(done))  # type: ignore[misc]
        _bring(path, work, plan.corpus, progress)
    return work


def _packed(source: Path, corpus: Corpus) -> list[Path]:
    """The archive that a source is, or the published files in a folder where nothing lies unpacked; else nothing."""
    if not corpus.downloads:
        return []
    if not source.is_dir():
        return [source] if is_archive(source) else []
    published = {download.file for download in corpus.downloads}
    files = text_files(source)
    if any(corpus.wanted(path.name) for path in files if path.name not in published):
        return []
    found = [path for path in files if path.name in published]
    return found if any(is_archive(path) for path in found) else []


def _bring(path: Path, work: Path, corpus: Corpus, progress: Progress) -> None:
    """Put what a published file holds below `work`."""
    if is_archive(path):
        with progress(f"unpacking {path.name}", None, ""):
            unpack(path, work, corpus.wanted)
    else:
        shutil.copyfile(path, work / path.name)


def _differing(source: Path, corpus: Corpus) -> list[tuple[Path, str]]:
    """The files that bear an original's name but not its content."""
    files = text_files(source) if source.is_dir() and corpus.digests else [source]
    faults = [(path, digest_fault(path, corpus.digests[path.name])) for path in files if path.name in corpus.digests]
    return [(path, fault) for path, fault in faults if fault]


def digest(splits: Mapping[str, tuple[Slice, ...]]) -> str:
    """sha256 over the text of all splits, in order."""
    total = hashlib.sha256()
    for piece in (piece for slices in splits.values() for piece in slices):
        with piece.path.open("rb") as file:
            file.seek(piece.start)
            left = piece.size
            while left and (block := file.read(min(left, _BLOCK))):
                total.update(block)
                left -= len(block)
    return total.hexdigest()
