"""Unpickles plain data without running any code."""

import io
import pickle
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from txlcli.system.input_files import MAX_VOCABULARY, read_bytes
from txlcli.system.tensor_files import check_zip

CONTAINERS = {("collections", "OrderedDict"), ("collections", "Counter")}
"""Classes in vocabulary files. Lists and dicts are not listed: pickles do not refer to them by name."""


class UnsafePickleError(Exception):
    """A pickle refers to code; the message is its name. It was not run."""


class _PlainUnpickler(pickle._Unpickler):  # in Python: the one in C takes as much memory as a few bytes ask for
    dispatch: ClassVar = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CONTAINERS:
            raise UnsafePickleError(f"{module}.{name}".encode("unicode_escape").decode()[:100])
        return dict  # not the class itself, since a pickle could change its attributes


def load(path: Path) -> Any:
    """Load a pickle of plain containers; every mapping becomes a dict. A damaged one can raise anything."""
    data = io.BytesIO(read_bytes(path, MAX_VOCABULARY))
    return _PlainUnpickler(data, encoding="utf-8").load()  # some were written by Python 2


def load_torch(path: Path) -> Any:
    """Load a file of `torch.save` with tensors and plain containers. A damaged one can raise anything."""
    import torch  # noqa: PLC0415 - plain pickles do not need it

    check_zip(path)
    with warnings.catch_warnings(), torch.serialization.safe_globals([Counter]):
        warnings.simplefilter("ignore")  # PyTorch warns about damaged files
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if (code := re.search(r"GLOBAL (\S+)", str(error))) is not None:
                raise UnsafePickleError(code[1]) from error
            raise ValueError("it holds more than tensors and plain containers, or is damaged") from error
