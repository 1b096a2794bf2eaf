"""The directories, the device and the reporter that workflows share."""

from dataclasses import dataclass, field
from pathlib import Path

from txlcli.config.settings import Precision
from txlcli.data.token_store import TokenStore
from txlcli.runs import loading
from txlcli.runs.loading import OpenRun
from txlcli.workflows.reporter import CallbackReporter, Reporter


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Directories, device and reporter of a workflow."""

    data_dir: Path
    """Directory of the token stores."""
    runs_dir: Path
    """Directory of the runs."""
    device: str = "auto"
    """auto, cpu or cuda."""
    precision: Precision | None = None
    """Precision of matrix products with a run; None is that of its training."""
    reporter: Reporter = field(default_factory=CallbackReporter)
    """Receives messages and progress."""

    def store_path(self, name: str) -> Path:
        """Return the file of a store, which need not exist."""
        return self.data_dir / f"{name}.h5"

    def open_store(self, name: str, *, is_verified: bool = False) -> TokenStore:
        """Open the store of that name; `is_verified` as in `TokenStore.open`."""
        return TokenStore.open(self.store_path(name), is_verified=is_verified)

    def open_run(self, run_name: str | None) -> OpenRun:
        """Open a run with its weights, by default the most recent one; see `loading.open_run`."""
        return loading.open_run(run_name, self.runs_dir, device=self.device, precision=self.precision)
