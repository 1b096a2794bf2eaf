"""The functions of the Python interface: prepare, train, load and compare runs, open a store, make a model."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from txlcli import THREADS_SLEEP
from txlcli.api.run import LoadedRun, PathLike
from txlcli.config import recipe as recipes
from txlcli.config.ranges import FieldType, PositiveInt, checked
from txlcli.config.train_settings import Precision
from txlcli.core.architectures import registry
from txlcli.core.kernels.device import pick_device
from txlcli.core.model.base import LanguageModel
from txlcli.errors import RecipeError, UsageError
from txlcli.report import figures
from txlcli.runs import run_directory
from txlcli.workflows import difference as difference_workflow
from txlcli.workflows import recl as recl_workflow
from txlcli.workflows.difference import LossDifference
from txlcli.workflows.difference_options import DifferenceOptions
from txlcli.workflows.preparation import preparing
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.preparation.preparing import PreparedStore
from txlcli.workflows.recl import ReclResult
from txlcli.workflows.recl_options import ReclOptions
from txlcli.workflows.reporter import OnProgress, Reporter
from txlcli.workflows.training.log import OnReport
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import TrainingResult, train_recipe
from txlcli.workflows.workspace import Device, Workspace

SPINNING = "PyTorch was imported before txlcli, so that its threads spin while they wait; import txlcli first"


def _workspace(
    runs_dir: PathLike,
    data_dir: PathLike,
    device: Device,
    on_progress: OnProgress | None,
    precision: Precision | None = None,
) -> Workspace:
    """Return the directories, the device and the reporter that a job gets."""
    return Workspace(
        data_dir=Path(data_dir),
        runs_dir=Path(runs_dir),
        device=device,
        precision=precision,
        reporter=Reporter(on_progress),
    )


@checked
def prepare(
    source: PathLike,
    options: PrepareOptions | None = None,
    *,
    data_dir: PathLike = "data",
    on_progress: OnProgress | None = None,
) -> PreparedStore:
    """Prepare a corpus, or a text of your own, as `txl prepare`.

    Args:
        source: name of a corpus, or path of a text file or a folder.
        options: tokenizer, vocabulary and so on.
        data_dir: folder that receives the store.
        on_progress: receives messages and progress; None drops them.

    Raises:
        UsageError: the options exclude each other, or a store of that name exists.
        CorpusInputError: the text cannot be downloaded, read or split.
    """
    given = options or PrepareOptions()
    return preparing.run(os.fspath(source), given, Path(data_dir), reporter=Reporter(on_progress))


@checked
def train(
    recipe: PathLike | None = None,
    options: TrainOptions | None = None,
    *,
    runs_dir: PathLike = "runs",
    data_dir: PathLike = "data",
    device: Device = "auto",
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
) -> TrainingResult:
    """Train a recipe, or resume a run, as `txl train` in one process.

    Args:
        recipe: a recipe file, the name of a packaged recipe, or of a token store; None with `options.resume`, or for
            the settings of the run that `options.begin_from` names.
        options: name of the run, limits, changes of settings and so on.
        runs_dir: folder of the runs.
        data_dir: folder of the token stores.
        device: auto uses CUDA if available.
        on_report: receives every report of metrics.jsonl, as a dictionary without the run's id and the checksum.
        on_progress: receives messages and progress; None drops them.

    Raises:
        UsageError, RecipeError: the options, the recipe or a change is not valid.
        StoreError: the token store is missing or damaged.
        TrainingError: training cannot continue, such as after a loss that is not finite.
        Interrupted: Ctrl-C; the message says what was saved.
    """
    workspace = _workspace(runs_dir, data_dir, device, on_progress)
    if not THREADS_SLEEP and pick_device(device).type == "cpu":
        workspace.reporter.say(SPINNING)
    source = None if recipe is None else os.fspath(recipe)
    return train_recipe(source, options or TrainOptions(), workspace, on_report=on_report)


@checked
def load(
    run: PathLike | None = None,
    *,
    runs_dir: PathLike = "runs",
    data_dir: PathLike = "data",
    device: Device = "auto",
    precision: Precision | None = None,
    on_progress: OnProgress | None = None,
) -> LoadedRun:
    """Load a trained run with its best weights.

    Args:
        run: name or folder of the run; None is the most recent one.
        runs_dir: folder of the runs.
        data_dir: folder of the token stores, for what is measured on one.
        device: auto uses CUDA if available.
        precision: of matrix products; None is that of training.
        on_progress: receives messages and progress, see `txlcli.workflows.reporter.OnProgress`; None drops them.

    Raises:
        RunError, UnknownNameError: the run does not exist or cannot be opened.
        UsageError: the device or the precision is not available.
    """
    workspace = _workspace(runs_dir, data_dir, device, on_progress, precision)
    found = run_directory.find(None if run is None else os.fspath(run), workspace.runs_dir)
    return LoadedRun(workspace.open_run(found), workspace)


@checked
def open_store(store: PathLike, *, data_dir: PathLike = "data") -> PreparedStore:
    """Open a token store that `txl prepare` wrote.

    Args:
        store: its name, or the path of the .h5 file.
        data_dir: folder of the token stores, for a name.

    Raises:
        StoreError: it is missing, damaged, or not a token store.
    """
    return PreparedStore.open(Workspace(data_dir=Path(data_dir)).store_path(os.fspath(store)))


@checked
def make_model(
    recipe: PathLike, *, vocab_size: PositiveInt | None = None, changes: Mapping[str, object] = MappingProxyType({})
) -> LanguageModel:
    """Make the model of a recipe with fresh weights.

    Args:
        recipe: name of a packaged recipe, or a recipe file.
        vocab_size: number of tokens V; None is the published V of the recipe's corpus.
        changes: settings to change, such as {"model.n_layers": 6}.

    Raises:
        RecipeError: the recipe or a change is not valid, or it has no published vocabulary and none is given.
        UsageError: the vocabulary size is out of range.
    """
    overrides = []
    for key, value in changes.items():
        text = str(value)
        if isinstance(value, bool):
            text = text.lower()
        elif isinstance(value, tuple | list):
            text = json.dumps(value)
        overrides.append(f"{key}={text}")
    settings = recipes.load(os.fspath(recipe), overrides)
    size = vocab_size or settings.published.vocab_size
    if size is None:
        raise RecipeError(f"{os.fspath(recipe)} has no published vocabulary; give vocab_size, as in store.vocab.size")
    return registry.make_model(settings.model, size)


@checked
def recl(
    runs: Iterable[PathLike],
    options: ReclOptions | None = None,
    *,
    runs_dir: PathLike = "runs",
    data_dir: PathLike = "data",
    device: Device = "auto",
    on_progress: OnProgress | None = None,
) -> ReclResult:
    """Measure how much context runs use, relative to the best of them, as `txl recl`.

    Args:
        runs: names or folders; one is enough, and a text is one name.
        options: context lengths, positions and so on.
        runs_dir, data_dir, device, on_progress: see `train`.

    Raises:
        RunError, UnknownNameError: a run does not exist or cannot be opened.
        UsageError: the runs have different stores, or the options do not fit them.
    """
    given = options or ReclOptions()
    workspace = _workspace(runs_dir, data_dir, device, on_progress)
    names = []
    for run in [runs] if isinstance(runs, str) else runs:
        FieldType.of(PathLike).check("`runs`", run)
        names.append(os.fspath(run))
    if not names:
        raise UsageError("`runs` is empty; name at least one run")
    result = recl_workflow.run(run_directory.find_each(names, workspace.runs_dir), given, workspace)
    if given.plot is not None:
        figures.plot_gains(given.plot, result)
    if given.plot_ppl is not None:
        figures.plot_perplexities(given.plot_ppl, result)
    return result


@checked
def difference(
    first: PathLike,
    second: PathLike,
    options: DifferenceOptions | None = None,
    *,
    runs_dir: PathLike = "runs",
    data_dir: PathLike = "data",
    device: Device = "auto",
    on_progress: OnProgress | None = None,
) -> LossDifference:
    """Test if the difference of two losses is more than chance, as `txl runs difference`.

    Args:
        first: name or folder of a run, which is evaluated, or a file of its losses (.h5).
        second: another run or file, on the same text.
        options: memory lengths, split and so on.
        runs_dir, data_dir, device, on_progress: see `train`.

    Raises:
        RunError, UnknownNameError: a run does not exist or cannot be opened.
        UsageError: the texts or the memory lengths differ.
    """
    workspace = _workspace(runs_dir, data_dir, device, on_progress)
    given = options or DifferenceOptions()
    return difference_workflow.run(os.fspath(first), os.fspath(second), given, workspace)
