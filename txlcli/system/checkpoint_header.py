"""The text in a checkpoint's header: plain state, and checksums of the state and of every tensor.

The checksums (XXH3, 128 bits) find damage, not intent: who can change a file can change its checksums, too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from txlcli.system.input_files import check_regular
from txlcli.system.plain_json import parse_json

FORMAT = 1
STATE = "txl"
"""The only key of the metadata, since safetensors writes several in any order."""
CHECKSUMS = "checksums"
MAX_HEADER = 8 << 20
"""Largest header of a safetensors file, in bytes; that of the largest model of the paper has 0.1 MB."""


def digest(*parts: Any) -> str:
    """Return the checksum of consecutive bytes."""
    total = xxhash.xxh3_128()
    for part in parts:
        total.update(part)
    return str(total.hexdigest())


def write_header(state: Mapping[str, Any], tensor_digests: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    complete = {"format": FORMAT, **state}
    checksums = {"state": _digest_of(complete), "tensors": dict(tensor_digests)}
    return {STATE: json.dumps({**complete, CHECKSUMS: checksums})}


def _digest_of(state: Mapping[str, Any]) -> str:
    return digest(json.dumps(state).encode())


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint file without its tensors, and without importing PyTorch."""
    with check_regular(path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")  # of the JSON header
        if length > min(MAX_HEADER, path.stat().st_size):
            raise ValueError("the header is truncated, or longer than a header needs to be")
        header = parse_json(file.read(length))
    return read_header(header["__metadata__"])[0]


def read_header(metadata: Mapping[str, str] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the state and the checksums of the tensors, none for a newer format, which the caller rejects.

    A LookupError means another file than a checkpoint, a ValueError a damaged one.
    """
    try:
        state = parse_json((metadata or {})[STATE])
        is_newer = state["format"] > FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise LookupError("not a checkpoint of txl") from error
    if is_newer:
        return state, {}
    checksums = state.pop(CHECKSUMS, None)
    if not isinstance(checksums, dict) or checksums.get("state") != _digest_of(state):
        raise ValueError("its state has a wrong checksum")
    return state, checksums["tensors"]
