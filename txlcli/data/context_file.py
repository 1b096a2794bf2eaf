"""The HDF5 file in which `txl recl` saves losses, so that no loss at a context length is computed twice.

N/context_C/positions      positions of the tokens that were predicted from C tokens of context, rising
N/context_C/losses_nats    the loss of each token
N/facts                    attribute: everything that the losses depend on, as JSON; N is a number
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.data.hdf5 import READ_ERRORS, add_array, read_array, reading, replacing_losses, set_attributes
from txlcli.errors import UsageError
from txlcli.system.atomic_files import check_output
from txlcli.system.input_files import check_regular

FORMAT = "txl losses by context"
PREFIX = "context_"

Facts = Mapping[str, Any]
"""Everything that losses depend on, such as weights, text and evaluation settings."""
SavedLosses = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Positions, rising, and their losses in nats."""


def _to_json(facts: Facts) -> str:
    return json.dumps(facts, sort_keys=True)


class ContextFile:
    """The losses of a file, which need not exist, in memory; `save` writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._losses: dict[str, dict[int, SavedLosses]] = {}  # by facts, as JSON, and context length
        self._changed = False
        if not check_regular(path).exists():
            check_output(path, str(path))
            return
        try:
            with reading(path) as file:
                if file.attrs.get("format") != FORMAT.encode():
                    raise UsageError(f"{path}: holds no losses of txl recl; give another name or remove it")
                for group in file.values():
                    self._losses[group.attrs["facts"].decode()] = {
                        int(name.removeprefix(PREFIX)): (read_array(part, "positions"), read_array(part, "losses_nats"))
                        for name, part in group.items()
                    }
        except READ_ERRORS as error:
            reason = " ".join(str(error).split())[:160]
            raise UsageError(f"{path}: is damaged ({reason}); remove it or give another name") from error

    def missing(self, facts: Facts, context_len: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions whose loss at a context length has not been saved."""
        saved, _ = self._saved(facts, context_len)
        return np.setdiff1d(positions, saved, assume_unique=True)

    def losses(self, facts: Facts, context_len: int, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the losses of positions, all of which have been saved, in the given order."""
        saved, losses = self._saved(facts, context_len)
        return losses[np.searchsorted(saved, positions)]

    def add(self, facts: Facts, context_len: int, positions: Any, losses_nats: Any) -> None:
        """Add the losses of new positions."""
        saved, losses = self._saved(facts, context_len)
        positions, losses = np.concatenate([saved, positions]), np.concatenate([losses, losses_nats])
        order = np.argsort(positions)
        self._losses.setdefault(_to_json(facts), {})[context_len] = (positions[order], losses[order])
        self._changed = True

    def _saved(self, facts: Facts, context_len: int) -> SavedLosses:
        nothing = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
        return self._losses.get(_to_json(facts), {}).get(context_len, nothing)

    def save(self, *, anyway: bool = False) -> None:
        """Write the file if there are new losses, or `anyway`, to try whether it can be written."""
        if not (self._changed or anyway):
            return
        with replacing_losses(self.path) as file:
            set_attributes(file, {"format": FORMAT})
            for number, (facts, by_context) in enumerate(self._losses.items()):
                group = file.create_group(str(number))
                set_attributes(group, {"facts": facts})
                for context_len, (positions, losses) in by_context.items():
                    part = group.create_group(f"{PREFIX}{context_len}")
                    add_array(part, "positions", positions)
                    add_array(part, "losses_nats", losses)
        self._changed = False
