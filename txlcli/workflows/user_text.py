"""Text that the user gives: a file, a folder or stdin, read as `txl prepare` reads it, or the text itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.directory import (
    invalid_places,
    remarks_on,
    remarks_on_bytes,
    remarks_on_files,
    remarks_on_tables,
)
from txlcli.corpora.documents import divide
from txlcli.corpora.locate import text_files
from txlcli.corpora.signatures import conversion, encoding_of, head_of, reject_other_than_text
from txlcli.errors import CorpusInputError, UsageError
from txlcli.system.input_files import MAX_TEXT, check_regular, errors_of_reading, read_bytes, read_stdin

if TYPE_CHECKING:  # they import pyarrow
    from txlcli.workflows.exchange.containers import Extracted
    from txlcli.workflows.exchange.text_rows import TextFile

STDIN = "-"


@dataclass(frozen=True)
class ReadText:
    """Text of the user's that was read."""

    data: bytes
    notes: tuple[str, ...] = ()
    """Remarks on text that may not be what it seems."""


@dataclass(frozen=True)
class UserText:
    """Text that the user gives, which is read when it is needed."""

    name: str
    """File or folder as the user gives it, "-" for stdin, or a name for `data`."""
    data: bytes | None = None
    """The text itself; None if it is in the file."""
    label: str = ""
    """Name in error messages."""
    file: "TextFile | None" = None
    """How the text of a file in a folder is extracted; None for a file that the user names."""
    notes: tuple[str, ...] = ()
    """Remarks on the file that `data` is a document of."""
    ends_file: bool = True
    """False for a document that another one follows in its file: a mark may end it inside a line."""

    @classmethod
    def of_option(cls, file: str) -> "UserText":
        """Return the text that the option `text` names."""
        return cls(file, label=f"`text` {file}")

    @property
    def title(self) -> str:
        """Name in results."""
        return "stdin" if self.name == STDIN else self.name

    @property
    def is_folder(self) -> bool:
        """True for a folder, whose files are documents."""
        return self.data is None and Path(self.name).is_dir()

    def files(self, column: str | None, encoding: str | None) -> "list[UserText]":
        """Return the files of a folder that `txl prepare` reads, or the text itself.

        Raises a CorpusInputError for what `txl prepare` rejects.
        """
        if not self.is_folder:
            return [self]
        from txlcli.workflows.exchange import containers

        try:
            files = containers.text_files_of(Path(self.name), column, encoding)
        except CorpusError as error:
            raise CorpusInputError(str(error)) from error
        if not files:
            raise CorpusInputError(f"{self.label}: the folder has no text; give one that has some, or a file")
        return [UserText(str(file.path), label=str(file.path), file=file) for file in files]

    def read(self, *, column: str | None = None, encoding: str | None = None, max_bytes: int = MAX_TEXT) -> ReadText:
        """Return the text of a file or stdin, of at most `max_bytes`: the compression and the rows are undone.

        Raises a CorpusInputError or UsageError for what `txl prepare` rejects, too.
        """
        if self.data is not None:
            return ReadText(self.data, self.notes)
        read, _ = self._read(column, encoding, max_bytes)
        return read

    def remarks_on(self, files: "Sequence[UserText]") -> list[str]:
        """Return remarks on a folder: on files that are left out, and on a README and tables among these files."""
        if not self.is_folder:
            return []
        folder = Path(self.name)
        used = [Path(file.name) for file in files]
        others = [path for path in text_files(folder) if path not in used]
        left_out = [path for path in others if path.exists() and path.stat().st_size]  # not a broken link
        tables = [Path(source.name) for source in files if source.file is not None and not source.file.column]
        return [*remarks_on_files(folder, used, left_out), *remarks_on_tables(folder, tables)]

    def documents(self, unit: str, *, column: str | None, encoding: str | None) -> "list[UserText]":
        """Return the documents of a file or stdin; `unit` is what they are, as in `txl prepare`.

        Raises a CorpusInputError or UsageError for what `txl prepare` rejects, too.
        """
        if unit == "files":
            return [self]
        read, extracted = self._read(column, encoding, MAX_TEXT, has_documents=True)
        texts = extracted.rows_of(read.data) if unit == "records" else divide(read.data, unit)
        if not texts and read.data:
            raise UsageError(
                f"{self.label}: the text has no records; give `documents` blank-lines, or a mark that ends them"
            )
        documents = []
        for number, data in enumerate(texts, 1):
            name = f"{self.title}:{number}"
            is_last = number == len(texts)
            documents.append(UserText(name, data, label=name, notes=read.notes, ends_file=is_last))
        return documents

    def _read(
        self, column: str | None, encoding: str | None, max_bytes: int, *, has_documents: bool = False
    ) -> "tuple[ReadText, Extracted]":
        """Return the text of a file or stdin, and what is known of its rows."""
        from txlcli.workflows.exchange import containers
        from txlcli.workflows.exchange.text_rows import UNQUOTED

        with self._open(column, encoding, max_bytes) as file:
            data, extracted = containers.read_file(file, max_bytes)
        remarks = [
            *remarks_on(data, has_documents=has_documents),
            *remarks_on_bytes(data.count(0), invalid_places(data)),
        ]
        if not file.is_quoted:
            remarks.append(UNQUOTED)
        if extracted.missing:
            remarks.append(f"rows without a text, which were left out: {extracted.missing:,}")
        notes = tuple(f"{file.path.name}: {remark}" for remark in remarks)
        return ReadText(data, notes), extracted

    @contextmanager
    def _open(self, column: str | None, encoding: str | None, max_bytes: int) -> "Iterator[TextFile]":
        """Give a file, or a copy of stdin; report what cannot be read as an error of the user's."""
        from txlcli.workflows.exchange import containers

        with TemporaryDirectory(prefix="txl-") as directory, errors_of_reading(self.label):
            path = Path(self.name)
            try:
                if self.name == STDIN:
                    data = read_stdin(max_bytes)
                    path = Path(directory, "stdin").with_suffix(_suffix_of_rows(data) if column else "")
                    path.write_bytes(data)
                file = self.file
                if file is None:
                    if path.is_dir():
                        raise UsageError(f"{path} is a folder; give a file")
                    (file,) = containers.text_files_of(check_regular(path), column, encoding)
                yield file
            except (CorpusError, CorpusInputError) as error:
                raise CorpusInputError(str(error).replace(f"{directory}/", "")) from error
            except UsageError as error:  # an option has no effect on this file
                raise UsageError(str(error).replace(f"{directory}/", "")) from error


def _suffix_of_rows(data: bytes) -> str:
    """Return the ending that a file of such rows has: the name tells a table or JSON from plain text."""
    return ".json" if data.lstrip()[:1] in (b"{", b"[") else ".csv"


def read_unchanged(path: Path) -> bytes:
    """Return the bytes of a file that is text as it is: what must be unpacked or converted first is rejected."""
    try:
        with errors_of_reading(path):
            reject_other_than_text(check_regular(path), is_utf8=False)
            encoding = encoding_of(head_of(path))
            if encoding is not None:
                raise CorpusError(f"{path}: {encoding} is not UTF-8; {conversion(encoding)}")
            return read_bytes(path, MAX_TEXT)
    except CorpusError as error:
        raise CorpusInputError(f"{error}; only the bytes of a file as it is are restored") from error
