"""Text that the user gives: a file or stdin, read as `txl prepare` reads it, or the text itself."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.directory import remarks_on
from txlcli.corpora.signatures import reject_other_than_text
from txlcli.errors import CorpusInputError, UsageError
from txlcli.system.input_files import MAX_TEXT, check_regular, read_bytes, read_stdin

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
    """File as the user gives it, "-" for stdin, or a name for `data`."""
    data: bytes | None = None
    """The text itself; None if it is in the file."""
    label: str = ""
    """Name in error messages."""

    @classmethod
    def of_option(cls, file: str) -> "UserText":
        """Return the text that the option `text` names."""
        return cls(file, label=f"`text` {file}")

    @property
    def title(self) -> str:
        """Name in results."""
        return "stdin" if self.name == STDIN else self.name

    def read(self, *, column: str | None = None, encoding: str | None = None, max_bytes: int = MAX_TEXT) -> ReadText:
        """Return the text of a file or stdin, of at most `max_bytes`: the compression and the rows are undone.

        Raises a CorpusInputError or UsageError for what `txl prepare` rejects, too.
        """
        if self.data is not None:
            return ReadText(self.data)
        with TemporaryDirectory(prefix="txl-") as directory:
            path = Path(self.name)
            try:
                if self.name == STDIN:
                    path = Path(directory, "stdin")
                    path.write_bytes(read_stdin(max_bytes))
                return _read(path, column, encoding, max_bytes)
            except OSError as error:
                raise UsageError(f"{self.label}: cannot be read ({error.strerror}); check the path") from error
            except (CorpusError, CorpusInputError) as error:
                raise CorpusInputError(str(error).replace(f"{directory}/", "")) from error


def read_unchanged(path: Path) -> bytes:
    """Return the bytes of a file that is text as it is: what must be unpacked or converted first is rejected."""
    try:
        reject_other_than_text(check_regular(path))
        return read_bytes(path, MAX_TEXT)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except CorpusError as error:
        raise CorpusInputError(f"{error}; only the bytes of a file as it is are restored") from error


def _read(path: Path, column: str | None, encoding: str | None, max_bytes: int) -> ReadText:
    from txlcli.workflows.exchange import containers

    data = containers.read_file(check_regular(path), column, encoding, max_bytes)
    return ReadText(data, tuple(remarks_on(data, path.name)))
