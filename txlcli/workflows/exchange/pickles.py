"""Unpickles plain data without running any code."""

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, ClassVar

from txlcli.corpora.unpack import max_bytes
from txlcli.errors import VocabularyError
from txlcli.system.input_files import MAX_VOCABULARY, read_bytes

CONTAINERS = re.compile(r"collections\.(OrderedDict|Counter)$")
"""Classes in vocabulary files. Lists and dicts are not listed: pickles do not refer to them by name."""
OF_TOKENIZERS = re.compile(
    r"(transformers|tokenizers|sacremoses|vocabulary|utils\.vocabulary)(\.|$)|re\._compile$|(builtins|__builtin__)\.set$"
)
"""Names of the other objects in the vocabularies of Hugging Face and of the released code; these are not built."""
TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""First of the five pickles of a file that `torch.save` wrote before it wrote zip files; the fourth is the content."""


class _PlainUnpickler(pickle._Unpickler):  # in Python: the one in C takes as much memory as a few bytes ask for
    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: None}

    def find_class(self, module: str, name: str) -> Any:
        code = f"{module}.{name}"
        if CONTAINERS.match(code):
            return dict  # not the class itself, since a pickle could change its attributes
        if OF_TOKENIZERS.match(code):
            return _Attributes
        raise VocabularyError(
            f"the pickle refers to {code.encode('unicode_escape').decode()[:100]}, which a vocabulary does not need; "
            "rejected, nothing of it was run"
        )


class _Attributes(dict[str, Any]):
    """Attributes of an object of another program; its class is neither imported nor called."""

    def __init__(self, *_arguments: object) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.update(state)


def load(path: Path) -> Any:
    """Load the plain containers of a pickle, or of a file of `torch.save`; every mapping becomes a dict.

    Objects of tokenizers become dicts of their attributes. A damaged file can raise anything.
    """
    if zipfile.is_zipfile(path):
        check_zip(path)
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            names.append("data.pkl")
            data = io.BytesIO(archive.read(names[0]))
    else:
        data = io.BytesIO(read_bytes(path, MAX_VOCABULARY))
    loaded = _PlainUnpickler(data, encoding="utf-8").load()  # some were written by Python 2
    if loaded == TORCH_MAGIC:
        for _ in range(3):
            loaded = _PlainUnpickler(data, encoding="utf-8").load()
    return loaded


def check_unpacked(size: int, path: Path) -> None:
    """Check the size in bytes that the content of a file has in memory."""
    if size > max_bytes(path):
        raise ValueError(f"it would unpack to {size >> 20:,} MiB, far more than its size")


def check_zip(path: Path) -> None:
    """Check the unpacked size and the checksums of a zip file (.npz, torch); other files are left to their reader.

    PyTorch does not compare the checksums itself.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        check_unpacked(sum(member.file_size for member in archive.infolist()), path)
        damaged = archive.testzip()
        if damaged:
            raise ValueError(f"{damaged} in it has a wrong checksum")
