"""The directories, the device and the reporter that workflows share."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from txlcli.config.settings import Precision, Settings
from txlcli.core.kernels.compilation import portable_reason
from txlcli.data.token_store import TokenStore
from txlcli.errors import UsageError
from txlcli.runs import loading
from txlcli.runs.loading import OpenRun
from txlcli.system import processors
from txlcli.workflows.options import EvalOptions, GenerateOptions
from txlcli.workflows.reporter import Reporter


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Directories, device and reporter of a workflow."""

    data_dir: Path
    """Directory of the token stores."""
    runs_dir: Path
    """Directory of the runs."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision | None = None
    """Precision of matrix products with a run; None is that of its training."""
    threads: int | None = None
    """Threads of PyTorch in this process from now on; None keeps their number."""
    reporter: Reporter = field(default_factory=Reporter)
    """Receives messages and progress."""

    def __post_init__(self) -> None:
        if self.threads is None:
            return
        if self.threads > processors.available():
            raise UsageError(f"`threads` {self.threads}: give at most {processors.available()}, one per processor")
        torch.set_num_threads(self.threads)

    def store_path(self, name: str) -> Path:
        """Return the file of a store, which need not exist."""
        return self.data_dir / f"{name}.h5"

    def open_store(self, name: str, *, is_verified: bool = False) -> TokenStore:
        """Open the store of that name; `is_verified` as in `TokenStore.open`."""
        return TokenStore.open(self.store_path(name), is_verified=is_verified)

    def open_run(self, run_name: str | None) -> OpenRun:
        """Open a run with its weights, by default the most recent one; see `loading.open_run`."""
        opened = loading.open_run(run_name, self.runs_dir, device=self.device, precision=self.precision)
        explain_attention(opened.run.settings, opened.model.device, self.reporter)
        return opened


def compile_reading(opened: OpenRun, options: EvalOptions | GenerateOptions) -> None:
    """Let readers compile as requested; reject `compile` for a model that is read without compiled parts."""
    directory, model = opened.run.directory, opened.run.settings.model
    if model.recurrent_state or not model.keys_are_tokens:
        options.exclude("compile", because=f'{directory} is read without compiled parts (arch = "{model.arch}")')
    opened.model.reading_compile = options.compile or "auto"


def explain_attention(settings: Settings, device: torch.device, reporter: Reporter) -> None:
    """Tell the user if attention does without the fast kernels of a GPU, why, and what it costs."""
    width = settings.model.head_width
    reason = None if width is None or settings.train.attention != "auto" else portable_reason(device, width)
    if reason is not None:
        reporter.say(reason)
