"""The processes of a training run or an evaluation: they meet, exchange tensors, agree, and fail together.

Every process runs the same program with its own lanes of the batch. Rank 0 differs only where it writes files and
messages. The number of processes changes a step by rounding and by dropout masks, which each process generates itself.

Axes: B lanes.
"""

import itertools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from txlcli.config.train_settings import TrainSettings
from txlcli.core.kernels.compilation import first_line
from txlcli.errors import DisagreementError, ReportedError, TrainingError, TxlError, UsageError
from txlcli.system import launcher, signals
from txlcli.system.memory import LESS, is_out_of_memory, requested_size

Result = TypeVar("Result")

logger = logging.getLogger(__name__)
JOIN_TIMEOUT = timedelta(minutes=30)
"""Until all processes have met; rank 0 may have to prepare the text first."""
NCCL_MARGIN = timedelta(minutes=1)
"""NCCL ends a process that waits too long without a reason, so that the exchange between hosts must end first."""
SECONDS_TO_EXPLAIN = 5.0
"""Time for the other processes to say that they are alive, or why they failed."""
DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
}
"""Dtypes of the tensors that processes send each other, by name."""
_JOINS = itertools.count()
"""Numbers the times that this process has joined others: each training run has its own keys in the store."""
TIMED_OUT = ("Timed out", "timed out", "timeout")
LOST_PROCESS = ("Connection", "connection", "Broken pipe", *TIMED_OUT)
"""Words in PyTorch's errors about a process that has ended or does not answer."""


@dataclass(frozen=True)
class World:
    """The processes of a training run or an evaluation, as one of them sees them; a single process by default."""

    rank: int = 0
    size: int = 1
    """Number of processes."""
    hosts: distributed.ProcessGroup | None = None
    """Process group for decisions and plain data, which pass between hosts, independent of the GPUs."""
    steps: distributed.ProcessGroup | None = None
    """Process group of the same processes for tensors of a step."""
    store: distributed.Store | None = None
    """Holds a note of each process that fails."""
    next_step: str = "start all processes again"
    """Advice after a process is lost."""

    @property
    def is_rank_zero(self) -> bool:
        """True for the process that writes files and messages."""
        return self.rank == 0

    def max_of(self, *numbers: int) -> list[int]:
        """Return the largest of each number over all processes; all of them must call this."""
        if self.size == 1:
            return list(numbers)
        largest = torch.tensor(numbers, dtype=torch.int64)
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX, group=self.hosts)
        return largest.tolist()

    def any_of(self, flag: bool) -> bool:
        """Return True if the flag of any process is set; all of them must call this."""
        return bool(self.max_of(flag)[0])

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.size > 1:
            distributed.all_reduce(tensor, group=self.steps)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Replace a tensor by the tensor of one process."""
        if self.size > 1:
            group = self.hosts if tensor.device.type == "cpu" else self.steps
            distributed.broadcast(tensor, src=source, group=group)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes by rank on rank 0, in host memory, [] elsewhere; shapes may differ."""
        if self.size == 1:
            return [tensor]
        own = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        layouts = self.gather_objects((str(own.dtype), list(own.shape)))
        if not self.is_rank_zero:
            if own.numel():
                distributed.send(_bytes_of(own), dst=0, group=self.hosts)
            return []
        gathered = [own]
        for rank, (dtype, shape) in enumerate(layouts[1:], 1):
            received = torch.empty(shape, dtype=DTYPES[dtype])
            if received.numel():
                distributed.recv(_bytes_of(received), src=rank, group=self.hosts)
            gathered.append(received)
        return gathered

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes by rank, in all of them: one axis in host memory, lengths may differ."""
        if self.size == 1:
            return [tensor]
        length = torch.tensor([len(tensor)])
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        distributed.all_gather(lengths, length, group=self.hosts)
        longest = max(int(length) for length in lengths)
        padding = longest - len(tensor)
        padded = torch.nn.functional.pad(tensor, (0, padding))
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(gathered, padded, group=self.hosts)
        return [values[: int(length)] for values, length in zip(gathered, lengths, strict=True)]

    def from_rank_0(self, function: Callable[[], Result]) -> Result:
        """Call a function in rank 0, while the other processes wait, and return its result, as JSON, in all of them."""
        value = function() if self.is_rank_zero else None
        return cast(Result, self.gather_objects(value)[0])

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank, as JSON holds them: a pickle from a socket might run code."""
        if self.size == 1:
            return [value]
        encoded = torch.frombuffer(bytearray(json.dumps(value), "ascii"), dtype=torch.uint8)
        return [json.loads(text.numpy().tobytes()) for text in self.all_gather(encoded)]

    def in_turn(self, name: str, function: Callable[[], Result]) -> Result:
        """Call a function in the first process of each machine, and then in its others: they read what it compiles.

        Return the result when all processes are done, however long that takes.
        """
        if self.store is None:
            return function()
        first = self.rank - launcher.place().local_rank
        if self.rank != first:
            self.store.wait([f"{name}/{first}"], JOIN_TIMEOUT)
        try:
            return function()
        finally:
            self.store.set(f"{name}/{self.rank}", "")
            self.store.wait([f"{name}/{rank}" for rank in range(self.size)], JOIN_TIMEOUT)

    def first_reason(self, reason: str | None) -> str | None:
        """Return the reason of the first process that has one, with its rank; all of them must call this."""
        if self.size == 1:
            return reason
        for rank, why in enumerate(self.gather_objects(reason)):
            if why is not None:
                return f"rank {rank}: {why}"
        return None

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raise a DisagreementError in all processes if a fact, given by name, or PyTorch's release differs.

        All of them must call this.
        """
        compared = {"the release of PyTorch": str(torch.__version__), **facts}
        of_all: list[tuple[str, dict[str, str]]] = self.gather_objects((socket.gethostname(), compared))
        first = of_all[0][1]
        for rank, (host, own) in enumerate(of_all):
            for name in first | own:
                expected = first.get(name, "absent")
                value = own.get(name, "absent")
                if value != expected:
                    raise DisagreementError(
                        f"{name} is {expected} on rank 0 and {value} on rank {rank} ({host}); start all processes "
                        "with the same settings, releases and files",
                        UsageError.exit_code,
                    )

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """End all processes if one of them fails in this block, with one line of rank 0 that gives the reason.

        A process that fails leaves a note. Its end breaks the exchanges of the others, and rank 0 reads the note.
        """
        try:
            yield
        except (TxlError, MemoryError, RuntimeError) as error:
            explained = self.explained(error)
            if explained is error:
                raise
            raise explained from error

    def explained(self, error: BaseException) -> BaseException:
        """Return what this process raises after an error: the reason on rank 0, a ReportedError on the other ranks."""
        if self.size == 1 or isinstance(error, ReportedError):
            return error
        if is_out_of_memory(error):
            error = TrainingError(f"out of memory{requested_size(error)}; {LESS}")
        if isinstance(error, TxlError):
            self._exchange_notes((error.exit_code, f"rank {self.rank} on {socket.gethostname()}: {error}"), 0.0)
            return error if self.is_rank_zero else ReportedError(str(error), error.exit_code)
        lost = isinstance(error, distributed.DistBackendError) or _contains(error, LOST_PROCESS)
        if lost and isinstance(error, RuntimeError):
            return self._explained_loss(error)
        return error

    def _explained_loss(self, error: RuntimeError) -> TxlError:
        """Return the error for an exchange that another process has broken."""
        signals.ignore()  # the launcher ends this process, which is about to end by itself
        is_of_txl = launcher.place().starter == "txl"
        seen_by_launcher = is_of_txl and not _contains(error, TIMED_OUT)
        notes = self._exchange_notes((0, ""), 0.0 if seen_by_launcher else SECONDS_TO_EXPLAIN)
        for code, reason in notes.values():
            if code:
                return DisagreementError(reason, code) if self.is_rank_zero else ReportedError(reason, code)
        silent = [0]
        if 0 in notes:
            silent = [rank for rank in range(self.size) if rank not in notes]
        if is_of_txl and not seen_by_launcher:
            self._end(silent)
        names = "another process"
        if silent:
            names = f"the process of rank {' and '.join(map(str, silent))}"
        message = f"{names} has ended or does not answer; {self.next_step}"
        if seen_by_launcher or self.rank != min(notes):
            return ReportedError(message, TrainingError.exit_code)
        return TrainingError(message)

    def _end(self, ranks: list[int]) -> None:
        """End processes that a launcher of this machine started, and that do not answer: they may be stopped."""
        assert self.store is not None
        for rank in ranks:
            with suppress(RuntimeError, OSError):
                pid = int(self.store.get(f"pid/{rank}"))
                os.kill(pid, launcher.NO_ANSWER)
                os.kill(pid, signal.SIGCONT)

    def _exchange_notes(self, own: tuple[int, str], seconds: float) -> dict[int, tuple[int, str]]:
        """Leave a note, and return the notes by rank: exit code and reason, 0 if another process is the reason.

        Wait some seconds for a note of each process.
        """
        store = self.store
        assert store is not None
        notes = {self.rank: own}
        until = time.monotonic() + seconds

        def exchange() -> None:
            with suppress(RuntimeError):  # rank 0 may have served the store
                store.set(f"note/{self.rank}", json.dumps(own))
            for rank in range(self.size):
                seconds_left = max(0.01, until - time.monotonic())
                with suppress(RuntimeError):
                    store.wait([f"note/{rank}"], timedelta(seconds=seconds_left))
                    notes[rank] = tuple(json.loads(store.get(f"note/{rank}")))

        thread = threading.Thread(target=exchange, daemon=True)  # the store of a hanging rank 0 does not answer
        thread.start()
        thread.join(seconds + SECONDS_TO_EXPLAIN)
        return dict(notes)


def failure_of(function: Callable[[], object]) -> str | None:
    """Call a function, and return why it cannot be computed here, by its kernels or as a graph; None if it can."""
    try:
        function()
    except UsageError as error:  # of a capture
        return str(error)
    except (torch.OutOfMemoryError, TxlError):
        raise
    except Exception as error:
        logger.debug("a rehearsal failed", exc_info=error)
        return first_line(error)
    return None


def _contains(error: BaseException, words: Iterable[str]) -> bool:
    return any(word in str(error) for word in words)


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, without a copy: gloo sends few dtypes."""
    return tensor.flatten().view(torch.uint8)


SINGLE_PROCESS = World()


def join(device: torch.device, *, rank_timeout_s: float = 60.0, next_step: str = World.next_step) -> World:
    """Join the processes that a launcher started; without one, return a world of this process alone."""
    place = launcher.place()
    rank = place.rank
    size = place.world_size
    if size == 1:
        return SINGLE_PROCESS
    timeout = timedelta(seconds=rank_timeout_s)
    with signals.handling(signal.SIG_DFL):  # nothing is made yet that would have to be cleared away
        try:
            store = _store(rank, size)
            if place.local_world_size == size:  # torchrun keeps its store when it starts the processes again
                store = distributed.PrefixStore(f"restart {launcher.restart_count()}", store)
            store = distributed.PrefixStore(f"join {next(_JOINS)}", store)
            store.set(f"pid/{rank}", str(os.getpid()))
            store.set(f"met/{rank}", "")
            store.wait([f"met/{other}" for other in range(size)], JOIN_TIMEOUT)
            if distributed.is_initialized():  # by an earlier training run of this program, or by the program itself
                hosts = distributed.new_group(backend="gloo", timeout=timeout)
            else:
                distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
                hosts = distributed.group.WORLD
            if device.type == "cuda":
                steps = distributed.new_group(backend="nccl", timeout=timeout + NCCL_MARGIN)
            else:
                steps = distributed.new_group(backend="gloo", timeout=timeout)
        except (RuntimeError, ValueError, OSError) as error:
            raise TrainingError(
                f"{size} processes do not meet ({str(error).splitlines()[0]}); check that all of them were started, "
                "MASTER_ADDR and MASTER_PORT"
            ) from error
    return World(rank, size, hosts, steps, store, next_step)


def _store(rank: int, size: int) -> distributed.Store:
    """Return the store in which the processes meet: a file if txl started them, the server of torchrun otherwise."""
    if launcher.place().starter == "txl":
        store: distributed.Store = distributed.FileStore(launcher.store_file())
        store.set_timeout(JOIN_TIMEOUT)
    else:
        store, _, _ = next(distributed.rendezvous("env://", rank, size, timeout=JOIN_TIMEOUT))
    return store


def micro_batches(settings: TrainSettings, processes: int) -> list[range]:
    """Return the lanes of each micro-batch of a step, ordered by rank; their sizes differ by one at most."""
    settings.check_processes(processes)
    return even_parts(settings.batch_size, settings.accumulate * processes)


def even_parts(batch_size: int, count: int) -> list[range]:
    """Divide lanes into contiguous parts whose sizes differ by one at most."""
    edges = [batch_size * number // count for number in range(count + 1)]
    return [range(first, end) for first, end in itertools.pairwise(edges)]


def of_one_process(settings: TrainSettings, processes: int) -> TrainSettings:
    """Return the settings with the largest batch that one of the processes has."""
    largest = max(len(part) for part in micro_batches(settings, processes))
    return replace(settings, batch_size=largest * settings.accumulate)
