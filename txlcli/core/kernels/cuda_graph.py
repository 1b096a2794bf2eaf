"""CUDA graphs: kernels that are captured once and launched together, on the same memory each time."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 2  # calls before a capture, in which libraries initialize themselves


def capture(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Capture a function as a CUDA graph: return one that replays its kernels and returns the same tensor each time.

    Return `run` itself on a CPU and, with a warning, where CUDA cannot capture it. A capture calls `run` a few times.
    """
    if device.type == "cpu":
        return run
    try:
        return _capture(run, device)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"kernels are launched one by one: no CUDA graph could be captured ({reason})", stacklevel=2)
        return run


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
