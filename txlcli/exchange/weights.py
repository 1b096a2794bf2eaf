"""Reads weights of other systems as named tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
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
        tensors = _state_dict(pickles.load_torch(path), path)
    except UnsafePickleError as error:
        raise RunError(
            f"{path}: holds {error} besides tensors; rejected, nothing of it was run; {STATE_DICT_HINT}"
        ) from error
    except Exception as error:  # a damaged file can raise anything
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: damaged, or not a file of weights ({reason}); download it again") from error
    if tensors is None:
        raise RunError(f"{path}: not a state dict (names and tensors, nothing else); {STATE_DICT_HINT}")
    return tensors


def _read_npz(path: Path) -> dict[str, Tensor]:
    check_zip(path)
    with np.load(path, allow_pickle=False) as archive, np.errstate(over="ignore"):
        arrays = {name: archive[name] for name in archive.files}
        # What is too large for float32 becomes infinite, which is rejected later.
        return {name: torch.from_numpy(a.astype(np.float32)) for name, a in arrays.items() if a.dtype.kind == "f"}


def _state_dict(loaded: Any, path: Path) -> dict[str, Tensor] | None:
    """Return tensors by name; None if a file has something else. A few bytes can be the storage of a huge tensor."""
    is_mapping = isinstance(loaded, Mapping)
    if not (is_mapping and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in loaded.items())):
        return None
    for name, tensor in loaded.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
            raise ValueError(f"{name} is not a dense tensor")
    check_unpacked(sum(tensor.numel() * tensor.element_size() for tensor in loaded.values()), path)
    return dict(loaded)


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
