"""The directory of an export: rejects directories of other programs, and is filled completely or not at all."""

import json
from collections.abc import Callable, Collection
from pathlib import Path

from txlcli.corpora.locate import TOOLS
from txlcli.data.vocabulary import Vocab
from txlcli.errors import ExportError, VocabularyError
from txlcli.system import locks
from txlcli.system.atomic_files import errors_of_writing, sync_file
from txlcli.workflows.exchange import vocabularies
from txlcli.workflows.exchange.token_files import VOCABULARY

DRAFT = ".txl-export-"
"""Beginning of the names of drafts, which are next to the directory."""


def fill(
    directory: Path, files: Collection[str], write: Callable[[Path], None], vocab: Vocab, *, force: bool
) -> tuple[str, ...]:
    """Write the files of an export and its vocabulary, and remove those of an earlier one; return their names.

    `files` are the names of all other files that exports of this format may write. `write` gets a draft directory with
    the vocabulary, so that an error leaves the earlier export as it was.
    """
    real = directory.resolve()
    names = {VOCABULARY, *files}
    busy = f"{directory} is being written by another process; wait for it, or give another folder"
    with errors_of_writing(directory):
        real.parent.mkdir(parents=True, exist_ok=True)
        with locks.writing(real, busy):
            _check_free(directory, names, force=force)
            with locks.temporary_directory(real.parent, DRAFT) as draft:
                (draft / VOCABULARY).write_text(vocab.to_json(), encoding="utf-8")
                write(draft)
                return _replace(directory, names, draft)


def _check_free(directory: Path, files: set[str], *, force: bool) -> None:
    """Reject a directory that is not empty, unless `force` may replace an earlier export and nothing else is in it."""
    if not directory.exists():
        return
    held = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    if not directory.is_dir() or (held and not force):
        raise ExportError(f"{directory} exists; give another folder, or replace an earlier export with `force`")
    other = held - files - TOOLS
    if held and not other and not _is_export(directory):
        other = held
    if other:
        raise ExportError(
            f"{directory} holds {min(other)}, which no export of this format wrote; give another folder, or empty this "
            "one"
        )


def _is_export(directory: Path) -> bool:
    """Return True if a directory has the vocabulary that every export has."""
    try:
        vocabularies.read(directory / VOCABULARY)
    except VocabularyError:
        return False
    return True


def write_json(path: Path, content: object) -> None:
    """Write a JSON file for people to read."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _replace(directory: Path, files: set[str], draft: Path) -> tuple[str, ...]:
    written = sorted(draft.iterdir())
    for path in written:
        sync_file(path)
    directory.mkdir(exist_ok=True)
    for path in written:
        path.replace(directory / path.name)
    names = tuple(path.name for path in written)
    for name in files.difference(names):
        (directory / name).unlink(missing_ok=True)
    return names
