"""The exceptions of txl: one message each, on one line: what, where, next step.

`txlcli.cli` prints the message and exits with the code of the exception.
"""

from collections.abc import Iterable

from txlcli.suggestions import did_you_mean

MAX_LISTED = 10
"""Largest number of known names that an error lists."""
LONGEST_NAME = 80
"""Most characters of a name from a file that an error prints."""
LONGEST_REASON = 160
"""Most characters of the message of a library that an error prints."""
IMPORT_PACKAGE = "import that package before the command runs, as docs/extending.md shows"
"""Next step for a name that another package registers."""


class TxlError(Exception):
    """The request could not be carried out; the message states what, where, and the next step."""

    exit_code = 1

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code or self.exit_code


class UsageError(TxlError):
    """The request itself is wrong; nothing was started."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe file or a --set override is wrong.

    `setting` is what must change, such as "train.lr"; None if it is not one setting.
    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class UnknownKeyError(RecipeError):
    """Settings have a section or a key that this version does not know."""


class UnknownNameError(UsageError):
    """A name of a kind ("run") is unknown; the message suggests one like it, or `like`, and lists the known ones.

    If there are more than MAX_LISTED, it has `listing` instead, a sentence about the command that lists them.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, like: str | None = None, listing: str | None = None
    ) -> None:
        self.kind = kind
        self.name = name
        self.known = list(known)
        near = did_you_mean(name if like is None else like, self.known)
        if listing is None or len(self.known) <= MAX_LISTED:
            listing = f"known: {listed(self.known)}"
        super().__init__(f'unknown {kind} "{name}"{near} ({listing})')


class StoreError(TxlError):
    """A token store is missing, damaged, or not a store of txl."""


class VocabularyError(TxlError):
    """A text has symbols that are not in the vocabulary, or two vocabularies differ."""


class CompressedFileError(TxlError):
    """A compressed file is damaged, or was written with other weights, releases or rounding."""


class CorpusInputError(TxlError):
    """A corpus could not be downloaded, unpacked, read or split."""


class ExportError(TxlError):
    """The folder of an export is in use, or cannot be written."""


class ExternalModelError(TxlError):
    """A model of another program cannot be opened, or does not predict a text from left to right."""


class RunError(TxlError):
    """A run folder or a checkpoint is missing, damaged, or not of txl."""


class MissingPackageError(RunError):
    """A run has a part of another package, such as an architecture, and nothing has registered it in this process."""

    def __init__(self, path: object, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(
            f'{path}: the run needs the package that registers the {kind} "{shortened(name)}"; {IMPORT_PACKAGE}'
        )


class BusyError(RunError):
    """Another process writes a run, a store, a download, a report or an export."""


class TrainingError(TxlError):
    """Training cannot continue: a non-finite loss or gradient, a text too short for the batch size, a process lost."""


class DisagreementError(TxlError):
    """The processes of a command differ, or one has failed; all of them raise this, and rank 0 reports it."""


class ReportedError(TxlError):
    """This process has failed, and another one reports why: rank 0, or the launcher of a lost process."""


class Interrupted(TxlError):  # noqa: N818 - an interrupt is not an error
    """A signal stopped a command; the message states what was saved."""


def shortened(text: str) -> str:
    """Return a name or value for a message, cut after LONGEST_NAME characters."""
    if len(text) <= LONGEST_NAME:
        return text
    return f"{text[:LONGEST_NAME]}..."


def reason_of(error: BaseException) -> str:
    """Return the message of a library's error on one line, cut after LONGEST_REASON characters."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason[:LONGEST_REASON].replace("`", "'")  # backticks of ours are options


def listed(names: Iterable[str]) -> str:
    """Return names as a list for a message."""
    return ", ".join(names) or "none yet"
