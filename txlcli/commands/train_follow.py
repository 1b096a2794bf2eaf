"""Takes part in a training that another process carries out: `txlcli.torchrun` says which of them this one is."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from txlcli import runs, torchrun
from txlcli.commands import train_plan, train_text
from txlcli.errors import StoreError
from txlcli.options import Device
from txlcli.runs import Run
from txlcli.settings import Settings

if TYPE_CHECKING:
    from txlcli.core.data_parallel import World
    from txlcli.token_store import TokenStore


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
    from txlcli.core import checkpoint, data_parallel
    from txlcli.core.training import Training, new_model
    from txlcli.opening import open_store

    there = train_plan.checked_device(settings, device, processes=torchrun.world_size())
    with torchrun.at_signals(signal.SIG_DFL):
        world = data_parallel.join(there)  # the leading process comes once the store is there
        store = open_store(settings.corpus.store, data_dir)
        _check_text(store, world)
        segments, _ = train_text.text_of(settings, store)
        saved = None
        if going_on is None:
            model = new_model(settings.model, store.vocab.size, seed=settings.train.seed, device=there)
        else:
            path = going_on.folder / runs.LAST
            saved = checkpoint.load(path)
            model = checkpoint.build_model(settings.model, going_on.vocab_size, saved, path).to(there)
        training = Training(model, settings.train, segments, None, Path(), {}, world)
        if saved is not None:
            training.restore(saved)
        with torchrun.at_signals(signal.SIG_IGN):  # the leading process hears them as well, and decides
            training.follow()


def _check_text(store: "TokenStore", world: "World") -> None:
    """Refuse another text than the leading process reads, perhaps on another machine."""
    digest = store.info("train").sha256
    if world.share(digest) != digest:
        raise StoreError(f"{store.path} on this machine holds another train split than on the leading one; copy that")
