"""Shows which files are intact, for `txl prepare --verify` and `txl runs verify`."""

from typing import TYPE_CHECKING

from txlcli import console
from txlcli.errors import TxlError

if TYPE_CHECKING:
    from txlcli.workflows.verification import Verification


def show_checks(result: "Verification", *, json: bool) -> None:
    """Write one line per file to stdout, or one JSON object; raise an error if a file is damaged."""
    if json:
        console.show_json(result.to_json())
    else:
        for check in result.files:
            console.show_line(f"{check.file}: {check.state}")
    damaged = [check.error for check in result.files if check.error]
    for error in damaged:
        console.complain(error)
    if damaged:
        raise TxlError(f"{len(damaged)} of {len(result.files)} files are damaged; restore them from copies")
