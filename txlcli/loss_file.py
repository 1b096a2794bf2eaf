"""The HDF5 file with the loss of every token, which `txl eval --losses` writes."""

import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from txlcli.errors import StoreError

FORMAT = 1


def write(
    path: Path, tokens: NDArray[np.integer], losses_nats: Mapping[int, NDArray[np.float32]], facts: Mapping[str, str]
) -> None:
    """Write `tokens` (T,) and, per memory length M, `mem_len_M` (T,): the loss of each token in nats, in stream order.

    Args:
        path: replaced if it exists.
        tokens: the predicted token ids, (T,).
        losses_nats: memory length -> losses (T,).
        facts: attributes: run, store, split, vocabulary fingerprint and so on.

    Raises:
        StoreError: the file cannot be written.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with h5py.File(beside, "w") as file:
            file.attrs["format"] = FORMAT
            for key, value in facts.items():
                file.attrs[key] = value
            file["tokens"] = tokens
            for mem_len, losses in losses_nats.items():
                dataset = file.create_dataset(f"mem_len_{mem_len}", data=losses)
                dataset.attrs["mem_len"] = mem_len
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StoreError(
            f"{path}: the losses cannot be written ({error}); check the folder and the free space"
        ) from error
