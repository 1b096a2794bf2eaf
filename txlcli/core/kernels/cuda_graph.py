"""CUDA graphs: kernels that are captured once and launched together, on the same memory each time."""

import contextlib
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from txlcli.core.kernels.private import close_pool
from txlcli.errors import UsageError

WARM_UP = 2  # calls before a capture, in which libraries initialize themselves
Result = TypeVar("Result")


CaptureGraph = Callable[..., Callable[[], Any]]
"""Captures a function as a CUDA graph, and returns a function that replays it; see `GraphPool.__call__`."""


class _LiveGraphs:
    """Graphs of one pool, each of which keeps all of them, and their stream, which no other graphs have meanwhile.

    Matrix products of a graph write to a workspace of its stream. PyTorch 2.13 frees the workspace with the first graph
    of the stream that is gone, and the others then write to memory that is not theirs (pytorch/pytorch#193402).
    PyTorch has 32 streams, and hands them out in turn.
    """

    def __init__(self, device: torch.device) -> None:
        self.graphs: list[torch.cuda.CUDAGraph] = []
        unused = _unused_streams[device]
        self.stream = unused.pop() if unused else torch.cuda.Stream(device)
        weakref.finalize(self, unused.append, self.stream).atexit = False


_unused_streams = defaultdict[torch.device, list[torch.cuda.Stream]](list)
"""Streams of graphs that are gone."""


class GraphPool:
    """Captures functions as CUDA graphs that share memory for intermediate results, since they share a stream.

    The result of one must be read before another is replayed.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._live: weakref.ref[_LiveGraphs] | None = None

    def __call__(
        self, run: Callable[[], Result], device: torch.device, *, warm_up: int = WARM_UP
    ) -> Callable[[], Result]:
        """Capture a function: return one that replays its kernels and returns the same result each time.

        If CUDA cannot capture the function, raise a UsageError; everything can then continue without a graph. What the
        function itself raises before, in a warm-up, is raised as it is.

        Args:
            run: launches kernels, and waits for none.
            device: of its tensors.
            warm_up: calls of `run` before it is captured. The capture itself runs no kernel.
        """
        live = self._live_graphs(device)
        cache_enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a graph would read cached casts after autocast has freed them
        try:
            number, out = self._captured(run, device, live, warm_up)
        finally:
            torch.set_autocast_cache_enabled(cache_enabled)

        def replay() -> Result:
            live.graphs[number].replay()  # a reference to all of them
            return out

        return replay

    def _live_graphs(self, device: torch.device) -> _LiveGraphs:
        """Return the graphs of this pool, or none in a new pool: the allocator frees a pool with its last graph."""
        live = self._live() if self._live is not None else None
        if live is None:
            try:
                live = _LiveGraphs(device)
            except RuntimeError as error:
                raise _cannot_capture(error) from error
            self._live = weakref.ref(live)
            self._handle = None
        return live

    def _captured(
        self, run: Callable[[], Result], device: torch.device, live: _LiveGraphs, warm_up: int
    ) -> tuple[int, Result]:
        """Add a graph of the kernels of `run`, and return its number, and the tensors that it writes."""
        own = live.stream
        outside = torch.cuda.current_stream(device)
        own.wait_stream(outside)
        with torch.cuda.stream(own):
            for _ in range(warm_up):
                run()
        outside.wait_stream(own)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # the graph has memory of its own
        try:
            with torch.cuda.stream(own):
                return self._record(run, device, live)
        except RuntimeError as error:
            raise _cannot_capture(error) from error

    def _record(self, run: Callable[[], Result], device: torch.device, live: _LiveGraphs) -> tuple[int, Result]:
        """Capture the kernels of `run` on the current stream. If that fails, the stream runs kernels again."""
        graph = torch.cuda.CUDAGraph()
        number = len(live.graphs)
        live.graphs.append(graph)  # also one that fails
        pool = self._handle or torch.cuda.graph_pool_handle()
        self._handle = None  # after a failure, the allocator of pinned memory does not leave the pool
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # other threads may use CUDA
            out = run()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of what failed before
                _end(graph, pool, device)
            raise
        _end(graph, pool, device)
        self._handle = pool
        return number, out


@dataclass(frozen=True)
class Replay(Generic[Result]):
    """A captured function, and the tensors that its kernels read."""

    launch: Callable[[], Result]
    """Replays the kernels."""
    inputs: Sequence[Tensor]

    def __call__(self, given: Sequence[Tensor]) -> Result:
        """Copy tensors to the inputs, unless they are these, and return the result, which the next call overwrites."""
        for own, tensor in zip(self.inputs, given, strict=True):
            if own is not tensor:
                own.copy_(tensor)
        return self.launch()


def _cannot_capture(error: RuntimeError) -> UsageError:
    """Return the error that says that CUDA cannot capture a function, and why."""
    reason = str(error).strip().partition("\n")[0]
    if isinstance(error, torch.OutOfMemoryError):
        reason = "memory ran out"
    return UsageError(
        f"CUDA cannot capture the kernels of a step as a graph ({reason}): launched one by one, they take longer"
    )


_kept: list[torch.cuda.CUDAGraph] = []
"""Graphs that stay until the process ends: those whose capture CUDA could not end, since the allocator of pinned memory
refers to them, and an empty one after each, since `_LiveGraphs` may have others on its stream."""


def _end(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """End a capture. PyTorch leaves the pool and the random generator in the capture if CUDA finds it invalid."""
    try:
        graph.capture_end()
    except RuntimeError:
        _kept.append(graph)
        close_pool(pool, device)
        _end_capture_of_generator()
        raise


def _end_capture_of_generator() -> None:
    """Let the random generator of the device sample outside of a capture again: the end of any capture does so."""
    graph = torch.cuda.CUDAGraph()
    _kept.append(graph)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        graph.capture_begin(capture_error_mode="thread_local")
        graph.capture_end()


def is_capturing(device: torch.device) -> bool:
    """Return True if kernels are recorded now instead of run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def captured_or_called(capture_graph: CaptureGraph) -> CaptureGraph:
    """Return a function that captures graphs; what cannot be captured is called each time, and a warning says so."""

    def capture_or_call(
        run: Callable[[], Result], device: torch.device, *, warm_up: int = WARM_UP
    ) -> Callable[[], Result]:
        try:
            return capture_graph(run, device, warm_up=warm_up)
        except UsageError as error:
            warnings.warn(str(error), stacklevel=2)
            return run

    return capture_or_call


def without_owner(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a bound method that does not keep its object alive, for an object that has graphs of its own methods.

    Both would otherwise keep each other, so that the memory of the object and of its graphs is free only when Python
    looks for cycles. The allocator of a GPU does not ask it to when memory runs out.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any, **options: Any) -> Tensor:
        bound = reference()
        assert bound is not None
        return bound(*args, **options)

    return call


class GraphsByPhase:
    """A function of tensors that is captured as CUDA graphs, one for each phase, which read the same memory.

    Args:
        run: of tensors whose shapes and dtypes are the same in each call, and of integers (n,), if there are any.
        capture_graph: makes a graph; on a CPU it may return the function that it gets.
    """

    def __init__(self, run: Callable[..., Tensor], capture_graph: CaptureGraph) -> None:
        self._run = run
        self._capture_graph = capture_graph
        self._inputs: list[Tensor] = []
        self._replays: dict[int, Callable[[], Tensor] | None] = {}
        self.has_captured = False
        """True if there is a graph; a function that could not be captured is called as it is."""

    def __call__(self, *tensors: Tensor, integers: Sequence[int] = (), phase: int = 0) -> Tensor:
        """Return a copy of the result for tensors on the device, and integers (n,) that change with each call.

        There is one graph for each phase, captured when the phase occurs for the second time.
        """
        device = tensors[0].device
        self._write_inputs(device, tensors, integers)
        run = partial(self._run, *self._inputs)
        if phase not in self._replays:
            self._replays[phase] = None
            return run()
        replay = self._replays[phase]
        if replay is None:
            replay = self._capture_graph(run, device)
            self._replays[phase] = replay
            self.has_captured |= replay is not run
        return replay().clone()

    def _write_inputs(self, device: torch.device, tensors: Sequence[Tensor], integers: Sequence[int]) -> None:
        """Copy tensors and integers to the memory that the graphs read."""
        given = list(tensors)
        if integers:
            on_host = torch.tensor(integers)
            given.append(on_host.pin_memory() if device.type == "cuda" else on_host)
        if not self._inputs:
            self._inputs = [tensor.to(device, copy=True) for tensor in given]
            return
        for own, tensor in zip(self._inputs, given, strict=True):
            own.copy_(tensor, non_blocking=True)
