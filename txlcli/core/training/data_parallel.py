"""Data-parallel training: several processes take the same steps, each with its own lanes of the batch.

Rank 0 decides, saves and reports; the other ranks execute its commands. `parallel` divides weights and
optimizer state among them. The number of processes changes a step only by rounding and by dropout masks, which each
process generates for itself.

Axes: B lanes.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from txlcli.config.settings import TrainSettings
from txlcli.core.training.heartbeat import INTERVAL_S, Heartbeat
from txlcli.errors import DisagreementError, RecipeError, ReportedError, TrainingError, TxlError, UsageError
from txlcli.system import launcher
from txlcli.system.memory import LESS, is_out_of_memory, requested_size

Result = TypeVar("Result")

COMMAND_TIMEOUT = timedelta(days=1)
"""For a command of rank 0, which may be saving; a process that has died is noticed at once."""
JOIN_TIMEOUT = timedelta(minutes=30)
"""Until all processes have met; rank 0 may have to prepare the text first."""
SECONDS_BETWEEN_CHECKS = 0.02
"""Time between two checks whether all processes have arrived."""
LOST_PROCESS = ("Connection", "connection", "Broken pipe", "Timed out", "timed out")
"""Words in the messages of errors that mean that a process is gone or does not answer."""


class Command(IntEnum):
    """Commands of rank 0 to the other ranks."""

    update = 0
    """Take one optimizer step."""
    save = 1
    """Send the resume state to rank 0."""
    end = 2
    """End the training."""
    read = 3
    """Help rank 0 to read a segment, if the weights are divided."""
    send_weights = 4
    """Send the weights and their average to rank 0, if they are divided."""
    swap_average = 5
    """Exchange the weights and their average, if they are divided."""
    on_validation = 6
    """Take the loss of a validation into account."""
    validate = 7
    """Score some lanes of the validation split; the number is 1 if rank 0 has averaged weights for it."""


@dataclass(frozen=True)
class World:
    """The processes of a training or an evaluation, as one of them sees them; a single process by default."""

    rank: int = 0
    size: int = 1
    """Number of processes."""
    hosts: distributed.ProcessGroup | None = None
    """Process group for commands and plain data, which pass between hosts, independent of the GPUs."""
    steps: distributed.ProcessGroup | None = None
    """Process group of the same processes for tensors of a step; it waits for `train.rank_timeout` at most."""
    heartbeat: Heartbeat | None = None
    """Signs of life of the processes."""

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

    @property
    def stop_signal(self) -> int:
        """Number of the signal that another process received, on rank 0; 0 for none."""
        return 0 if self.heartbeat is None else self.heartbeat.stop_signal

    def forwarding_signals(self) -> AbstractContextManager[None]:
        """Pass the signals of this process on to rank 0 while the block runs."""
        return nullcontext() if self.heartbeat is None else self.heartbeat.forwarding_signals()

    @contextmanager
    def ending_others(self, save_alone: Callable[[], str]) -> Iterator[None]:
        """Tell the other ranks when this block of rank 0 ends.

        After an error within a step they would not listen: such an error ends this process, and the launcher ends the
        others.

        Args:
            save_alone: called if another process is gone; saves what rank 0 has, and returns a phrase about it.

        Raises:
            TrainingError: another process is gone.
        """
        with self.watching():
            try:
                yield
            except (TxlError, GeneratorExit):
                self._end_others()
                raise
            except RuntimeError as error:
                if not self._is_lost_process(error):
                    raise
                raise TrainingError(f"{self._lost_ranks()}; {save_alone()}") from error
            self._end_others()

    def _end_others(self) -> None:
        """Tell the other ranks to end; a process that is gone needs no command any more."""
        with suppress(RuntimeError):
            self.send_command(Command.end)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the other processes until the block ends."""
        try:
            yield
        finally:
            if self.heartbeat is not None:
                self.heartbeat.stop()

    @contextmanager
    def explaining_lost_processes(self) -> Iterator[None]:
        """Turn PyTorch's error about a process that is gone into one line.

        Raises:
            TrainingError: another process is gone.
        """
        try:
            yield
        except RuntimeError as error:
            if not self._is_lost_process(error):
                raise
            raise TrainingError("another process has ended or does not answer; start all processes again") from error

    def _is_lost_process(self, error: RuntimeError) -> bool:
        lost = isinstance(error, distributed.DistBackendError) or any(word in str(error) for word in LOST_PROCESS)
        return self.size > 1 and lost

    def report_to_rank_0(self, error: TxlError) -> TxlError:
        """Let rank 0 report an error that ends this process; return the error to raise, which is not reported twice."""
        if self.is_rank_zero or self.heartbeat is None:
            return error
        told = self.heartbeat.report_failure(f"rank {self.rank} on {socket.gethostname()}: {error}")
        return ReportedError(str(error)) if told else error

    def _lost_ranks(self) -> str:
        """Say why another process is gone, or name those without a sign of life for some intervals."""
        silent: list[int] = []
        if self.heartbeat is not None:
            silent = self.heartbeat.wait_for_silent_ranks(3 * INTERVAL_S)
            if self.heartbeat.failures:
                return self.heartbeat.failures[0]
        names = " and ".join(map(str, silent))
        return f"the process of rank {names} has ended or does not answer" if silent else "another process has ended"

    def agree(self, facts: Mapping[str, str] | TxlError) -> None:
        """Check that all processes have the same facts; all of them must call this.

        Args:
            facts: of this process, by name; or the error that keeps it from taking part.

        Raises:
            DisagreementError: a fact differs, or a process cannot take part. All processes raise it.
        """
        if self.size == 1:
            return
        own = (facts.exit_code, str(facts)) if isinstance(facts, TxlError) else dict(facts)
        of_all: list[Any] = [None] * self.size
        with self.explaining_lost_processes():
            distributed.all_gather_object(of_all, (socket.gethostname(), own), group=self.hosts)
        failed = [(rank, host, given) for rank, (host, given) in enumerate(of_all) if isinstance(given, tuple)]
        if failed:
            rank, host, (exit_code, message) = failed[0]
            of_every_rank = len(failed) == self.size and len({given for _, _, given in failed}) == 1
            raise DisagreementError(message if of_every_rank else f"rank {rank} on {host}: {message}", exit_code)
        first = of_all[0][1]
        for rank, (host, given) in enumerate(of_all):
            for name in first | given:
                values = [facts.get(name, "absent") for facts in (first, given)]
                if values[0] != values[1]:
                    raise DisagreementError(
                        f"{name} is {values[0]} on rank 0 and {values[1]} on rank {rank} ({host}); start all processes "
                        "with the same settings, releases and files",
                        UsageError.exit_code,
                    )

    def wait_for_all(self) -> None:
        """Wait until every process has come here; signals are handled meanwhile.

        Raises:
            TrainingError: another process is gone, or gives no sign of life for `train.rank_timeout`.
        """
        if self.size == 1:
            return
        with self.explaining_lost_processes():
            barrier = distributed.barrier(group=self.hosts, async_op=True)
            while not barrier.is_completed():
                time.sleep(SECONDS_BETWEEN_CHECKS)
                if self.heartbeat is not None and (silent := self.heartbeat.silent_ranks(self.heartbeat.timeout_s)):
                    raise TrainingError(f"the process of rank {silent[0]} does not answer; start all processes again")
            barrier.wait()

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Run a block in all processes; if it fails in one of them, all of them fail.

        Raises:
            DisagreementError: the block failed in a process, for lack of memory or with a TxlError.
        """
        error: BaseException
        try:
            yield
        except TxlError as failed:
            error, reason = failed, failed
        except (MemoryError, RuntimeError) as failed:
            if self.size == 1 or not is_out_of_memory(failed):
                raise
            error, reason = failed, TrainingError(f"out of memory{requested_size(failed)}; {LESS}")
        else:
            self.wait_for_all()
            self.agree({})
            return
        self.wait_for_all()
        self.agree(reason)
        raise error

    def from_rank_0(self, function: Callable[[], Result]) -> Result:
        """Call a function in rank 0, while the other processes wait, and return its result in all of them."""
        results: list[Any] = [None]
        with self.failing_together():
            if self.is_rank_zero:
                results = [function()]
        if self.size > 1:
            with self.explaining_lost_processes():
                distributed.broadcast_object_list(results, src=0, group=self.hosts)
        return results[0]

    def all_gather(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return the tensors of all processes, on the host, concatenated along the first axis by rank.

        Args:
            tensor: of this process, on the host.
            lengths: of the first axis, by rank; the other axes have the same lengths everywhere.
        """
        if self.size == 1:
            return tensor
        parts = [torch.empty(length, *tensor.shape[1:], dtype=tensor.dtype) for length in lengths]
        parts[self.rank] = tensor.contiguous()
        with self.explaining_lost_processes():
            for rank, part in enumerate(parts):
                distributed.broadcast(part, src=rank, group=self.hosts)
        return torch.cat(parts)

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.size > 1:
            distributed.all_reduce(tensor, group=self.steps)

    def begin_any_of(self, flag: bool) -> Callable[[], bool]:
        """Send a flag to all processes, in the background; all of them must call this.

        The flags pass between hosts, so that no GPU is waited for.

        Returns:
            A function that returns True if a process has sent True. It waits `train.rank_timeout` for a process that
            does not answer.
        """
        flags = torch.tensor(int(flag))
        work = distributed.all_reduce(flags, group=self.hosts, async_op=True)
        timeout = COMMAND_TIMEOUT if self.heartbeat is None else timedelta(seconds=self.heartbeat.timeout_s)

        def wait() -> bool:
            work.wait(timeout)
            return bool(flags)

        return wait

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all processes by name on rank 0, and an empty dictionary on the other ranks.

        Those of other ranks are in host memory; one is sent at a time.
        """
        if self.size == 1:
            return dict(tensors)
        forms = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        of_ranks: list[Any] | None = [None] * self.size if self.is_rank_zero else None
        distributed.gather_object(forms, of_ranks, dst=0, group=self.hosts)
        if of_ranks is None:
            for tensor in tensors.values():
                distributed.send(tensor.detach().cpu().contiguous(), dst=0, group=self.hosts)
            return {}
        collected = dict(tensors)
        for rank in range(1, self.size):
            for name, (shape, dtype) in of_ranks[rank].items():
                collected[name] = torch.empty(shape, dtype=dtype)
                distributed.recv(collected[name], src=rank, group=self.hosts)
        return collected

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
            if len(tensor):
                distributed.send(tensor, dst=0, group=self.hosts)
            return []
        tensors = [tensor]
        for rank in range(1, self.size):
            tensors.append(torch.empty(lengths[rank], *tensor.shape[1:], dtype=tensor.dtype))
            if lengths[rank]:
                distributed.recv(tensors[rank], src=rank, group=self.hosts)
        return tensors


SINGLE_PROCESS = World()


def join(
    device: torch.device, *, rank_timeout_s: float = 600.0, say: Callable[[str], None] = lambda message: None
) -> World:
    """Join the processes that a launcher started; without one, return a world of this process alone.

    Args:
        device: of this process.
        rank_timeout_s: time that a step waits for a process that does not answer.
        say: receives a line about a silent process, on rank 0.

    Raises:
        UsageError: the machine has fewer CUDA devices than processes, or nothing says where the processes meet.
        TrainingError: the processes do not meet.
    """
    if launcher.world_size() == 1:
        return SINGLE_PROCESS
    if device.type == "cuda":
        devices, processes = torch.cuda.device_count(), launcher.local_world_size()
        if processes > devices:
            raise UsageError(
                f"{processes} processes need {processes} CUDA devices, and this machine has {devices}; use fewer "
                "processes"
            )
    rank, size, url = launcher.rank(), launcher.world_size(), launcher.rendezvous_url()
    with launcher.handle_signals(signal.SIG_DFL):  # nothing is made yet that would have to be cleared away
        try:
            store, _, _ = next(distributed.rendezvous(url, rank, size, timeout=JOIN_TIMEOUT))
            store.set_timeout(JOIN_TIMEOUT)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=COMMAND_TIMEOUT)
            backend = "nccl" if device.type == "cuda" else "gloo"
            steps = distributed.new_group(backend=backend, timeout=timedelta(seconds=rank_timeout_s))
        except (RuntimeError, ValueError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TrainingError(
                f"{size} processes do not meet at {_address(url)} ({reason}); check that all of them were started, "
                "MASTER_ADDR and MASTER_PORT"
            ) from error
    heartbeat = Heartbeat(
        distributed.PrefixStore("txl", store.clone()), rank=rank, size=size, timeout_s=rank_timeout_s, say=say
    )
    heartbeat.start()
    return World(rank, size, distributed.group.WORLD, steps, heartbeat)


def _address(url: str) -> str:
    """Return the place of a rendezvous for a message."""
    if url == "env://":
        return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return url.removeprefix("tcp://")


def micro_batches(settings: TrainSettings, processes: int) -> list[range]:
    """Return the lanes of each micro-batch of a step, ordered by rank; their sizes differ by one at most.

    Raises:
        RecipeError: the batch size is less than the number of micro-batches.
    """
    batch_size, count = settings.batch_size, settings.accumulate * processes
    if count > batch_size:
        wanted = f"{processes} processes" + (f" x {settings.accumulate} parts" if settings.accumulate > 1 else "")
        raise RecipeError(f"train.batch_size = {batch_size} is too small for {wanted}; use fewer of them")
    return even_parts(batch_size, count)


def even_parts(batch_size: int, count: int) -> list[range]:
    """Divide lanes into contiguous parts whose sizes differ by one at most."""
    edges = [batch_size * number // count for number in range(count + 1)]
    return [range(first, end) for first, end in pairwise(edges)]


def of_one_process(settings: TrainSettings, processes: int) -> TrainSettings:
    """Return the settings with the batch of the process that has most lanes.

    Raises:
        RecipeError: see `micro_batches`.
    """
    largest = max(len(part) for part in micro_batches(settings, processes))
    return replace(settings, batch_size=largest * settings.accumulate)
