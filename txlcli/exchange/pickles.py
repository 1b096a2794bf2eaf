"""Unpickles plain data, and nothing that could run."""

import pickle
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONTAINERS = {("collections", "OrderedDict"), ("collections", "Counter")}
"""What vocabulary files are made of, besides lists and dicts, which need no name."""


class UnsafePickleError(Exception):
    """A pickle names something that could run; the message is that name. Nothing of it was run."""


class DamagedPickleError(Exception):
    """A pickle cannot be read; the message says why."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CONTAINERS:
            raise UnsafePickleError(f"{module}.{name}".encode("unicode_escape").decode()[:100])
        return dict  # not the class itself: a pickle may change the attributes of a class that it gets hold of


def load(path: Path) -> Any:
    """What a pickle of plain containers holds; every mapping becomes a dict.

    Raises:
        UnsafePickleError, DamagedPickleError.
    """
    with _told_apart(), path.open("rb") as file:
        return _PlainUnpickler(file, encoding="utf-8").load()  # Python 2 wrote some of them


def load_torch(path: Path) -> Any:
    """What a file of `torch.save` holds: tensors and plain containers.

    Raises:
        UnsafePickleError, DamagedPickleError.
    """
    import torch  # noqa: PLC0415 - a plain pickle needs none

    with _told_apart(), warnings.catch_warnings(), torch.serialization.safe_globals([Counter]):
        warnings.simplefilter("ignore")  # PyTorch has some about damaged files
        return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def _told_apart() -> Iterator[None]:
    """Whatever reading a pickle raises becomes one of two: something could have run, or the file is damaged."""
    try:
        yield
    except UnsafePickleError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        said = " ".join(str(error).split())
        named = re.search(r"GLOBAL (\S+)", said)
        if named is not None:
            raise UnsafePickleError(named[1]) from error
        inner = re.search(r"WeightsUnpickler error: (.*?) Check the documentation", said)
        raise DamagedPickleError(f"{type(error).__name__}: {(inner[1] if inner else said)[:160]}") from error
