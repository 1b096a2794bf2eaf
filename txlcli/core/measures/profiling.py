"""Kernel times of training steps by name, and their trace."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from txlcli.system.atomic_files import replacing

WARM_UP = 3
"""Steps after the memory is full before the recording: kernels are compiled, and graphs captured, in the first ones."""


@dataclass(frozen=True)
class KernelTime:
    """Time of all kernels of one name; on a CPU, of the operators."""

    name: str
    calls_per_step: float
    ms_per_step: float
    share: float
    """Share of the time of all kernels."""


@dataclass(frozen=True)
class StepProfile:
    """Kernels of some training steps."""

    steps: int
    first_step: int
    ms_per_step: float
    """Sum over all kernels, which may run side by side."""
    calls_per_step: float
    kernels: tuple[KernelTime, ...]
    """Those that take the most time first."""


class StepProfiler:
    """Records the kernels of the steps of a training run.

    Args:
        device: of the run.
        after: the last step before those to record.
        steps: number of steps to record.
        trace: file that receives a trace for Chrome or Perfetto.
    """

    def __init__(self, device: torch.device, *, after: int, steps: int, trace: Path | None = None) -> None:
        self._on_cuda, self._after, self._steps, self._trace = device.type == "cuda", after, steps, trace
        self._profiler: profile | None = None
        self.result: StepProfile | None = None
        """None until all steps are taken."""

    def on_step(self, step: int) -> None:
        """Begin or end the recording after this step."""
        if step == self._after:
            # On a GPU kernels alone: the host has many times as many events, which take a minute to add up.
            activity = ProfilerActivity.CUDA if self._on_cuda else ProfilerActivity.CPU
            self._profiler = profile(activities=[activity])
            self._profiler.start()
        if self._profiler is not None and step == self._after + self._steps:
            profiler = self._profiler
            self.stop()
            self.result = self._summary(profiler.events())
            if self._trace is not None:
                with replacing(self._trace) as temporary:
                    profiler.export_chrome_trace(str(temporary))

    def stop(self) -> None:
        """End a recording that has begun."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _summary(self, events: Any) -> StepProfile:
        us, calls, steps = Counter[str](), Counter[str](), self._steps
        for event in events:
            time = event.self_device_time_total if self._on_cuda else event.self_cpu_time_total
            if time > 0:
                us[event.name] += time
                calls[event.name] += 1
        total = us.total()
        kernels = tuple(
            KernelTime(name, calls[name] / steps, time / steps / 1e3, time / total) for name, time in us.most_common()
        )
        return StepProfile(steps, self._after + 1, total / steps / 1e3, calls.total() / steps, kernels)
