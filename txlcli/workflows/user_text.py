"""Text that the user gives: a file, or stdin."""

from dataclasses import dataclass
from pathlib import Path

from txlcli.errors import UsageError
from txlcli.system.input_files import MAX_TEXT, read_bytes, read_stdin


@dataclass(frozen=True)
class UserText:
    """Text that the user gives."""

    name: str
    """File, as given on the command line, or stdin."""
    data: bytes
    label: str
    """Name in error messages."""


def read_user_text(file: str, label: str | None = None) -> UserText:
    """Read a text file, or stdin for "-"; errors begin with `label`, by default the option and the file."""
    label = label or f"`text` {file}"
    is_stdin = file == "-"
    try:
        data = read_stdin(MAX_TEXT) if is_stdin else read_bytes(Path(file), MAX_TEXT)
    except OSError as error:
        raise UsageError(f"{label}: cannot be read ({error.strerror}); check the path") from error
    return UserText("stdin" if is_stdin else file, data, label)
