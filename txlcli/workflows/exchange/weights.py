"""Reads weights of other systems as named tensors, and writes them for Hugging Face."""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from txlcli.errors import RunError, VocabularyError, reason_of
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import MAX_VOCABULARY, check_regular, read_text
from txlcli.system.plain_json import parse_json
from txlcli.workflows.exchange.layouts import System
from txlcli.workflows.exchange.pickles import check_unpacked, check_zip

STATE_DICT_HINT = (
    "save its state dict with the released code's folders pytorch and pytorch/utils on PYTHONPATH: "
    "torch.save(torch.load('model.pt', weights_only=False, map_location='cpu').state_dict(), 'state.pt')"
)
WRAPPERS = re.compile(r"(?<![^.])(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
"""Parts of names that DDP, FSDP, DeepSpeed and torch.compile add to a model or to its layers."""
INDEX = ".index.json"
"""Ending of the file that lists the shards of weights."""
POSITION_KEYS = ("dec_attn.r_net.weight", "rel_attn/r/kernel")
"""Ends of names that only models with the attention of the paper have (attn_type 0 of the released code)."""
EMBEDDING = re.compile(r"(.*?)(?:(?<![^.])word_emb\.|(?<![^/])transformer/adaptive_embed)")
"""A name of the embedding, after the names of what surrounds the model."""
MULTIPLE = 8
"""Vocabularies are padded to a multiple of 8 (NVIDIA), 64 (nanoGPT) or 128 (Megatron)."""
MAX_PADDING = 128
"""Vocabularies are padded by fewer rows."""
TABLE = re.compile(r"(?:emb|out)_layers\.(\d+)\.weight$|adaptive_embed/(.*)lookup_table$")


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a `.safetensors`, `.npz` or torch file, by name, without running code from it.

    An index of shards gives the tensors of all shards. The names are those of the bare model, without wrappers.
    """
    bare = {}
    for name, tensor in _load(path).items():
        bare[WRAPPERS.sub("", name).removesuffix(":0")] = tensor
    matches = [EMBEDDING.match(name) for name in bare]
    outer = next((match[1] for match in matches if match), "")
    # Hugging Face's model has the softmax next to `transformer`, any other has it inside.
    if outer.endswith("transformer.") and not any(name.startswith(f"{outer}crit.") for name in bare):
        outer = outer.removesuffix("transformer.")
    return {name.removeprefix(outer): tensor for name, tensor in bare.items()}


def _load(path: Path) -> dict[str, Tensor]:
    if not check_regular(path).is_file():
        raise RunError(f"no file at {path}; give a .safetensors, .npz or torch file")
    try:
        if path.name.endswith(INDEX):
            return _read_shards(path)
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            return _read_npz(path)
        return _read_torch(path)
    except RunError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise RunError(f"{path}: damaged, or not a file of weights ({reason_of(error)}); download it again") from error


def _read_shards(index: Path) -> dict[str, Tensor]:
    names = set(parse_json(read_text(index, MAX_VOCABULARY))["weight_map"].values())
    tensors: dict[str, Tensor] = {}
    for name in sorted(names):
        tensors |= _load(index.parent / name)
    return tensors


def _read_npz(path: Path) -> dict[str, Tensor]:
    check_zip(path)
    with np.load(path, allow_pickle=False) as archive, np.errstate(over="ignore"):
        tensors = {}
        for name, array in archive.items():
            if array.dtype.kind == "f":  # what is too large for float32 becomes infinite, which is rejected later
                tensors[name] = torch.from_numpy(array.astype(np.float32))
        return tensors


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Read a file that has tensors by name and nothing else. A few bytes can be the storage of a huge tensor."""
    check_zip(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about damaged files
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            code = re.search(r"GLOBAL (\S+)", str(error))
            if code is None:
                raise ValueError("it holds more than tensors, or is damaged") from error
            raise RunError(
                f"{path}: holds {code[1]} besides tensors; rejected, nothing of it was run; {STATE_DICT_HINT}"
            ) from error
    if not _is_state_dict(loaded):
        raise RunError(f"{path}: not a state dict (names and tensors, nothing else); {STATE_DICT_HINT}")
    check_unpacked(sum(tensor.nbytes for tensor in loaded.values()), path)
    return dict(loaded)


def _is_state_dict(loaded: object) -> bool:
    if not isinstance(loaded, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in loaded.items())


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors to a `.safetensors` file that Hugging Face reads."""
    with replacing(path) as draft:
        try:
            save_file(tensors, draft, {"format": "pt"})
        except SafetensorError as error:
            raise OSError(0, str(error)) from error


def system_of(tensors: Mapping[str, Tensor], path: Path) -> System:
    """Return the system that names its tensors like these."""
    key = next((name for name in tensors if name.endswith(POSITION_KEYS)), None)
    if key is None:
        raise RunError(
            f"{path}: none of its {len(tensors)} tensors is named like the position keys of a Transformer-XL "
            f"({' or '.join(POSITION_KEYS)}); only Transformer-XL with attn_type 0 can be imported"
        )
    if key.startswith("transformer/"):
        return "tf"
    if key.startswith("transformer."):
        return "hugging_face"
    return "pytorch"


def padding_of(tensors: Mapping[str, Tensor], vocab_size: int, path: Path) -> int:
    """Return the number of ids with which the tables of the embedding were padded to a multiple, after the last one.

    Each table may have two names.
    """
    tables = {}
    for name, tensor in tensors.items():
        match = TABLE.search(name)
        if match:
            tables[match.groups()] = tensor
    size = sum(tensor.shape[:1].numel() for tensor in tables.values()) or vocab_size
    rows = size - vocab_size
    is_padding = 0 < rows < MAX_PADDING and size % MULTIPLE == 0
    if rows and not is_padding:
        raise VocabularyError(
            f"{path}: the weights have {size:,} ids and the vocabulary {vocab_size:,}; "
            "give the vocabulary that they were trained with"
        )
    return rows
