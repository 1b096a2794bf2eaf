"""Reads weights of other systems as named tensors."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.core.training.tensor_reader import read_file
from txlcli.errors import RunError, shortened
from txlcli.exchange import pickles
from txlcli.exchange.pickles import UnsafePickleError
from txlcli.system.input_files import check_regular
from txlcli.system.tensor_files import check_unpacked, check_zip

System = Literal["hugging_face", "pytorch", "tf"]
STATE_DICT_HINT = (
    "save its state dict with the released code's folders pytorch and pytorch/utils on PYTHONPATH: "
    "torch.save(torch.load('model.pt', weights_only=False, map_location='cpu').state_dict(), 'state.pt')"
)


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a `.safetensors`, `.npz` or torch file, by name, without running code from it."""
    if not check_regular(path).is_file():
        raise RunError(f"no file at {path}; give a .safetensors, .npz or torch file")
    try:
        if path.suffix == ".safetensors":
            return read_file(path)
        if path.suffix == ".npz":
            return _read_npz(path)
        loaded = pickles.load_torch(path)
        _check_tensors(path, loaded)
    except UnsafePickleError as error:
        raise RunError(
            f"{path}: holds {error} besides tensors; rejected, nothing of it was run; {STATE_DICT_HINT}"
        ) from error
    except Exception as error:  # a damaged file can raise anything
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: damaged, or not a file of weights ({reason}); download it again") from error
    return _tensors_only(path, loaded)


def _read_npz(path: Path) -> dict[str, Tensor]:
    check_zip(path)
    with zipfile.ZipFile(path) as archive:
        by_name = {member.filename.removesuffix(".npy"): _read_npy(archive, member) for member in archive.infolist()}
        if len(by_name) < len(archive.infolist()):
            raise ValueError("two of its arrays have the same name")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, which is rejected later
        return {name: torch.from_numpy(a.astype(np.float32)) for name, a in by_name.items() if a.dtype.kind == "f"}


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _check_tensors(path: Path, loaded: Any) -> None:
    """Check the tensors of a torch file: a few bytes can be the storage of a huge one, or of many."""
    tensors = _named_tensors(loaded) or {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
            raise ValueError(f"{name} is not a dense tensor")
    check_unpacked(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()), path)


def _named_tensors(loaded: Any) -> dict[str, Tensor] | None:
    """Return what was loaded if it is a mapping of names to tensors; None if it is something else."""
    is_mapping = isinstance(loaded, Mapping)
    is_named = is_mapping and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in loaded.items())
    return dict(loaded) if is_named else None


def _tensors_only(path: Path, loaded: Any) -> dict[str, Tensor]:
    tensors = _named_tensors(loaded)
    if tensors is None:
        raise RunError(f"{path}: not a state dict (names and tensors, nothing else); {STATE_DICT_HINT}")
    return tensors


def plain_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Remove what wrappers add to names: the prefix `module.` and the suffix `:0`."""
    names: dict[str, str] = {}
    for name in tensors:
        plain = name.removeprefix("module.").removesuffix(":0")
        if plain in names:
            raise RunError(
                f"{path}: has {shortened(names[plain])} and {shortened(name)}, two tensors for one weight; save the "
                "weights of one model alone"
            )
        names[plain] = name
    return {plain: tensors[name] for plain, name in names.items()}


def system_of(tensors: Mapping[str, Tensor], path: Path) -> System:
    """Return the system that names its tensors like these."""
    if any(name.startswith("transformer/") for name in tensors):
        return "tf"
    if any(name.startswith("transformer.word_emb.") for name in tensors):
        return "hugging_face"
    if any(name.startswith("word_emb.") for name in tensors):
        return "pytorch"
    raise RunError(
        f"{path}: none of its {len(tensors)} tensors is named as in a Transformer-XL "
        "(transformer.word_emb..., word_emb... or transformer/...); only Transformer-XL can be imported"
    )
