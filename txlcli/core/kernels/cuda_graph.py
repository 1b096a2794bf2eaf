"""CUDA graphs: kernels that are captured once and launched together, on the same memory each time."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from txlcli.errors import UsageError

WARM_UP = 2  # calls before a capture, in which libraries initialize themselves
Result = TypeVar("Result")


class CaptureGraph(Protocol):
    """Captures a function as a CUDA graph and returns a function that replays it."""

    def __call__(
        self, run: Callable[[], Result], device: torch.device, *, warm_up: int = WARM_UP
    ) -> Callable[[], Result]:
        """See `capture`."""


def capture(
    run: Callable[[], Result], device: torch.device, *, pool: Any = None, warm_up: int = WARM_UP
) -> Callable[[], Result]:
    """Capture a function as a CUDA graph: return one that replays its kernels and returns the same result each time.

    If CUDA cannot capture the function, raise a UsageError.

    Args:
        run: launches kernels, and waits for none.
        device: of its tensors.
        pool: memory that graphs share, of which one is replayed at a time; by default a graph has its own.
        warm_up: calls of `run` before it is captured. The capture itself runs no kernel.
    """
    cache_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # a graph would read cached casts after autocast has freed them
    try:
        graph = torch.cuda.CUDAGraph()
        side_stream = torch.cuda.Stream(device)
        side_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side_stream):
            for _ in range(warm_up):
                run()
        torch.cuda.current_stream(device).wait_stream(side_stream)
        with torch.cuda.graph(graph, pool=pool, stream=side_stream):
            out = run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if isinstance(error.__context__, torch.OutOfMemoryError):  # the end of the capture raised another error
            raise error.__context__ from None
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"CUDA cannot capture the kernels of a step as a graph ({reason}): launched one by one, they take longer"
        ) from error
    finally:
        torch.set_autocast_cache_enabled(cache_enabled)

    def replay() -> Result:
        graph.replay()
        return out

    return replay


def is_capturing(device: torch.device) -> bool:
    """Return True if kernels are recorded now instead of run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def graphs_of_one_pool() -> CaptureGraph:
    """Return a function that captures graphs which share memory for intermediate results, as `capture` does.

    The result of one must be read before another is replayed.
    """
    return functools.partial(capture, pool=torch.cuda.graph_pool_handle())


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
