"""Data-parallel training: processes that take the same steps, each with lanes of its own.

The process of rank 0 leads: it decides, validates, saves and reports, and the others follow its orders. Gradients are
averaged by DistributedDataParallel. How many processes there are changes a step by rounding only, and by the masks of
dropout, which each process draws for itself.

Axes: B lanes, W processes.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
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

LONGEST_WAIT = timedelta(days=1)
"""For an order of the leading process, which may be validating or saving; one that has died is noticed at once."""
LONGEST_STEP = timedelta(minutes=30)
"""From an order to what all processes do together."""
LOST = ("Connection", "Broken pipe")
"""Words of errors that mean a process is gone."""


class Command(IntEnum):
    """What all processes do next."""

    update = 0
    """Take one optimizer step."""
    save = 1
    """Hand over what the checkpoint keeps of every process."""
    end = 2
    """Nothing more."""


@dataclass(frozen=True)
class World:
    """The processes of a training, seen from one of them; by default it is the only one."""

    rank: int = 0
    size: int = 1
    """W."""
    hosts: distributed.ProcessGroup | None = None
    """The same processes, for what goes from host to host whatever the GPUs do."""

    @property
    def is_rank_zero(self) -> bool:
        """Whether the others follow this process."""
        return self.rank == 0

    def send_command(self, command: Command, number: float = 0.0) -> None:
        """Tell the others what comes next, with a number that it needs."""
        if self.size > 1:
            distributed.broadcast(torch.tensor([command, number], dtype=torch.float64), src=0, group=self.hosts)

    def broadcast(self, text: str) -> str:
        """The leading process's text, on all of them."""
        texts = [text]
        if self.size > 1:
            distributed.broadcast_object_list(texts, src=0, group=self.hosts)
        return texts[0]

    @contextmanager
    def ending_others(self) -> Iterator[None]:
        """The others are told when this block ends.

        Not where it ends by an error in the midst of a step, in which they would not listen: such an error ends the
        process, and torchrun the others.

        Raises:
            TrainingError: one of them is gone.
        """
        try:
            yield
        except (TxlError, GeneratorExit):
            self.send_command(Command.end)
            raise
        except RuntimeError as error:
            lost = isinstance(error, distributed.DistBackendError) or any(word in str(error) for word in LOST)
            if self.size == 1 or not lost:
                raise
            raise TrainingError("another process has ended; go on with --resume from the last checkpoint") from error
        self.send_command(Command.end)

    def receive_command(self) -> tuple[Command, float]:
        """Wait for what the leading process says."""
        told = torch.empty(2, dtype=torch.float64)
        try:
            distributed.broadcast(told, src=0, group=self.hosts)
        except RuntimeError as error:
            raise TrainingError("the leading process has ended") from error
        order, number = told.tolist()
        return Command(int(order)), number

    def all_reduce(self, tensor: Tensor) -> None:
        """Make a tensor the sum of what all processes have."""
        if self.size > 1:
            distributed.all_reduce(tensor)

    def gather(self, tensor: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The tensors of all processes by rank, on the leading one; nothing on the others.

        Args:
            tensor: of this process.
            lengths: of the first axis, by rank; the other axes are equally long everywhere.
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
    """Meet the other processes that torchrun has started.

    Raises:
        UsageError: the machine has fewer CUDA devices than processes.
    """
    if torchrun.world_size() == 1:
        return SINGLE_PROCESS
    if device.type == "cuda":
        devices, processes = torch.cuda.device_count(), torchrun.local_world_size()
        if processes > devices:
            raise UsageError(f"{processes} processes want {processes} CUDA devices, there are {devices}; take fewer")
    with torchrun.at_signals(signal.SIG_DFL):  # nothing is made yet that would have to be cleared away
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_STEP)
        hosts = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)
    return World(torchrun.rank(), torchrun.world_size(), hosts)


def micro_batches(settings: TrainSettings, processes: int) -> list[range]:
    """The lanes of each part of a step, those of one process after those of the one before.

    Their numbers differ by one at most.

    Raises:
        RecipeError: there are fewer lanes than parts.
    """
    lanes, parts = settings.batch_size, settings.accumulate * processes
    if parts > lanes:
        what = f"{processes} processes" + (f" x {settings.accumulate} parts" if settings.accumulate > 1 else "")
        raise RecipeError(f"train.batch_size = {lanes} is too few lanes for {what}; take fewer of them")
    edges = [lanes * number // parts for number in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(edges)]


class Objective:
    """`LanguageModel.objective` of the lanes of one process, whose backward pass averages the gradients of all.

    Args:
        model: on its device, in the state that the leading process has.
        world: the processes.
    """

    def __init__(self, model: LanguageModel, world: World) -> None:
        self._call: Callable[..., tuple[Tensor, Tensor, list[Tensor]]] = model.objective
        self._parallel: DistributedDataParallel | None = None
        if world.size > 1:
            self._call = self._parallel = DistributedDataParallel(
                _Forward(model),
                gradient_as_bucket_view=model.device.type != "cpu",  # there gradients' memory is kept in other ways
                find_unused_parameters=model.has_idle_weights,
            )

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The same arguments and results as the model's own."""
        return self._call(*args, **kwargs)

    def held_back(self) -> AbstractContextManager[object]:
        """Inside this block gradients are added to this process's own and not averaged yet."""
        return nullcontext() if self._parallel is None else self._parallel.no_sync()


class _Forward(nn.Module):
    """A model whose forward pass ends in the objective, as DistributedDataParallel wants it."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
        return self.model.objective(*args, **kwargs)
