"""Shows which files are intact, for `txl prepare --verify` and `txl runs verify`."""

from typing import TYPE_CHECKING

from txlcli import console
from txlcli.errors import TxlError

if TYPE_CHECKING:
    from txlcli.workflows.verification import FileCheck


def show_checks(checks: "list[FileCheck]", *, json: bool) -> None:
    """Write one line per file to stdout, or one JSON object; raise an error if a file is damaged."""
    if json:
        console.show_json({"files": [vars(check) for check in checks]})
    else:
        for check in checks:
            console.show_line(f"{check.file}: {check.state}")
    damaged = [check.error for check in checks if check.error]
    for error in damaged:
        console.complain(error)
    if damaged:
        raise TxlError(f"{len(damaged)} of {len(checks)} files are damaged; restore them from copies")
