"""The HDF5 file with the loss of every token, which `txl eval --losses` writes."""

import io
import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from txlcli.errors import StoreError, UsageError

FORMAT = 1


def check_path(path: Path) -> None:
    """Refuse a place where losses cannot go, before anything is computed for it.

    Raises:
        UsageError: there is no such folder, or a file that is something else.
    """
    if not path.parent.is_dir():
        raise UsageError(f"--losses {path}: there is no folder {path.parent}; make it first")
    if path.exists() and not _holds_losses(path):
        raise UsageError(f"--losses {path}: exists and holds no losses; give another name")


def _holds_losses(path: Path) -> bool:
    try:
        with h5py.File(path, "r") as file:
            return "tokens" in file and bool(file.attrs.get("format") == FORMAT)
    except OSError:
        return False


def write(
    path: Path, tokens: NDArray[np.integer], losses_nats: Mapping[int, NDArray[np.float32]], facts: Mapping[str, str]
) -> None:
    """Write `tokens` (T,) and, per memory length M, `mem_len_M` (T,): the loss of each token in nats, in stream order.

    Args:
        path: replaced if it exists; `check_path` tells whether that does harm.
        tokens: the predicted token ids, (T,).
        losses_nats: memory length -> losses (T,).
        facts: attributes: run, store, split, vocabulary fingerprint and so on.

    Raises:
        StoreError: the file cannot be written.
    """
    # Made in memory: on a full disk HDF5 cannot close a file of its own, and takes the whole process with it.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.attrs["format"] = FORMAT
        for key, value in facts.items():
            file.attrs[key] = value
        file["tokens"] = tokens
        for mem_len, losses in losses_nats.items():
            dataset = file.create_dataset(f"mem_len_{mem_len}", data=losses)
            dataset.attrs["mem_len"] = mem_len
    replace_file(path, content)


def replace_file(path: Path, content: io.BytesIO) -> None:
    """Put a file that was made in memory in its place, whole.

    Raises:
        StoreError: the file cannot be written; what was there before is untouched.
    """
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_bytes(content.getbuffer())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StoreError(
            f"{path}: the losses cannot be written ({error.strerror}); check the folder and the free space"
        ) from error
