"""Trains in several processes: starts them on this machine, and runs those that follow rank 0."""

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from txlcli.core.training import checkpoint, data_parallel
from txlcli.core.training.data_parallel import World
from txlcli.core.training.loop import Training, new_model
from txlcli.data.token_store import TokenStore
from txlcli.errors import StoreError, TrainingError
from txlcli.runs import run_folder
from txlcli.system import processors, torchrun
from txlcli.workflows.reporter import SilentReporter
from txlcli.workflows.training import plan, text
from txlcli.workflows.training.resume import change_settings
from txlcli.workflows.training.start import load_settings
from txlcli.workflows.workspace import Workspace

SECONDS_TO_SAVE = "600"
"""Time after Ctrl-C or SIGTERM until a process that has not ended is killed."""


def start_processes(processes: int, arguments: Sequence[str]) -> int:
    """Run a command line of txl in several processes, as torchrun does, and return their exit code.

    Raises:
        TrainingError: a process was killed, so that it could not report an error itself.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # the processes report their own errors
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SECONDS_TO_SAVE)
    # Auxiliary classifiers stop taking part in the loss during training, which PyTorch would warn about.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors.available() // processes)))
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
            if first.exitcode < 0:
                raise TrainingError(
                    f"process {rank} was killed by signal {-first.exitcode}; resume from the last checkpoint with "
                    "--resume, if there is one"
                ) from error
            return first.exitcode
        except SignalException as stopped:
            return 128 + stopped.sigval
    return 0


def follow(source: str, changes: list[str], workspace: Workspace, *, resumed: bool) -> None:
    """Take part in a training as a process of another rank than 0, until rank 0 ends it.

    Args:
        source: recipe of the training, or the run if it is `resumed` from its last checkpoint.
        changes: overrides of settings, as --set takes them.
        workspace: folders, and device of this process.
        resumed: True if a run is resumed.

    Raises:
        StoreError: the store on this machine holds another text.
        TrainingError: rank 0 died.
    """
    run = change_settings(run_folder.find(source, workspace.runs_dir), changes) if resumed else None
    settings = load_settings(source, changes) if run is None else run.settings
    device = plan.checked_device(settings, workspace.device, processes=torchrun.world_size())
    with torchrun.handle_signals(signal.SIG_DFL):
        world = data_parallel.join(device)  # rank 0 joins once the store is there
        store = workspace.open_store(settings.corpus.store)
        check_text_of_rank_0(store, world)
        segments, _ = text.read_splits(settings, store, SilentReporter())
        saved = None
        if run is None:
            model = new_model(settings.model, store.vocab.size, seed=settings.train.seed, device=device)
        else:
            path = run.folder / run_folder.LAST
            saved = checkpoint.load(path)
            model = checkpoint.build_model(settings.model, run.vocab_size, saved, path).to(device)
        training = Training(model, settings.train, segments, None, Path(), {}, world)
        if saved is not None:
            training.restore(saved)
        with torchrun.handle_signals(signal.SIG_IGN):  # rank 0 receives them, too, and decides
            training.execute_commands()


def check_text_of_rank_0(store: TokenStore, world: World) -> None:
    """Refuse another text than rank 0 reads, perhaps on another machine."""
    digest = store.info("train").sha256
    if world.broadcast(digest) != digest:
        raise StoreError(f"{store.path}: not the train split that rank 0 reads; copy the store from its machine")
