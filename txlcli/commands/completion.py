"""Names that a shell completes: runs, recipes, stores, settings, and the tables and figures of the paper."""

from pathlib import Path

from typer import Context

from txlcli import corpora
from txlcli.config import recipe
from txlcli.runs import run_directory
from txlcli.system.command_lines import default_data_dir, default_runs_dir
from txlcli.workflows.options import ALL_ITEMS, REPRODUCIBLE


def runs(context: Context, incomplete: str) -> list[str]:
    """Return the names of the runs in --runs-dir."""
    return _matching(run_directory.names(_directory(context, "runs_dir", default_runs_dir())), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Return the names of the packaged recipes."""
    return _matching(recipe.packaged_names(), incomplete)


def recipes_and_stores(context: Context, incomplete: str) -> list[str]:
    """Return what `txl train` accepts: packaged recipes, and token stores in --data-dir."""
    return recipes(incomplete) + [name for name in stores(context, incomplete) if name not in recipe.packaged_names()]


def runs_and_recipes(context: Context, incomplete: str) -> list[str]:
    """Return runs and packaged recipes."""
    return runs(context, incomplete) + recipes(incomplete)


def stores(context: Context, incomplete: str) -> list[str]:
    """Return the names of the token stores in --data-dir."""
    directory = _directory(context, "data_dir", default_data_dir())
    return _matching(sorted(path.stem for path in directory.glob("*.h5")), incomplete)


def exports(context: Context, incomplete: str) -> list[str]:
    """Return what `txl export` accepts: runs and token stores."""
    return list(dict.fromkeys(runs(context, incomplete) + stores(context, incomplete)))


def benchmarks(incomplete: str) -> list[str]:
    """Return the names of the corpora."""
    return _matching(list(corpora.CORPORA), incomplete)


def settings(incomplete: str) -> list[str]:
    """Return the settings, as SECTION.KEY=."""
    return _matching([f"{name}=" for name in recipe.setting_names()], incomplete)


def reproductions(incomplete: str) -> list[str]:
    """Return what `txl reproduce` accepts: tables, figures, `all` and `frontier`."""
    return _matching([*REPRODUCIBLE, ALL_ITEMS], incomplete)


def _directory(context: Context, option: str, default: Path) -> Path:
    return Path(context.params.get(option) or default)


def _matching(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
