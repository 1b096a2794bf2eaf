"""Kernel times of training steps by name, and their trace."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import utf8_path

WARM_UP = 3
"""Steps with a full memory before the recording: the first ones compile kernels and capture graphs."""


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

    first_step: int
    steps: int
    ms_per_step: float
    """Sum over all kernels, which may run side by side."""
    calls_per_step: float
    kernels: tuple[KernelTime, ...]
    """By their time, the longest first."""
    trace: str | None
    """File of the trace."""


class StepProfiler:
    """Records the kernels of `steps` training steps after step `after`, and writes a trace for Chrome or Perfetto."""

    result: StepProfile | None = None
    """None until all steps are taken."""

    def __init__(self, *, on_cuda: bool, after: int, steps: int, trace: Path | None = None) -> None:
        # On a GPU kernels alone: the host has many times as many events, which take a minute to add up.
        self._profiler = profile(activities=[ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU])
        self._on_cuda = on_cuda
        self._after = after
        self._steps = steps
        self._trace = trace
        self._is_running = False

    def on_step(self, step: int) -> None:
        """Begin or end the recording after this step."""
        if step == self._after:
            self._profiler.start()
            self._is_running = True
        if self._is_running and step == self._after + self._steps:
            self.stop()
            self.result = self._summary()
            if self._trace is not None:
                with replacing(self._trace) as draft, utf8_path(draft) as path:
                    self._profiler.export_chrome_trace(str(path))

    def stop(self) -> None:
        """End the recording, if it runs."""
        if self._is_running:
            self._profiler.stop()
            self._is_running = False

    def _summary(self) -> StepProfile:
        us = Counter[str]()
        calls = Counter[str]()
        for event in self._profiler.events() or ():
            time = event.self_device_time_total if self._on_cuda else event.self_cpu_time_total
            if time:
                us[event.name] += time
                calls[event.name] += 1
        total = us.total()
        kernels = list[KernelTime]()
        for name, time in us.most_common():
            kernels.append(
                KernelTime(
                    name=name,
                    calls_per_step=calls[name] / self._steps,
                    ms_per_step=time / self._steps / 1e3,
                    share=time / total,
                )
            )
        return StepProfile(
            first_step=self._after + 1,
            steps=self._steps,
            ms_per_step=total / self._steps / 1e3,
            calls_per_step=calls.total() / self._steps,
            kernels=tuple(kernels),
            trace=None if self._trace is None else str(self._trace),
        )
