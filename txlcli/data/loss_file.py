"""The HDF5 file with the loss of every token, which `txl eval --losses` writes."""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from txlcli.errors import StoreError, UsageError
from txlcli.system.atomic_files import check_folder, replacing

FORMAT = 1

Facts = Mapping[str, str | int | None]
"""What is known, by name; what is None is left out."""


@dataclass(frozen=True)
class TokenLosses:
    """What one reading of the text gave."""

    kind: Literal["mem_len", "attn_len"]
    """Whether `length` is that of a memory, M, or of windows without memory, N."""
    length: int
    """Tokens."""
    losses_nats: NDArray[np.float32]
    """The loss of each token, (T,)."""
    facts: Facts
    """How it was read beyond that: L, the lanes, the stride of windows."""


def check_path(path: Path) -> None:
    """Refuse a place where losses cannot go, before anything is computed for it.

    Raises:
        UsageError: there is no such folder, it cannot be written, or a file there is something else.
    """
    check_folder(path, f"--losses {path}")
    if path.exists() and not _holds_losses(path):
        raise UsageError(f"--losses {path}: exists and holds no losses; give another name")


def _holds_losses(path: Path) -> bool:
    try:
        with h5py.File(path, "r") as file:
            return "tokens" in file and bool(file.attrs.get("format") == FORMAT)
    except OSError:
        return False


def write(path: Path, tokens: NDArray[np.integer], readings: Iterable[TokenLosses], facts: Facts) -> None:
    """Write `tokens` (T,) and, per reading, `mem_len_M` or `attn_len_N` (T,): the loss of each token, in stream order.

    Args:
        path: replaced if it exists; `check_path` tells whether that does harm.
        tokens: the predicted token ids, (T,).
        readings: the losses in nats; each has its length and its facts as attributes.
        facts: attributes of the file: run, step, text, vocabulary fingerprint, precision and so on.

    Raises:
        StoreError: the file cannot be written.
    """
    # Made in memory: on a full disk HDF5 cannot close a file of its own, and takes the whole process with it.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.attrs["format"] = FORMAT
        _describe(file, facts)
        file["tokens"] = tokens
        for one in readings:
            dataset = file.create_dataset(f"{one.kind}_{one.length}", data=one.losses_nats)
            _describe(dataset, {one.kind: one.length, **one.facts})
    replace_file(path, content)


def _describe(part: h5py.Group | h5py.Dataset, facts: Facts) -> None:
    for key, value in facts.items():
        if value is not None:
            part.attrs[key] = value


def replace_file(path: Path, content: io.BytesIO) -> None:
    """Put a file that was made in memory in its place, whole.

    Raises:
        StoreError: the file cannot be written; what was there before is untouched.
    """
    try:
        with replacing(path) as beside:
            beside.write_bytes(content.getbuffer())
    except OSError as error:
        raise StoreError(
            f"{path}: the losses cannot be written ({error.strerror}); check the folder and the free space"
        ) from error
