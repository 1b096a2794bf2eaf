"""The HDF5 file with the loss of each token, written by `txl eval --losses`."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from txlcli.data.sealed_hdf5 import read_hdf5, replacing_hdf5
from txlcli.errors import StoreError, UsageError
from txlcli.system.atomic_files import check_output
from txlcli.system.input_files import check_regular

FORMAT = 1

Facts = Mapping[str, str | int | None]
"""Values by name; None is omitted."""


@dataclass(frozen=True)
class TokenLosses:
    """The losses of one evaluation of the text."""

    length_name: Literal["mem_len", "attn_len"]
    """Meaning of `length`: memory length M, or length N of windows without memory."""
    length: int
    """In tokens."""
    losses_nats: NDArray[np.float32]
    """The loss of each token, (T,)."""
    facts: Facts
    """Other evaluation settings, such as segment length, batch size, or stride of the windows."""


def check_path(path: Path) -> None:
    """Refuse a path to which losses cannot be written, before anything is computed.

    Raises:
        UsageError: the directory does not exist or cannot be written to, or the file exists and is not a loss file.
    """
    if check_regular(path).exists() and not _holds_losses(path):
        raise UsageError(f"--losses {path}: exists and holds no losses; give another name")
    check_output(path, f"--losses {path}")


def _holds_losses(path: Path) -> bool:
    try:
        return read_hdf5(path, lambda file: "tokens" in file and bool(file.attrs.get("format") == FORMAT))
    except (OSError, ValueError, KeyError, RuntimeError):
        return False


def write(path: Path, tokens: NDArray[np.integer], results: Iterable[TokenLosses], facts: Facts) -> None:
    """Write `tokens` (T,) and, per evaluation, `mem_len_M` or `attn_len_N` (T,): the losses, in stream order.

    Args:
        path: replaced if it exists; see `check_path`.
        tokens: the predicted token ids, (T,).
        results: the losses in nats; the length and facts of each become attributes of its dataset.
        facts: attributes of the file, such as run, step, text, vocabulary fingerprint and precision.

    Raises:
        StoreError: the file cannot be written.
    """
    with replacing_file(path) as file:
        file.attrs["format"] = FORMAT
        _set_attributes(file, facts)
        file["tokens"] = tokens
        for one in results:
            dataset = file.create_dataset(f"{one.length_name}_{one.length}", data=one.losses_nats)
            _set_attributes(dataset, {one.length_name: one.length, **one.facts})


def _set_attributes(part: h5py.Group | h5py.Dataset, facts: Facts) -> None:
    for key, value in facts.items():
        if value is not None:
            part.attrs[key] = value


@contextmanager
def replacing_file(path: Path) -> Iterator[h5py.File]:
    """Yield a new HDF5 file with a seal, which is written atomically if the block succeeds.

    Raises:
        StoreError: the file cannot be written; an existing file is unchanged.
    """
    try:
        with replacing_hdf5(path, path.with_name(f".{path.name}.new")) as file:
            yield file.hdf5
    except OSError as error:
        raise StoreError(
            f"{path}: the losses cannot be written ({error.strerror}); check the folder and the free space"
        ) from error
