"""Shows which files are intact, for `txl prepare --verify` and `txl runs verify`."""

from typing import TYPE_CHECKING

from txlcli import console
from txlcli.errors import TxlError

if TYPE_CHECKING:
    from txlcli.workflows.verification import FileCheck


def show_checks(checks: "list[FileCheck]", *, json: bool) -> None:
    """Write one line per file to stdout, or one JSON object; raise an error unless all are intact."""
    if json:
        console.show_json({"files": [vars(check) for check in checks]})
    else:
        for check in checks:
            console.show_line(f"{check.file}: {check.state}")
    errors = [check.error for check in checks if check.error]
    for error in errors:
        console.complain(error)
    if errors:
        raise TxlError(f"{len(errors)} of {len(checks)} files are damaged or missing; restore them from copies")
