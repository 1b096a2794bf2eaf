"""Data-parallel training: several processes take the same steps, each with its own lanes of the batch.

Rank 0 decides, validates, saves and reports; the other ranks execute its commands. DistributedDataParallel averages the
gradients. The number of processes changes a step only by rounding and by dropout masks, which each process generates
for itself.

Axes: B lanes.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from txlcli.config.settings import TrainSettings
from txlcli.core.model.base import LanguageModel
from txlcli.errors import RecipeError, TrainingError, TxlError, UsageError
from txlcli.system import torchrun

COMMAND_TIMEOUT = timedelta(days=1)
"""For a command of rank 0, which may be validating or saving; a process that has died is noticed at once."""
STEP_TIMEOUT = timedelta(minutes=30)
"""From a command to the communication that follows it."""
LOST_PROCESS = ("Connection", "Broken pipe")
"""Words in the messages of errors that mean that a process is gone."""


class Command(IntEnum):
    """Commands of rank 0 to the other ranks."""

    update = 0
    """Take one optimizer step."""
    save = 1
    """Send the resume state to rank 0."""
    end = 2
    """End the training."""


@dataclass(frozen=True)
class World:
    """The processes of a training, as one of them sees them; a single process by default."""

    rank: int = 0
    size: int = 1
    """Number of processes."""
    hosts: distributed.ProcessGroup | None = None
    """Process group of the same processes for communication between hosts, independent of the GPUs."""

    @property
    def is_rank_zero(self) -> bool:
        """True for the process that decides and saves."""
        return self.rank == 0

    def send_command(self, command: Command, number: float = 0.0) -> None:
        """Send a command from rank 0 to the other ranks, with the number that it needs."""
        if self.size > 1:
            distributed.broadcast(torch.tensor([command, number], dtype=torch.float64), src=0, group=self.hosts)

    def receive_command(self) -> tuple[Command, float]:
        """Wait for a command of rank 0, and return it with its number."""
        message = torch.empty(2, dtype=torch.float64)
        try:
            distributed.broadcast(message, src=0, group=self.hosts)
        except RuntimeError as error:
            raise TrainingError("the process of rank 0 has ended") from error
        command, number = message.tolist()
        return Command(int(command)), number

    @contextmanager
    def ending_others(self) -> Iterator[None]:
        """Tell the other ranks when this block of rank 0 ends.

        After an error within a step they would not listen: such an error ends this process, and torchrun ends the
        others.

        Raises:
            TrainingError: another process is gone.
        """
        try:
            yield
        except (TxlError, GeneratorExit):
            self.send_command(Command.end)
            raise
        except RuntimeError as error:
            lost = isinstance(error, distributed.DistBackendError) or any(word in str(error) for word in LOST_PROCESS)
            if self.size == 1 or not lost:
                raise
            raise TrainingError("another process has ended; resume from the last checkpoint with --resume") from error
        self.send_command(Command.end)

    def broadcast(self, text: str) -> str:
        """Return rank 0's text on all ranks."""
        texts = [text]
        if self.size > 1:
            distributed.broadcast_object_list(texts, src=0, group=self.hosts)
        return texts[0]

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.size > 1:
            distributed.all_reduce(tensor)

    def gather(self, tensor: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Return the tensors of all processes by rank on rank 0, and an empty list on the other ranks.

        Args:
            tensor: of this process.
            lengths: of the first axis, by rank; the other axes have the same lengths everywhere.
        """
        if self.size == 1:
            return [tensor]
        tensor = tensor.detach().cpu().contiguous()
        if not self.is_rank_zero:
            distributed.send(tensor, dst=0, group=self.hosts)
            return []
        tensors = [tensor]
        for rank in range(1, self.size):
            tensors.append(torch.empty(lengths[rank], *tensor.shape[1:], dtype=tensor.dtype))
            distributed.recv(tensors[rank], src=rank, group=self.hosts)
        return tensors


SINGLE_PROCESS = World()


def join(device: torch.device) -> World:
    """Join the process group of torchrun; without torchrun, return a world of this process alone.

    Raises:
        UsageError: the machine has fewer CUDA devices than processes.
    """
    if torchrun.world_size() == 1:
        return SINGLE_PROCESS
    if device.type == "cuda":
        devices, processes = torch.cuda.device_count(), torchrun.local_world_size()
        if processes > devices:
            raise UsageError(
                f"{processes} processes need {processes} CUDA devices, and this machine has {devices}; use fewer "
                "processes"
            )
    with torchrun.handle_signals(signal.SIG_DFL):  # nothing is made yet that would have to be cleared away
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=STEP_TIMEOUT)
        hosts = distributed.new_group(backend="gloo", timeout=COMMAND_TIMEOUT)
    return World(torchrun.rank(), torchrun.world_size(), hosts)


def micro_batches(settings: TrainSettings, processes: int) -> list[range]:
    """Return the lanes of each micro-batch of a step, ordered by rank; their sizes differ by one at most.

    Raises:
        RecipeError: the batch size is less than the number of micro-batches.
    """
    batch_size, count = settings.batch_size, settings.accumulate * processes
    if count > batch_size:
        wanted = f"{processes} processes" + (f" x {settings.accumulate} parts" if settings.accumulate > 1 else "")
        raise RecipeError(f"train.batch_size = {batch_size} is too small for {wanted}; use fewer of them")
    edges = [batch_size * number // count for number in range(count + 1)]
    return [range(first, end) for first, end in pairwise(edges)]


def of_one_process(settings: TrainSettings, processes: int) -> TrainSettings:
    """Return the settings with the batch of the process that has most lanes.

    Raises:
        RecipeError: see `micro_batches`.
    """
    largest = max(len(part) for part in micro_batches(settings, processes))
    return replace(settings, batch_size=largest * settings.accumulate)


class Objective:
    """`LanguageModel.objective` for the lanes of one process; the backward pass averages the gradients of all.

    Args:
        model: on its device, with the weights of rank 0.
        world: the processes.
    """

    def __init__(self, model: LanguageModel, world: World) -> None:
        self._call: Callable[..., tuple[Tensor, Tensor, list[Tensor]]] = model.objective
        self._parallel: DistributedDataParallel | None = None
        if world.size > 1:
            self._call = self._parallel = DistributedDataParallel(
                _ObjectiveModule(model),
                gradient_as_bucket_view=model.device.type != "cpu",  # a CPU reuses the memory of gradients otherwise
                find_unused_parameters=model.has_idle_weights,
            )

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Call `LanguageModel.objective` with the same arguments."""
        return self._call(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[object]:
        """Within this block, add gradients to those of this process without averaging them yet."""
        return nullcontext() if self._parallel is None else self._parallel.no_sync()


class _ObjectiveModule(nn.Module):
    """A module whose forward pass is a model's objective, as DistributedDataParallel needs it."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
        return self.model.objective(*args, **kwargs)
