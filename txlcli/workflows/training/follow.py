"""Trains in several processes: starts them on this machine, and runs those that follow rank 0."""

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from txlcli.config.settings import Settings
from txlcli.core.training import checkpoint, data_parallel
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.data_parallel import World
from txlcli.core.training.loop import Training, new_model
from txlcli.core.training.parallel import device_of_new_weights
from txlcli.data.token_store import TokenStore
from txlcli.errors import TrainingError, TxlError
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.system import launcher, processors
from txlcli.workflows.training import execution, out_of_memory, plan, text
from txlcli.workflows.training.resume import change_settings
from txlcli.workflows.training.start import load_settings
from txlcli.workflows.workspace import Workspace

SECONDS_TO_SAVE = "600"
"""Time after Ctrl-C or SIGTERM until a process that has not ended is killed."""


def start_processes(
    processes: int,
    arguments: Sequence[str],
    *,
    restarts: int = 0,
    resumable: Callable[[], str | None] = lambda: None,
    next_step: str = "resume from the last checkpoint with --resume, if there is one",
    say: Callable[[str], None] = lambda message: None,
) -> int:
    """Run a command line of txl in several processes, as torchrun does, and return their exit code.

    Args:
        processes: their number.
        arguments: of the command line.
        restarts: how often to start all processes again after one was lost.
        resumable: returns the run that the processes have made and can resume from now on, if there is one.
        next_step: advice after a process was killed.
        say: receives a line about each restart.

    Raises:
        TrainingError: a process was killed, so that it could not report an error itself.
    """
    logging.disable(logging.ERROR)  # the processes report their own errors
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SECONDS_TO_SAVE)
    # Auxiliary classifiers stop taking part in the loss during training, which PyTorch would warn about.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors.available() // processes)))
    os.environ[launcher.STARTED] = str(processes)
    for attempt in range(1, restarts + 1):
        ended = _run_processes(processes, arguments)
        if not ended.is_lost:
            return ended.exit_code
        run = resumable()
        if run is not None:
            os.environ[launcher.RESUME] = run
        begin = "from the beginning" if run is None else f"from the last checkpoint of {run}"
        say(f"{ended.reason}; starting all processes again {begin} (restart {attempt} of {restarts})")
    ended = _run_processes(processes, arguments)
    if ended.exit_code < 0:
        raise TrainingError(f"{ended.reason}; {next_step}")
    return ended.exit_code


@dataclass(frozen=True)
class _Ended:
    """How the processes of a training ended; of several failures, the first one."""

    exit_code: int = 0
    """Negative if a signal killed the process."""
    rank: int = 0

    @property
    def is_lost(self) -> bool:
        """True if a process was lost; an error that rank 0 reported itself would come again."""
        return self.exit_code < 0 or (self.exit_code == TrainingError.exit_code and self.rank > 0)

    @property
    def reason(self) -> str:
        killed = f"was killed by signal {-self.exit_code}"
        return f"process {self.rank} {killed if self.exit_code < 0 else 'has failed'}"


def _run_processes(processes: int, arguments: Sequence[str]) -> _Ended:
    """Run a command line of txl in several processes until all have ended."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "txlcli", *arguments)
        except ChildFailedError as error:
            rank, first = error.get_first_failure()
            return _Ended(first.exitcode, rank)
        except SignalException as stopped:
            return _Ended(128 + stopped.sigval)
    return _Ended()


def follow(source: str, changes: list[str], workspace: Workspace, *, resumed: bool) -> None:
    """Take part in a training as a process of another rank than 0, until rank 0 ends it.

    Args:
        source: recipe of the training, or the run if it is `resumed` from its last checkpoint.
        changes: overrides of settings, as --set takes them.
        workspace: directories, and device of this process.
        resumed: True if a run is resumed.

    Raises:
        DisagreementError: settings, text, checkpoint or releases differ from those of rank 0.
        TrainingError: another process is gone.
        ReportedError: memory ran out, which rank 0 reports.
    """
    run = change_settings(run_directory.find(source, workspace.runs_dir), changes) if resumed else None
    settings = load_settings(source, changes) if run is None else run.settings
    device = plan.checked_device(settings, workspace.device, processes=launcher.world_size())
    with launcher.handle_signals(signal.SIG_DFL):
        world = data_parallel.join(device, rank_timeout_s=settings.train.rank_timeout)
        store, saved = _agree(settings, run, workspace, world)  # rank 0 joins once the store is there
        segments, valid = text.read_segments(settings, store), text.read_valid(settings, store)
        of_weights = device_of_new_weights(settings.train, device)
        if run is None or saved is None:
            model = new_model(settings.model, store.vocab.size, seed=settings.train.seed, device=of_weights)
        else:
            model = checkpoint.build_model(settings.model, run.vocab_size, saved, run.directory / run_directory.LAST)
            model = model.to(of_weights)
        training = Training(model, settings.train, segments, valid, Path(), {}, world, device=device)
        if saved is not None:
            training.restore(saved)
        with (
            world.forwarding_signals(),  # rank 0 decides
            out_of_memory.explained(settings, store.vocab.size, device, world.size, training=training),
        ):
            training.execute_commands()
            if world.heartbeat is not None:
                world.heartbeat.stop()


def _agree(
    settings: Settings, run: Run | None, workspace: Workspace, world: World
) -> tuple[TokenStore, Checkpoint | None]:
    """Open the files of this machine, and check that all processes have the same ones and the same settings.

    Raises:
        DisagreementError: they differ, or a file is missing here.
    """
    try:
        store = workspace.open_store(settings.corpus.store, is_verified=launcher.local_rank() > 0)
        saved = None if run is None else checkpoint.load(run.directory / run_directory.LAST)
        facts = execution.common_facts(settings, store, "" if saved is None else saved.fingerprint())
    except TxlError as error:
        world.agree(error)
        raise
    world.agree(facts)
    return store, saved
