"""Names that a shell completes: runs, recipes, stores, settings, and the tables and figures of the paper."""

from collections.abc import Callable, Iterable
from pathlib import Path

from typer import Context

from txlcli import corpora
from txlcli.config import recipe
from txlcli.runs import run_directory
from txlcli.system.command_lines import default_data_dir, default_runs_dir
from txlcli.workflows.options import ALL_ITEMS, REPRODUCIBLE


def _completing(*sources: Callable[[Context], Iterable[str]]) -> Callable[[Context, str], list[str]]:
    """Return a completion with the names of all sources."""

    def complete(context: Context, incomplete: str) -> list[str]:
        names = dict.fromkeys(name for source in sources for name in source(context))
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _runs(context: Context) -> Iterable[str]:
    return run_directory.names(Path(context.params.get("runs_dir") or default_runs_dir()))


def _recipes(_: Context) -> Iterable[str]:
    return recipe.packaged_names()


def _stores(context: Context) -> Iterable[str]:
    directory = Path(context.params.get("data_dir") or default_data_dir())
    return sorted(path.stem for path in directory.glob("*.h5"))


runs, recipes, stores = _completing(_runs), _completing(_recipes), _completing(_stores)
recipes_and_stores = _completing(_recipes, _stores)
runs_and_recipes = _completing(_runs, _recipes)
exports = _completing(_runs, _stores)
benchmarks = _completing(lambda _: corpora.CORPORA)
settings = _completing(lambda _: [f"{name}=" for name in recipe.setting_names()])
reproductions = _completing(lambda _: [*REPRODUCIBLE, ALL_ITEMS])
