"""The HDF5 file with the loss of each token, written by `txl eval --losses`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from txlcli.data.hdf5 import READ_ERRORS, Facts, add_array, creating, read_array, reading, set_attributes
from txlcli.errors import StoreError, UsageError
from txlcli.system.atomic_files import check_output, replacing
from txlcli.system.input_files import check_regular

FORMAT = 1


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


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses of one text."""

    run: str
    tokens: NDArray[np.integer]
    """Predicted ids, (T,)."""
    losses_nats: dict[str, NDArray[np.float32]]
    """Loss of each token, (T,), by evaluation: mem_len_M or attn_len_N."""
    temperatures: dict[str, float]
    """Number that the logits were divided by, by evaluation; 1 in files of earlier versions."""
    has_state: bool
    """True for a model with a recurrent state, whose only evaluation is called mem_len_0."""


def check_path(path: Path, option: str) -> None:
    """Reject a path to which losses cannot be written, or that is another file, before anything is computed."""
    if check_regular(path).exists():
        try:
            read(path)
        except UsageError as error:
            raise UsageError(f"{option}: exists and holds no losses; give another name") from error
    check_output(path, option)


def write(path: Path, tokens: NDArray[np.integer], results: Iterable[TokenLosses], facts: Facts) -> None:
    """Write `tokens` (T,) and, per evaluation, `mem_len_M` or `attn_len_N` (T,): the losses, in stream order.

    The length and facts of a result become attributes of its dataset. `facts` become attributes of the file, such as
    run, step, text, vocabulary fingerprint and precision.
    """
    try:
        with replacing(path) as draft, creating(draft) as (file, _):
            set_attributes(file, {"format": FORMAT, **facts})
            add_array(file, "tokens", tokens)
            for result in results:
                dataset = add_array(file, f"{result.length_name}_{result.length}", result.losses_nats)
                set_attributes(dataset, {result.length_name: result.length, **result.facts})
    except OSError as error:
        raise StoreError(
            f"{path}: the losses cannot be written ({error.strerror}); check the folder and the free space"
        ) from error


def read(path: Path) -> Losses:
    """Read a file of losses; raise a UsageError if it is none."""
    try:
        with reading(check_regular(path)) as file:
            if file.attrs.get("format") != FORMAT:
                raise ValueError("it has another format")
            losses = {name: read_array(file, name) for name in file}
            tokens = losses.pop("tokens")
            if not losses or any(values.shape != tokens.shape for values in losses.values()):
                raise ValueError("it has no loss of every token")
            temperatures = {name: float(file[name].attrs.get("temperature", 1)) for name in losses}
            has_state = bool(file.attrs.get("recurrent_state", False))
            return Losses(file.attrs["run"].decode(), tokens, losses, temperatures, has_state)
    except READ_ERRORS as error:
        reason = error if path.exists() else "no such file"
        raise UsageError(f"{path}: not a file of losses ({reason}); write one with txl eval --losses") from error
