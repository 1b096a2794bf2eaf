"""Checkpoints: one safetensors file of tensors and plain JSON, never a pickle.

The name of a tensor begins with its group: `model.` (weights), `average.` (their average), `optimizer.`, `memory.`,
`rng.` (random generators). The JSON is in the file's metadata. The file is written next to its path and renamed, so
a reader sees either the complete old file or the complete new one.

Memories of all lanes are named `LAYER`, generators `DEVICE.RANK`, on rank 0 `DEVICE`. So a run can resume with another
number of processes.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from txlcli.config.model_settings import ModelSettings
from txlcli.config.saved_state import check_state
from txlcli.core.architectures.registry import make_model
from txlcli.core.kernels.device import generator_state, set_generator_state
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.training.distributed import World
from txlcli.errors import RecipeError, RunError, TrainingError
from txlcli.system import checkpoint_header
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import check_regular, utf8_path

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint file."""

    tensors: dict[str, Tensor]
    """All tensors by full name."""
    state: dict[str, Any] = field(default_factory=dict)
    """Plain data: step, position in the text, best loss."""

    def group(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a group by their names within the group."""
        return {key[len(name) + 1 :]: value for key, value in self.tensors.items() if key.startswith(f"{name}.")}

    @property
    def weights_to_evaluate(self) -> str:
        """Group of the weights to evaluate: "average" if there is an average, else "model"."""
        return group_to_evaluate(self.tensors)

    def weights_digest(self) -> str:
        """Return the SHA-256 of the weights to evaluate: equal digests mean equal functions."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.group(self.weights_to_evaluate).items()):
            for part in _contents(name, tensor):
                digest.update(part)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return the step and the beginning of the digest of the weights, to compare copies of a checkpoint."""
        return f"step {self.state.get('step')} with weights {self.weights_digest()[:16]}"


def group_to_evaluate(names: Iterable[str]) -> str:
    """Return the group of the weights to evaluate, given the names of all tensors."""
    return "average" if any(name.startswith("average.") for name in names) else "model"


def grouped(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under their full names."""
    return {f"{name}.{key}": value for key, value in tensors.items()}


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and replace an older one."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    checksums = {name: _checksum(name, tensor) for name, tensor in tensors.items()}
    metadata = checkpoint_header.write_header(checkpoint.state, checksums)
    try:
        with replacing(path) as draft, utf8_path(draft) as new:
            save_file(tensors, new, metadata)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{path}: the checkpoint cannot be written ({error}); the previous checkpoint is not changed"
        ) from error


def load(path: Path, *, to_evaluate: bool = False) -> Checkpoint:
    """Read a checkpoint; with `to_evaluate`, only the tensors of the weights to evaluate (`group_to_evaluate`).

    Raises:
        RunError: there is no such checkpoint, or it cannot be read or is damaged.
    """
    if not check_regular(path).is_file():
        other = next(path.parent.glob("*.safetensors"), None)
        if other is not None:
            begin = f"begin another run with `begin_from` {path.parent}"
            reason = f"{other.name} holds weights only, which cannot be resumed; {begin}"
        else:
            reason = "the run has not saved one yet; wait for it, or train anew with `force`"
        raise RunError(f"{path}: no such checkpoint; {reason}")
    try:
        path.open("rb").close()  # safetensors does not report permissions
        with utf8_path(path) as readable, safe_open(readable, "pt") as file:
            state, checksums = checkpoint_header.read_header(file.metadata())
            if state["format"] > checkpoint_header.FORMAT:
                raise RunError(f"{path}: written by a newer txl (format {state['format']}); update txl to read it")
            names = file.keys()
            check_state(state)
            if checksums.keys() != set(names):
                raise ValueError("tensors are missing")
            prefix = f"{group_to_evaluate(names)}." if to_evaluate else ""
            # A copy does not change when another program writes to the file, which is mapped into memory.
            tensors = {name: file.get_tensor(name).clone() for name in names if name.startswith(prefix)}
    except LookupError as error:
        raise RunError(
            f"{path}: a safetensors file, but not a checkpoint of txl; restore it from a copy, or convert it to a run "
            "with txl import"
        ) from error
    except PermissionError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    except (OSError, ValueError, SafetensorError, RecipeError) as error:
        raise damaged(path, str(error)) from error
    for name, tensor in tensors.items():
        if _checksum(name, tensor) != checksums[name]:
            raise damaged(path, f"{name} has a wrong checksum")
    return Checkpoint(tensors, state)


def damaged(path: Path, reason: str) -> RunError:
    """Return the error about a checkpoint with wrong contents."""
    return RunError(f"{path}: damaged checkpoint ({reason}); restore it from a copy or train again")


def _checksum(name: str, tensor: Tensor) -> str:
    """Return the checksum of a tensor in host memory, with its name, dtype and shape."""
    return checkpoint_header.digest(*_contents(name, tensor))


def _contents(name: str, tensor: Tensor) -> tuple[bytes, memoryview]:
    description = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
    return description, tensor.flatten().view(torch.uint8).numpy().data


def optimizer_tensors(weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state tensors of an optimizer by parameter name: `NAME.exp_avg` and so on.

    Raises a TrainingError for state that a resumed run could not read.
    """
    tensors = {}
    for name, weight in weights.items():
        for key, value in optimizer.state.get(weight, {}).items():
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise TrainingError(
                    f'the optimizer keeps "{key}" of {name} as {type(value).__name__}; a checkpoint holds tensors only'
                )
            if value.dim() and value.shape != weight.shape:
                raise TrainingError(
                    f'the optimizer keeps "{key}" of {name} in the shape {tuple(value.shape)}; '
                    f"a checkpoint holds state in the shape of the weight, {tuple(weight.shape)}, or one number"
                )
            tensors[f"{name}.{key}"] = value
    return tensors


def build_model(
    settings: ModelSettings, vocab_size: int, checkpoint: Checkpoint, *, group: str = "model"
) -> LanguageModel:
    """Build a model with the checkpoint's weights, or with another group of tensors of the same names."""
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    weights = checkpoint.group(group)
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: parameter.shape for name, parameter in model.state_dict().items()}:
        raise RunError("the weights have other shapes than the model of their run; restore its files from one copy")
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_()


def gather_memories(world: World, memories: Sequence[Memory]) -> dict[str, Tensor]:
    """Return the memory of each layer, of all lanes, on rank 0."""
    gathered = {}
    for layer, parts in enumerate(zip(*memories, strict=True)):
        lanes_by_rank = world.gather(torch.cat(parts))
        if lanes_by_rank:
            gathered[str(layer)] = torch.cat(lanes_by_rank)
    return gathered


def restored_memories(
    saved: Mapping[str, Tensor], first: Memory, parts: Iterable[range], device: torch.device
) -> list[Memory]:
    """Return the memory of the lanes of each micro-batch, given that of all lanes by the number of a layer.

    `first` is the memory before the first token: its dtypes are those of the present precision. A ValueError says that
    the shapes differ.
    """
    memory = [saved[str(number)] for number in range(len(saved))]
    if list(map(_fixed_sizes, memory)) != list(map(_fixed_sizes, first)):
        raise ValueError("its memory has other shapes than the model's")
    memories = []
    for part in parts:
        lanes = slice(part.start, part.stop)
        of_part = []
        for tensor, example in zip(memory, first, strict=True):
            of_part.append(tensor[lanes].to(device, example.dtype, copy=True))
        memories.append(of_part)
    return memories


def _fixed_sizes(memory: Tensor) -> tuple[object, ...]:
    """Return what does not change of a tensor of a memory; its length does, and its dtype with the precision."""
    is_state = memory.is_floating_point()  # else tokens (B, l)
    width = memory.shape[-1] if is_state else None
    return is_state, memory.dim(), len(memory), width


def gather_generators(world: World, device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random generators of all processes on rank 0; all processes must call this."""
    states = {}
    for used in dict.fromkeys((CPU, device)):
        for rank, state in enumerate(world.gather(generator_state(used))):
            states[_generator_name(used, rank)] = state
    return states


def restore_generators(states: dict[str, Tensor], world: World, device: torch.device, *, seed: int) -> None:
    """Restore the random generators of this process; those without a saved state begin with `seed`."""
    torch.manual_seed(seed)
    for used in dict.fromkeys((CPU, device)):
        state = states.get(_generator_name(used, world.rank))
        if state is not None:
            set_generator_state(state, used)


def _generator_name(device: torch.device, rank: int) -> str:
    device_type = device.type
    if device_type == "mps":
        device_type = "apple"  # version 0.2 saved the state of the CPU as "mps"
    return f"{device_type}.{rank}" if rank else device_type
