"""Resolves what the user asks to train, before PyTorch is imported: a recipe, or a recipe for a token store."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from txlcli.config import recipe
from txlcli.errors import RunError
from txlcli.runs import history, run_directory
from txlcli.workflows.options import TrainOptions

RECIPES = {"byte": "stdlib", "char": "stdlib", "word": "ptb-small", "piece": "ptb-small", "id": "ptb-small"}
"""Small packaged recipe for each unit of a store."""


def resolve(
    source: str,
    options: TrainOptions,
    data_dir: Path,
    runs_dir: Path,
    *,
    is_repeated: bool,
    say: Callable[[str], None],
) -> tuple[str, TrainOptions]:
    """Return the recipe and the options; `source` may be the name of a token store.

    Unless `is_repeated`, a finished run of the same settings, text and seed is not trained again.
    """
    from txlcli.data.token_store import TokenStore

    is_recipe = Path(source).is_file() or source.removesuffix(".toml") in recipe.packaged_names()
    store_name = source if not is_recipe and (data_dir / f"{source}.h5").is_file() else None
    if store_name is not None:
        unit = TokenStore.open(data_dir / f"{store_name}.h5").unit
        source = RECIPES[unit]
        options = dataclasses.replace(options, overrides=(f"corpus.store={store_name}", *options.overrides))
        say(f'{store_name} is a token store (unit {unit}): training the recipe "{source}" on it')
    settings = recipe.load(source, options.changes)
    path = data_dir / f"{settings.corpus.store}.h5"
    if not is_repeated and path.is_file():
        same = list(history.same_runs(settings, TokenStore.open(path).digest("train"), runs_dir))
        for run, _, is_finished in same:
            if is_finished:
                raise RunError(
                    f'{run.directory} is finished and has the same settings, text and seed; evaluate it with "txl eval '
                    f'{run.name}", train it again under another `name`, or replace it with `force`'
                )
        if same:
            run, step, _ = same[0]
            say(f"{run.directory} has the same settings; `resume` {run.name} continues it at step {step:,}")
    if store_name is not None and options.name is None:
        options = dataclasses.replace(options, name=next(run_directory.free_directories(runs_dir, store_name)).name)
    return source, options
