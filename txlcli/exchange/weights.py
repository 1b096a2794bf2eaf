"""Reads files of foreign weights as named tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from txlcli.errors import RunError
from txlcli.exchange import pickles
from txlcli.exchange.pickles import UnsafePickleError

System = Literal["hugging_face", "pytorch", "tf"]
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""What a Hugging Face folder may hold."""
STATE_DICT_HINT = (
    "save the state dict where the released code runs: torch.save(torch.load('model.pt').state_dict(), 'state.pt')"
)


def in_folder(folder: Path) -> Path:
    """The weights' file in a Hugging Face folder.

    Raises:
        RunError: there is none.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise RunError(f"{folder} has neither {' nor '.join(WEIGHTS)}; weights in several files must be merged first")


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.npz` or torch file, by name; nothing else in it is ever run.

    Raises:
        RunError: missing, damaged, or a pickle of more than tensors.
    """
    if not path.is_file():
        raise RunError(f"no file of weights at {path}; give a .safetensors, .npz or torch file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            return _read_npz(path)
        loaded = pickles.load_torch(path)
    except UnsafePickleError as error:
        raise RunError(
            f"{path}: holds {error} besides tensors; refused, nothing of it was run; {STATE_DICT_HINT}"
        ) from error
    except Exception as error:  # a damaged file can raise anything
        said = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: damaged or no file of weights ({said}); fetch it again") from error
    return _tensors_only(path, loaded)


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    return {name: torch.from_numpy(array.astype(np.float32)) for name, array in held.items() if array.dtype.kind == "f"}


def _tensors_only(path: Path, loaded: Any) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise RunError(f"{path}: no state dict (names and tensors, nothing else); {STATE_DICT_HINT}")
    return dict(loaded)


def plain_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what wrappers add to names: `module.` before them, `:0` after them."""
    return {name.removeprefix("module.").removesuffix(":0"): tensor for name, tensor in tensors.items()}


def system_of(tensors: Mapping[str, Tensor], path: Path) -> System:
    """Whose names these are.

    Raises:
        RunError: no Transformer-XL that is known.
    """
    if any(name.startswith("transformer/") for name in tensors):
        return "tf"
    if any(name.startswith("transformer.word_emb.") for name in tensors):
        return "hugging_face"
    if any(name.startswith("word_emb.") for name in tensors):
        return "pytorch"
    raise RunError(
        f"{path}: none of its {len(tensors)} tensors has a name of Transformer-XL "
        "(transformer.word_emb..., word_emb... or transformer/...); this is another model"
    )
