"""CUDA graphs: kernels recorded once and started together, again and again, on the same memory."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

WARM_UP = 2  # runs before a recording, in which libraries set themselves up


def capture(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """What does the same as `run` by repeating a recording of its kernels; it gives the same tensor each time.

    On a CPU it is `run` itself, and where CUDA cannot record, with a warning. Recording runs it a few times.
    """
    if device.type == "cpu":
        return run
    try:
        return _recording(run, device)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"kernels are started one by one: no CUDA graph could be recorded ({reason})", stacklevel=2)
        return run


@contextmanager
def casts_made_anew() -> Iterator[None]:
    """Autocast keeps no weight that it casts: a recording would read it after autocast has let it go."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _recording(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    graph = torch.cuda.CUDAGraph()
    aside = torch.cuda.Stream(device)
    with casts_made_anew():
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream(device).wait_stream(aside)
        with torch.cuda.graph(graph):
            out = run()

    def repeat() -> Tensor:
        graph.replay()
        return out

    return repeat
