"""What a checkpoint keeps of each process: the memory of its lanes, and its random generators.

Memories are named `PART.LAYER`, the parts of a step in the order of their lanes; generators `DEVICE.RANK`, those of
rank 0 `DEVICE`. So other processes can go on, as many as they may be.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from txlcli.core.model.base import Memory
from txlcli.core.training.data_parallel import World


def collect_memories(world: World, memories: Sequence[Memory], parts: Sequence[range]) -> dict[str, Tensor]:
    """What is remembered of all lanes, on the leading process.

    Args:
        world: the processes; all of them must ask.
        memories: of this process's parts.
        parts: the lanes of the parts of all processes.
    """
    found = {}
    for number, memory in enumerate(memories):
        lanes = [len(part) for part in parts[number :: len(memories)]]  # of this part in each process
        for layer, tensor in enumerate(memory):
            for rank, one in enumerate(world.gather(tensor, lanes)):
                found[f"{rank * len(memories) + number}.{layer}"] = one
    return found


def restore_memories(tensors: dict[str, Tensor], memories: Sequence[Memory], parts: Sequence[range]) -> None:
    """Put back what was remembered of these parts' lanes; it may have been collected of other parts."""
    layers: dict[int, list[Tensor]] = {}
    for name in sorted(tensors, key=lambda name: int(name.partition(".")[0])):
        layers.setdefault(int(name.partition(".")[2]), []).append(tensors[name])
    for layer, of_parts in layers.items():
        of_all_lanes = torch.cat(of_parts)
        for memory, part in zip(memories, parts, strict=True):
            memory[layer] = of_all_lanes[part.start : part.stop].to(memory[layer].device, copy=True)


def collect_generators(world: World, device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that all processes draw from, on the leading one; all of them must ask."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {
        _generator(kind, rank): one
        for kind, state in states.items()
        for rank, one in enumerate(world.gather(state, [len(state)] * world.size))
    }


def restore_generators(states: dict[str, Tensor], world: World, device: torch.device, *, seed: int) -> None:
    """Put back what this process drew from; where nothing was kept, draw from `seed` on."""
    cpu, cuda = (states.get(_generator(kind, world.rank)) for kind in ("cpu", "cuda"))
    if cpu is None:
        torch.manual_seed(seed)
    else:
        torch.set_rng_state(cpu)
    if device.type == "cuda":
        if cuda is None:
            torch.cuda.manual_seed(seed)
        else:
            torch.cuda.set_rng_state(cuda, device)


def _generator(kind: str, rank: int) -> str:
    return f"{kind}.{rank}" if rank else kind
