"""Carries out a training, new or gone on with, and keeps what it has reached whatever ends it."""

import dataclasses
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from txlcli import console
from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import PLAIN_NAME, Settings
from txlcli.errors import BusyError, Interrupted, RecipeError, RunError, TxlError, UsageError
from txlcli.options import DATA_DIR, Device
from txlcli.runs import run_folder
from txlcli.runs.run_folder import Run
from txlcli.system import torchrun
from txlcli.workflows.training import changes as run_changes
from txlcli.workflows.training import messages, plan, training_log

if TYPE_CHECKING:
    from txlcli.core.model.base import LanguageModel
    from txlcli.core.training.data_parallel import World
    from txlcli.core.training.loop import Training
    from txlcli.core.training.segments import TrainingSegments
    from txlcli.core.training.validation import ValidSplit
    from txlcli.data.token_store import TokenStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Until:
    """What may end a training before its recipe does, and what comes after it."""

    max_steps: int | None = None
    """The last step to take; the schedule stays."""
    max_minutes: float | None = None
    more_follows: bool = False
    """Whether the caller has more to do: a stop that comes as the training ends must then stop that, too."""
    going_on: str | None = None
    """What goes on after a stop, in words, where that is not `txl train --resume`."""


ITS_END = Until()
MOST_TAKEN = 100  # folders that others take while a training begins; where locks do not work all of them seem taken


def learn(
    recipe_source: str,
    changes: list[str],
    *,
    name: str | None,
    device: Device,
    data_dir: Path,
    runs_dir: Path,
    force: bool = False,
    until: Until = ITS_END,
    json: bool = False,
) -> "Training":
    """Train a recipe with changes into a new run, to its end or a limit.

    Raises:
        Interrupted: Ctrl-C or SIGTERM stopped it; as it ended, only where more follows.
    """
    settings = loaded(recipe_source, changes, until_step=until.max_steps)
    folder = new_folder(recipe_source, name, runs_dir, force=force)
    store = messages.store_for(settings, data_dir)
    run = _new_run(recipe_source, settings, folder, store)
    training = _begun(run, store, device, until_step=until.max_steps)
    with _alone_in_its_folder(run, training, wanted=name is not None or force) as run:
        run_folder.create(run, store.vocab.to_json(), force=force)
        with _kept_only_with_weights(run, training):
            _carry_out(run, training, data_dir, until, json=json)
    return training


def go_on(
    resume: str,
    changes: list[str],
    *,
    device: Device,
    data_dir: Path,
    runs_dir: Path,
    until: Until = ITS_END,
    json: bool = False,
) -> "Training":
    """Train a run that stopped, from exactly there, to its end or a limit.

    Raises:
        Interrupted: as `learn`.
    """
    run = run_folder.find(resume, runs_dir)
    with run_folder.alone(run.folder):
        run, training = _resumed(run, changes, data_dir, device, until_step=until.max_steps)
        run_folder.settle(run)  # of a replacement that was killed, the new run is wanted
        _carry_out(run, training, data_dir, until, json=json)
    return training


def loaded(recipe_source: str, changes: list[str], *, until_step: int | None = None) -> Settings:
    """A recipe with changes, whose curves can be written here, and which takes as many steps as are wanted."""
    settings = recipe.load(recipe_source, changes)
    _check_vanilla(settings, recipe_source)
    training_log.check_tensorboard(settings.log)
    _check_schedule(settings, until_step)
    return settings


def _check_vanilla(settings: Settings, recipe_source: str) -> None:
    """Refuse a new vanilla model a memory; runs of earlier versions may have one."""
    model = settings.model
    if isinstance(model, TransformerSettings) and model.auxiliary_losses and settings.train.mem_len:
        why = "model.auxiliary_losses are the vanilla model's, which has no memory"
        raise RecipeError(f"{recipe_source}: {why}; --set train.mem_len=0")


def _check_schedule(settings: Settings, until_step: int | None) -> None:
    """Refuse to stop after a step that is never taken."""
    last = settings.train.max_steps
    if until_step is not None and until_step > last:
        raise UsageError(
            f"--max-steps {until_step}: the schedule ends at step {last:,}, and this option only stops earlier; for a "
            f"longer one give --set train.max_steps={until_step}"
        )


def new_folder(recipe_source: str, name: str | None, runs_dir: Path, *, force: bool) -> Path:
    """Where the run of a recipe would be, not made yet."""
    if name is not None and not re.fullmatch(PLAIN_NAME, name):
        raise UsageError(f'--name "{name}" is no plain name; use letters, digits, ".", "-" and "_"')
    recipe_name = recipe.read_text(recipe_source)[0]
    replaced = recipe_name if force else None
    folder = run_folder.new_folder(runs_dir, name=name or replaced, recipe_name=recipe_name)
    run_folder.check_free(folder, force=force)
    return folder


@contextmanager
def _alone_in_its_folder(run: Run, training: "Training", *, wanted: bool) -> Iterator[Run]:
    """The new run in a folder that this process alone writes while the block runs.

    Unless that very folder is wanted, it is the next free one where another training has taken it meanwhile.

    Raises:
        BusyError: another process writes the folder that is wanted, or so many of the others.
    """
    others = islice(run_folder.free_folders(run.folder.parent, run.recipe_name), 0 if wanted else MOST_TAKEN)
    taken = BusyError(f"{run.folder} was taken meanwhile; give another --name")
    with ExitStack() as held:
        for folder in chain([run.folder], others):
            try:
                held.enter_context(run_folder.alone(folder))
            except BusyError as error:
                taken = error
                continue
            if wanted or not folder.exists():
                break
            held.close()
        else:
            raise taken
        if folder != run.folder:
            console.say(f"{run.folder} was taken meanwhile; this run is {folder}")
        training.folder = folder
        yield dataclasses.replace(run, folder=folder)


@contextmanager
def _kept_only_with_weights(run: Run, training: "Training") -> Iterator[None]:
    """A new run that ends before its first checkpoint leaves the runs folder as it was.

    One that replaces another must have taken a step.
    """
    try:
        yield
    finally:
        if run.best_or_last.exists() and not _comes_to_nothing(run, training):
            run_folder.settle(run)
        else:
            run_folder.undo(run)


def _comes_to_nothing(run: Run, training: "Training") -> bool:
    """Whether the run is to replace another and has not taken a step."""
    return training.step == 0 and run_folder.replaces(run)


def _new_run(recipe_source: str, settings: Settings, folder: Path, store: "TokenStore") -> Run:
    """The run that a recipe would make, not on disk yet."""
    return Run(
        folder=folder,
        recipe_name=recipe.read_text(recipe_source)[0],
        settings=settings,
        vocab_fingerprint=store.fingerprint,
        vocab_size=store.vocab.size,
        parameters=plan.parameters(settings, store.vocab.size, f"the store {store.path}"),
        metric=store.metric,
    )


def _begun(run: Run, store: "TokenStore", device_choice: Device, *, until_step: int | None) -> "Training":
    """The training of a new run, whose folder is not made yet."""
    from txlcli.core.training.data_parallel import join
    from txlcli.core.training.loop import new_model

    train = run.settings.train
    segments, valid = messages.text_of(
        run.settings, store
    )  # a text that is too short is refused before a folder is made
    device = plan.checked_device(run.settings, device_choice, processes=torchrun.world_size())
    summary = plan.plan(
        run.recipe_name,
        run.settings,
        run.folder,
        vocab_size=run.vocab_size,
        parameters=run.parameters,
        until_step=until_step,
        store=store,
        device=device,
        processes=torchrun.world_size(),
    )
    console.say(f"training {plan.in_words(summary)}")
    if segments.lane_len <= train.seg_len:
        console.say(
            f"a lane has {segments.lane_len:,} tokens, not more than a segment: every step is an epoch, and nothing is "
            "remembered; lower train.batch_size or train.seg_len"
        )
    world = join(device)
    world.broadcast(store.info("train").sha256)
    model = new_model(run.settings.model, run.vocab_size, seed=train.seed, device=device)  # it may be too large, too
    return _training(model, run, store, segments, valid, world)


def _resumed(
    run: Run, changes: list[str], data_dir: Path, device_choice: Device, *, until_step: int | None
) -> tuple[Run, "Training"]:
    from txlcli.core.training import checkpoint
    from txlcli.core.training.data_parallel import join
    from txlcli.runs.loading import check_checkpoint, check_vocabulary, open_store

    before, run = run, run_changes.changed(run, changes)
    settings = run.settings
    training_log.check_tensorboard(settings.log)
    _check_schedule(settings, until_step)
    device = plan.checked_device(settings, device_choice, processes=torchrun.world_size())
    store = open_store(settings.corpus.store, data_dir)
    check_vocabulary(run, store)
    path = run.folder / run_folder.LAST
    saved = checkpoint.load(path)
    check_checkpoint(run, saved, path)
    messages.check_same_text(run, saved, store)
    model = checkpoint.build_model(settings.model, run.vocab_size, saved, path).to(device)
    segments, valid = messages.text_of(settings, store)
    world = join(device)
    world.broadcast(store.info("train").sha256)
    training = _training(model, run, store, segments, valid, world)
    training.restore(saved)
    _check_unfinished(run, training, until_step)
    run_changes.check_validations(run, before, validated=training.validated)
    run.drop_metrics_after(training.step, validated=training.validated)
    run = run_changes.with_changes(run, before, training.step)
    run_folder.update(run)
    console.say(
        f"going on with {run.folder} at step {training.step:,} of {settings.train.max_steps:,}, "
        f"{plan.devices(device, torchrun.world_size())}"
    )
    return run, training


def _check_unfinished(run: Run, training: "Training", until_step: int | None) -> None:
    """Refuse to go on where nothing is left to do; a validation that a stop cut short is left to do."""
    last, due = run.settings.train.max_steps, training.validation_is_due()
    if training.step > last:
        raise RecipeError(f"{run.folder} is at step {training.step:,} already; train.max_steps cannot be {last:,}")
    if training.step == last and not due:
        raise RunError(f"{run.folder} has finished its {last:,} steps; to train it longer add --set train.max_steps=N")
    if until_step is not None and (training.step > until_step or (training.step == until_step and not due)):
        raise UsageError(
            f"--max-steps {until_step}: {run.folder} is at step {training.step:,} already; give a later step, or leave "
            "it out"
        )


def _training(
    model: "LanguageModel",
    run: Run,
    store: "TokenStore",
    segments: "TrainingSegments",
    valid: "ValidSplit | None",
    world: "World",
) -> "Training":
    from txlcli.core.training.loop import Training

    identity = {
        "recipe": run.recipe_name,
        "vocab_fingerprint": run.vocab_fingerprint,
        "train_sha256": store.digest("train"),
        "valid_sha256": store.digest("valid"),
    }
    return Training(model, run.settings.train, segments, valid, run.folder, identity, world)


def _carry_out(run: Run, training: "Training", data_dir: Path, until: Until, *, json: bool) -> None:
    last = run.settings.train.max_steps
    deadline = time.monotonic() + 60 * until.max_minutes if until.max_minutes is not None else None
    with _signals() as caught:

        def should_stop() -> bool:
            out_of_time = deadline is not None and time.monotonic() >= deadline
            return bool(caught) or out_of_time or torchrun.is_orphan()

        def going_on() -> str:
            return until.going_on or f'go on with "{next_command(training, data_dir)}"'

        every = run.settings.log.every
        recording = training_log.recording(run, after=training.step, json=json)
        with _impatience_told(training, caught, going_on), recording as recorder:
            for report in training.run(
                report_every=every,
                should_stop=should_stop,
                until_step=until.max_steps,
                on_valid_tokens=recorder.validating,
            ):
                try:
                    recorder.record(report)
                except (OSError, TxlError):  # nobody reads it any more, or the disk is full
                    with suppress(TxlError):
                        training.save_last()
                    raise
    saved = f"saved {training.last_path} at step {training.step:,}"
    if _comes_to_nothing(run, training):
        code = 128 + caught[0] if caught else TxlError.exit_code
        raise Interrupted(f"no step was taken; {run.folder} is the run that it was", code)
    if caught and (until.more_follows or not training.has_ended):
        ended = f"{run.folder} has finished its {last:,} steps"
        raise Interrupted(f"stopped; {ended if training.has_ended else f'{saved}; {going_on()}'}", 128 + caught[0])
    if not training.has_ended:
        console.say(f"{saved} of {last:,}; {going_on()}")


@contextmanager
def _impatience_told(training: "Training", caught: list[int], going_on: Callable[[], str]) -> Iterator[None]:
    """A second signal ends the block without the save that the first one began; say what is left."""
    try:
        yield
    except KeyboardInterrupt:
        left = "nothing was saved before"
        if training.last_path.exists():
            left = f"what was saved before is left; {going_on()}"
        raise Interrupted(f"stopped at once, without saving; {left}", 128 + caught[0]) from None


def next_command(training: "Training", data_dir: Path) -> str:
    """The command for a training that has ended, or the one that goes on with it."""
    folder = str(training.folder)
    if training.has_ended:
        return command_line("eval", folder, data_dir=data_dir)
    processes = ["--processes", str(training.world.size)] if training.world.size > 1 else []
    return command_line("train", "--resume", folder, *processes, data_dir=data_dir)


def command_line(*words: str, data_dir: Path) -> str:
    """A command line to repeat, with the data folder where it is not the usual one."""
    return shlex.join(["txl", *words, *([] if data_dir == DATA_DIR else ["--data-dir", str(data_dir)])])


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of dying of them; a second Ctrl-C does interrupt."""
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        console.say("stopping after this step; saving")

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, catch) for number in numbers]
    try:
        yield caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
