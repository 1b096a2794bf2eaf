"""Takes part in a training that another process carries out: `txlcli.torchrun` says which of them this one is."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from txlcli import runs, torchrun
from txlcli.commands import train_plan, train_run
from txlcli.errors import StoreError
from txlcli.options import Device
from txlcli.settings import Settings

if TYPE_CHECKING:
    from txlcli.core.data_parallel import World
    from txlcli.core.language_model import LanguageModel
    from txlcli.core.segments import TrainingSegments
    from txlcli.core.training import Training
    from txlcli.token_store import TokenStore


def follow(wanted: str, changes: list[str], *, device: Device, data_dir: Path) -> None:
    """Take part in the training of a recipe that another process carries out."""
    from txlcli.core import data_parallel
    from txlcli.core.training import new_model
    from txlcli.opening import open_store

    settings = train_run.loaded(wanted, changes)
    there = train_plan.checked_device(settings, device)
    with torchrun.at_signals(signal.SIG_DFL):
        world = data_parallel.join(there)  # the leading process comes once the store is there
        store = open_store(settings.corpus.store, data_dir)
        _check_text(store, world)
        segments, _ = train_run.text_of(settings, store)
        model = new_model(settings.model, store.vocab.size, seed=settings.train.seed, device=there)
        _follow_orders(_follower(model, settings, segments, world))


def follow_on(resume: str, changes: list[str], *, device: Device, data_dir: Path, runs_dir: Path) -> None:
    """Take part in the training of a run that another process goes on with."""
    from txlcli.core import checkpoint, data_parallel
    from txlcli.opening import open_store

    run = train_run.changed(runs.find(resume, runs_dir), changes)
    there = train_plan.checked_device(run.settings, device)
    with torchrun.at_signals(signal.SIG_DFL):
        world = data_parallel.join(there)
        store = open_store(run.settings.corpus.store, data_dir)
        _check_text(store, world)
        segments, _ = train_run.text_of(run.settings, store)
        path = run.folder / runs.LAST
        saved = checkpoint.load(path)
        model = checkpoint.build_model(run.settings.model, run.vocab_size, saved, path).to(there)
        training = _follower(model, run.settings, segments, world)
        training.restore(saved)
        _follow_orders(training)


def _check_text(store: "TokenStore", world: "World") -> None:
    """Refuse another text than the leading process reads, perhaps on another machine."""
    digest = store.info("train").sha256
    if world.share(digest) != digest:
        raise StoreError(f"{store.path} on this machine holds another train split than on the leading one; copy that")


def _follow_orders(training: "Training") -> None:
    """Let the leading process, which hears Ctrl-C and SIGTERM as well, decide what they mean."""
    with torchrun.at_signals(signal.SIG_IGN):
        training.follow()


def _follower(model: "LanguageModel", settings: Settings, segments: "TrainingSegments", world: "World") -> "Training":
    from txlcli.core.training import Training

    return Training(model, settings.train, segments, None, Path(), {}, world)
