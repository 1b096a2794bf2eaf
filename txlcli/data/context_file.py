"""The HDF5 file in which `txl recl` keeps losses, so that no loss at a context length is computed twice.

KEY/context_C/positions      which tokens were predicted from C tokens before them, rising
KEY/context_C/losses_nats    the loss of each
KEY/facts                    an attribute: what the losses depend on, as JSON; KEY is its digest
"""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from txlcli.data.loss_file import replace_file
from txlcli.errors import UsageError
from txlcli.system.atomic_files import check_folder

FORMAT = "txl losses by context"
VERSION = 1

Known = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Positions, rising, and their losses in nats."""


def key_of(facts: Mapping[str, Any]) -> str:
    """The digest of all that losses depend on; weights, text and reading among it."""
    return hashlib.sha256(_as_text(facts).encode()).hexdigest()[:32]


def _as_text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)


class ContextFile:
    """The losses that a file holds, in memory; `save` writes them.

    Args:
        path: of the file, which need not exist.

    Raises:
        UsageError: there is no such file, and no folder that it could be written to; or it holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._losses: dict[str, dict[int, Known]] = {}
        self._facts: dict[str, str] = {}
        self._changed = False
        if path.exists():
            self._read()
        else:
            check_folder(path, f"--losses {path}")

    def _read(self) -> None:
        wrong = UsageError(f"--losses {self.path}: holds no losses of txl recl; give another name or remove it")
        try:
            with h5py.File(self.path, "r") as file:
                if file.attrs.get("format") != FORMAT or file.attrs["version"] > VERSION:
                    raise wrong
                for key, group in file.items():
                    self._facts[key] = str(group.attrs["facts"])
                    self._losses[key] = {
                        int(name.removeprefix("context_")): (part["positions"][()], part["losses_nats"][()])
                        for name, part in group.items()
                    }
        except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise wrong from error

    def missing(self, key: str, context_len: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the positions whose loss at a context length is not known."""
        known, _ = self._known(key, context_len)
        return np.setdiff1d(positions, known, assume_unique=True)

    def losses(self, key: str, context_len: int, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The losses of positions that are all known, in the order given."""
        known, losses = self._known(key, context_len)
        return losses[np.searchsorted(known, positions)]

    def add(self, facts: Mapping[str, Any], context_len: int, positions: Any, losses_nats: Any) -> None:
        """Keep losses of positions that were not known."""
        key = key_of(facts)
        known, losses = self._known(key, context_len)
        positions, losses = np.concatenate([known, positions]), np.concatenate([losses, losses_nats])
        order = np.argsort(positions)
        self._facts[key] = _as_text(facts)
        self._losses.setdefault(key, {})[context_len] = (positions[order], losses[order])
        self._changed = True

    def _known(self, key: str, context_len: int) -> Known:
        nothing = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
        return self._losses.get(key, {}).get(context_len, nothing)

    def save(self) -> None:
        """Write the file anew, if there is anything new.

        Raises:
            StoreError: it cannot be written.
        """
        if not self._changed:
            return
        # Made in memory: on a full disk HDF5 cannot close a file of its own, and takes the whole process with it.
        content = io.BytesIO()
        with h5py.File(content, "w") as file:
            file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
            for key, by_context in self._losses.items():
                group = file.create_group(key)
                group.attrs["facts"] = self._facts[key]
                for context_len, (positions, losses) in by_context.items():
                    part = group.create_group(f"context_{context_len}")
                    part["positions"], part["losses_nats"] = positions, losses
        replace_file(self.path, content)
        self._changed = False

    def check_writable(self) -> None:
        """Refuse a place where losses cannot be kept, before any is computed.

        Raises:
            StoreError: it cannot be written.
        """
        self._changed = True
        self.save()
