"""One safetensors file per checkpoint: tensors and plain JSON, never a pickle.

Tensors are named by what they belong to: `model.` (weights), `average.` (their mean), `optimizer.`, `memory.`, `rng.`.
The JSON sits in the file's metadata. The file is written beside its place and renamed, so a reader sees the old one or
the new one, whole.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from txlcli.config.model_settings import ModelSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.registry import make_model
from txlcli.errors import RunError
from txlcli.system.atomic_files import replacing

FORMAT = 1
KEY = "txl"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds."""

    tensors: dict[str, Tensor]
    """Everything by its full name."""
    state: dict[str, Any] = field(default_factory=dict)
    """Plain data: step, place in the text, best loss."""

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors of one group, by their names within it."""
        return {key[len(name) + 1 :]: value for key, value in self.tensors.items() if key.startswith(f"{name}.")}

    @property
    def weights_to_evaluate(self) -> str:
        """The group of them."""
        return _evaluated(self.tensors)

    def weights_digest(self) -> str:
        """SHA-256 of the weights to evaluate: the same digest is the same function."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.group(self.weights_to_evaluate).items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _evaluated(names: Iterable[str]) -> str:
    """The group of the weights to evaluate: their mean where the training has begun one."""
    return "average" if any(name.startswith("average.") for name in names) else "model"


def grouped(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under their full names."""
    return {f"{name}.{key}": value for key, value in tensors.items()}


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in place of an older one.

    Raises:
        RunError: the disk is full or the folder cannot be written; the older checkpoint is untouched.
    """
    metadata = {KEY: json.dumps({"format": FORMAT, **checkpoint.state})}
    tensors = {name: tensor.detach().contiguous() for name, tensor in checkpoint.tensors.items()}
    try:
        with replacing(path) as beside:
            save_file(tensors, beside, metadata)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{path}: the checkpoint cannot be written ({error}); what was saved before is untouched"
        ) from error


def load(path: Path, *, to_evaluate: bool = False) -> Checkpoint:
    """Read a checkpoint; `to_evaluate` leaves out what only training needs, which is twice as much as the weights.

    Raises:
        RunError: missing, damaged, foreign, or of a newer format.
    """
    if not path.is_file():
        other = next(path.parent.glob("*.safetensors"), None)
        kept = f"{other.name} holds weights only, which no training can go on from" if other else None
        raise RunError(f"{path}: no such checkpoint; {kept or 'the run has not saved one yet'}")
    try:
        path.open("rb").close()  # safetensors takes what may not be read for missing
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            names = list(file.keys())
            if to_evaluate:
                group = _evaluated(names)
                names = [name for name in names if name.startswith(f"{group}.")]
            # A copy lies where PyTorch aligns it: kernels that look at alignment would round otherwise differently.
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except PermissionError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: damaged checkpoint ({error}); restore it from a copy or train again") from error
    try:
        state = json.loads(text or "")
        newer = state["format"] > FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path}: a safetensors file, but not a checkpoint of txl; restore it from a copy, or make a run of it "
            "with txl import"
        ) from error
    if newer:
        raise RunError(f"{path}: written by a newer txl (format {state['format']}); update txl to read it")
    return Checkpoint(tensors, state)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by the parameters' names: `NAME.exp_avg` and so on."""
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put saved state back; the inverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition(".")
        parameter = parameters[name]
        # Adam counts its steps in a tensor that fused kernels want beside the parameter.
        optimizer.state[parameter][key] = value.to(parameter.device)


def build_model(
    settings: ModelSettings, vocab_size: int, checkpoint: Checkpoint, path: Path, *, group: str = "model"
) -> LanguageModel:
    """The model with the checkpoint's weights, or with another group of tensors that are named as they are.

    Raises:
        RunError: tensors are missing, left over, or of another shape.
    """
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    try:
        model.load_state_dict(checkpoint.group(group), assign=True)
    except RuntimeError as error:
        details = " ".join(str(error).split())
        raise RunError(
            f"{path}: the weights do not fit the run's settings ({details}); restore the run's files from one copy"
        ) from error
    return model.requires_grad_()
