"""Unpickles vocabularies, and nothing that could run."""

import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

from txlcli.errors import VocabularyError

ADMITTED = {("collections", "OrderedDict"): OrderedDict, ("collections", "Counter"): Counter}
"""The containers that vocabulary files are made of, besides lists and dicts, which need no name."""
DAMAGED = (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, MemoryError)


class _Refused(Exception):  # noqa: N818 - it never leaves this module
    pass


class _VocabularyUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise _Refused(f"{module}.{name}")
        return ADMITTED[module, name]


def load_vocabulary(path: Path) -> Any:
    """What a pickle of plain containers holds.

    Raises:
        VocabularyError: the pickle names anything but those containers, which could run code; or it is damaged.
    """
    try:
        with path.open("rb") as file:
            return _VocabularyUnpickler(file, encoding="utf-8").load()  # Python 2 wrote some of them
    except _Refused as error:
        raise VocabularyError(
            f"{path}: the pickle wants {error}, which a vocabulary has no need of; refused, nothing of it was run. "
            "Give the words as a text file, one per line"
        ) from error
    except (*DAMAGED, OverflowError, RecursionError, OSError) as error:
        raise VocabularyError(f"{path}: no readable pickle ({type(error).__name__}: {error})") from error
