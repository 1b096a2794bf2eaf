"""Unpickles plain data without running any code."""

import io
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from txlcli.errors import UsageError
from txlcli.system.input_files import MAX_VOCABULARY, read_bytes
from txlcli.system.tensor_files import check_zip

CONTAINERS = {("collections", "OrderedDict"), ("collections", "Counter")}
"""Classes in vocabulary files. Lists and dicts are not listed: pickles do not refer to them by name."""


class UnsafePickleError(Exception):
    """A pickle refers to code; the message is its name. It was not run."""


class DamagedPickleError(Exception):
    """A pickle cannot be read; the message gives the reason."""


class _PlainUnpickler(pickle._Unpickler):  # in Python: the one in C takes as much memory as a few bytes ask for
    dispatch: ClassVar = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CONTAINERS:
            raise UnsafePickleError(f"{module}.{name}".encode("unicode_escape").decode()[:100])
        return dict  # not the class itself, since a pickle could change its attributes


def load(path: Path) -> Any:
    """Load a pickle of plain containers; every mapping becomes a dict."""
    with _classified_errors():
        data = io.BytesIO(read_bytes(path, MAX_VOCABULARY))
        return _PlainUnpickler(data, encoding="utf-8").load()  # some were written by Python 2


def load_torch(path: Path) -> Any:
    """Load a file of `torch.save` with tensors and plain containers."""
    import torch  # noqa: PLC0415 - plain pickles do not need it

    with _classified_errors(), warnings.catch_warnings(), torch.serialization.safe_globals([Counter]):
        check_zip(path)
        warnings.simplefilter("ignore")  # PyTorch warns about damaged files
        return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def _classified_errors() -> Iterator[None]:
    """Turn any exception of unpickling into an UnsafePickleError or a DamagedPickleError."""
    try:
        yield
    except (UnsafePickleError, DamagedPickleError, UsageError):
        raise
    except Exception as error:  # a damaged pickle can raise anything
        message = " ".join(str(error).split())
        named = re.search(r"GLOBAL (\S+)", message)
        if named is not None:
            raise UnsafePickleError(named[1]) from error
        inner = re.search(r"WeightsUnpickler error: (.*?) Check the documentation", message)
        raise DamagedPickleError(f"{type(error).__name__}: {(inner[1] if inner else message)[:160]}") from error
