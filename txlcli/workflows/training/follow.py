"""Take part in a training that rank 0 carries out; `txlcli.system.torchrun` gives the rank."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from txlcli.config.settings import Settings
from txlcli.errors import StoreError
from txlcli.options import Device
from txlcli.runs import run_folder
from txlcli.runs.run_folder import Run
from txlcli.system import torchrun
from txlcli.workflows.training import messages, plan

if TYPE_CHECKING:
    from txlcli.core.training.data_parallel import World
    from txlcli.data.token_store import TokenStore


def follow(settings: Settings, *, going_on: Run | None, device: Device, data_dir: Path) -> None:
    """Take the steps of another process's training.

    Args:
        settings: of the training.
        going_on: the run whose last checkpoint it begins from; None for a new one.
        device: of this process.
        data_dir: where the store is.

    Raises:
        StoreError: the store here holds another text.
        TrainingError: the other process has ended before it said so.
    """
    from txlcli.core.training import checkpoint, data_parallel
    from txlcli.core.training.loop import Training, new_model
    from txlcli.runs.loading import open_store

    there = plan.checked_device(settings, device, processes=torchrun.world_size())
    with torchrun.handle_signals(signal.SIG_DFL):
        world = data_parallel.join(there)  # the leading process comes once the store is there
        store = open_store(settings.corpus.store, data_dir)
        _check_text(store, world)
        segments, _ = messages.text_of(settings, store)
        saved = None
        if going_on is None:
            model = new_model(settings.model, store.vocab.size, seed=settings.train.seed, device=there)
        else:
            path = going_on.folder / run_folder.LAST
            saved = checkpoint.load(path)
            model = checkpoint.build_model(settings.model, going_on.vocab_size, saved, path).to(there)
        training = Training(model, settings.train, segments, None, Path(), {}, world)
        if saved is not None:
            training.restore(saved)
        with torchrun.handle_signals(signal.SIG_IGN):  # the leading process hears them as well, and decides
            training.execute_commands()


def _check_text(store: "TokenStore", world: "World") -> None:
    """Refuse another text than the leading process reads, perhaps on another machine."""
    digest = store.info("train").sha256
    if world.broadcast(digest) != digest:
        raise StoreError(f"{store.path} on this machine holds another train split than on the leading one; copy that")
