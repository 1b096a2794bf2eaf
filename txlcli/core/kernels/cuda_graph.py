"""CUDA graphs: kernels that are captured once and launched together, on the same memory each time."""

from collections.abc import Callable

import torch
from torch import Tensor

from txlcli.errors import UsageError

WARM_UP = 2  # calls before a capture, in which libraries initialize themselves


def capture(run: Callable[[], Tensor], device: torch.device, *, instead: str) -> Callable[[], Tensor]:
    """Capture a function as a CUDA graph: return one that replays its kernels and returns the same tensor each time.

    Return `run` itself on a CPU. A capture calls `run` a few times.

    Args:
        run: launches kernels, and waits for none.
        device: of its tensors.
        instead: next step without a graph.

    Raises:
        UsageError: CUDA cannot capture it. The process must end: streams and random generators may be left in the state
            of a capture.
        torch.OutOfMemoryError: memory ran out.
    """
    if device.type == "cpu":
        return run
    try:
        return _capture(run, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"CUDA cannot capture the kernels of a step as a graph ({reason}); {instead}") from error


def _capture(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    graph = torch.cuda.CUDAGraph()
    side_stream = torch.cuda.Stream(device)
    cache_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # a graph would read cached casts after autocast has freed them
    try:
        side_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream(device).wait_stream(side_stream)
        with torch.cuda.graph(graph):
            out = run()
    finally:
        torch.set_autocast_cache_enabled(cache_enabled)

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay
