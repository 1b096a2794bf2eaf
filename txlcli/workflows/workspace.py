"""The directories, the device and the reporter that workflows share; PyTorch is imported when a run is opened."""

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from txlcli.config.ranges import PositiveInt
from txlcli.config.settings import Settings
from txlcli.config.train_settings import Compile, Precision
from txlcli.errors import UsageError
from txlcli.system import processors
from txlcli.system.command_lines import DATA_DIR, DATA_VARIABLE, RUNS_DIR, RUNS_VARIABLE, user_path
from txlcli.workflows.options import Options, option
from txlcli.workflows.reporter import Reporter

if TYPE_CHECKING:
    import torch

    from txlcli.data.token_store import TokenStore
    from txlcli.runs.loading import OpenModel, OpenRun
    from txlcli.runs.run_directory import Run

Opened = TypeVar("Opened", bound="OpenModel")
Device = Literal["auto", "cpu", "cuda", "mps"]


class StoresDir(Options):
    """Directory of the token stores."""

    data_dir: Path = option(
        f"Folder of the token stores [default: {DATA_DIR}].", default=DATA_DIR, read=user_path, variable=DATA_VARIABLE
    )


class RunsDir(Options):
    """Directory of the runs."""

    runs_dir: Path = option(
        f"Folder of the training runs [default: {RUNS_DIR}].", default=RUNS_DIR, read=user_path, variable=RUNS_VARIABLE
    )


class Workspace(RunsDir, StoresDir):
    """Directories, device and reporter of a workflow; subclasses let the command line choose more of these."""

    device: Device = "auto"
    precision: Precision | None = None
    threads: int | None = None
    """Threads of PyTorch in this process after `use_threads`; None keeps their number."""
    reporter: Reporter = field(default_factory=Reporter)
    """Receives messages and progress."""

    def _check(self) -> None:
        if self.threads is not None and self.threads > processors.available():
            raise UsageError(f"`threads` {self.threads}: use at most {processors.available()}, one per processor")

    def use_threads(self) -> None:
        """Let PyTorch use as many threads in this process as the user has chosen."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)

    def store_path(self, name: str) -> Path:
        """Return the file of a store, which need not exist; `name` may be its path."""
        return Path(name) if name.endswith(".h5") else self.data_dir / f"{name}.h5"

    def open_store(self, name: str) -> "TokenStore":
        """Open the store of that name."""
        from txlcli.data.token_store import TokenStore

        return TokenStore.open(self.store_path(name))

    def open_run(self, run: "Run") -> "OpenRun":
        """Open a run with its weights; see `loading.open_run`."""
        from txlcli.runs import loading

        opened = loading.open_run(run, device=self.device, precision=self.precision)
        explain_attention(opened.run.settings, opened.model.device, self.reporter)
        return opened


class CpuWorkspace(Workspace):
    """Workspace of a command that computes on the CPU."""

    threads: PositiveInt | None = option("Threads on the CPU [default: OMP_NUM_THREADS, or one per core].")


class DeviceWorkspace(CpuWorkspace):
    """Workspace of a command that computes on a device."""

    device: Device = option("Device; auto uses CUDA if available.", default="auto")


class RunWorkspace(DeviceWorkspace):
    """Workspace of a command that computes with a trained run."""

    precision: Precision | None = option("Precision of matrix products [default: as trained].")


def compile_reading(opened: Opened, options: Options, choice: Compile | None) -> Opened:
    """Return a model whose readers compile as chosen.

    Raises a UsageError if the options have `compile` for a model that is read without compiled parts.
    """
    model = opened.settings.model
    if model.recurrent_state or not model.keys_are_tokens:
        options.exclude("compile", because=f'{opened.subject} is read without compiled parts (arch = "{model.arch}")')
    return opened.on(reading_compile=choice or "auto")


def explain_attention(settings: Settings, device: "torch.device", reporter: Reporter) -> None:
    """Tell the user if attention does without the fast kernels of a GPU, why, and what it costs."""
    from txlcli.core.kernels.compilation import portable_reason, triton_problem

    width = settings.model.head_width
    if width is None or settings.train.attention != "auto":
        return
    reason = portable_reason(device, width, triton_problem(device))
    if reason is not None:
        reporter.say(reason)
