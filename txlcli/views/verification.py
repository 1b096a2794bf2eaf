"""Shows which files are intact."""

from collections.abc import Sequence
from typing import Any

from txlcli import console
from txlcli.errors import TxlError
from txlcli.workflows.verification import FileCheck


def show(checks: Sequence[FileCheck], *, json: bool) -> None:
    """Write one line per file to stdout, or one JSON object.

    Raises:
        TxlError: a file is damaged.
    """
    if json:
        console.show_json({"files": [_entry(check) for check in checks]})
    else:
        for check in checks:
            console.show_line(f"{check.path}: {check.state}")
    damaged = [check for check in checks if check.error]
    for check in damaged:
        console.complain(check.error)
    if damaged:
        raise TxlError(f"{len(damaged)} of {len(checks)} files are damaged; restore them from copies")


def _entry(check: FileCheck) -> dict[str, Any]:
    return {"file": str(check.path), "state": check.state, "error": check.error or None}
