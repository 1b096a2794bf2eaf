"""Everything that txl raises on purpose, as one small tree.

TxlError                    could not                                    exit code 1
├── UsageError              asked wrongly                                exit code 2
│   ├── RecipeError         a recipe or a --set that cannot be honoured
│   └── UnknownNameError    a name that nothing answers to, with a suggestion
├── StoreError              a token store is missing, damaged or foreign
├── VocabularyError         text and vocabulary do not fit each other
├── CorpusInputError        a corpus could not be read, downloaded or split
├── RunError                a run folder or checkpoint is missing, damaged or foreign
│   └── BusyError           another process writes a run, a report or a file of losses
├── TrainingError           training cannot go on: a loss that is not finite, a text too short, a process lost
└── Interrupted             stopped by Ctrl-C (130) or SIGTERM (143); the message says what was saved

A message is one line: what, where, next step. `txlcli.cli` turns it into stderr text and the exit code.
"""

import difflib
from collections.abc import Iterable


class TxlError(Exception):
    """The wish could not be carried out; the message says what, where and what to do next."""

    exit_code = 1


class UsageError(TxlError):
    """The wish itself is wrong: nothing was started."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe file or a --set override is wrong."""


class UnknownNameError(UsageError):
    """A name is unknown; the message suggests the nearest known one and lists them all."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, like: str | None = None) -> None:
        names = list(known)
        near = did_you_mean(name if like is None else like, names)
        super().__init__(f'unknown {kind} "{name}"{near} (known: {listed(names)})')


class StoreError(TxlError):
    """A token store is missing, damaged, or not one of ours."""


class VocabularyError(TxlError):
    """A text has symbols that the vocabulary lacks, or two vocabularies differ."""


class CorpusInputError(TxlError):
    """A corpus could not be downloaded, unpacked, read or split."""


class RunError(TxlError):
    """A run folder or a checkpoint is missing, damaged, or not one of ours."""


class BusyError(RunError):
    """Another process writes a run, a report or a file of losses."""


class TrainingError(TxlError):
    """Training cannot go on: a loss or gradient that is not finite, a text too short for the lanes, a process lost."""


class Interrupted(TxlError):  # noqa: N818 - it is no error of anybody's
    """A command was stopped from outside; the message says what was saved."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def listed(names: Iterable[str]) -> str:
    """The names that there are, for a message."""
    return ", ".join(names) or "none yet"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The words `; did you mean "X"?` for the nearest known name, or nothing where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{near[0]}"?' if near else ""
