"""Recognizes the files that txl wrote: `force` replaces no others."""

from pathlib import Path

from txlcli.errors import UsageError
from txlcli.system.input_files import KIB, check_regular

MARK = "txl, Transformer-XL"
"""Generator of a page, and software of a figure, in their metadata."""
EDGE = 64 * KIB
"""Bytes at the beginning and the end of a file among which its signature is."""


def check_replaceable(path: Path, signature: str = MARK) -> None:
    """Reject a file that `force` would replace, unless it is empty or has the signature of its kind."""
    if not path.exists():
        return
    with check_regular(path).open("rb") as file:
        edges = file.read(EDGE)
        file.seek(max(0, path.stat().st_size - EDGE))
        edges += file.read()
    if edges and signature.encode() not in edges:
        raise UsageError(
            f"{path} does not look like an earlier result, so `force` does not replace it; move it away first"
        )
