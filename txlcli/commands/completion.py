"""Names that a shell completes: runs, recipes, stores, settings, corpora, and the tables and figures of the paper."""

from collections.abc import Callable, Iterable
from pathlib import Path

from typer import Context

from txlcli import corpora
from txlcli.config import recipe
from txlcli.runs import run_directory
from txlcli.system.command_lines import default_data_dir, default_runs_dir
from txlcli.workflows.options import ALL_ITEMS, REPRODUCIBLE

NAMES: dict[str, Callable[[Context], Iterable[str]]] = {
    "runs": lambda context: run_directory.names(Path(context.params.get("runs_dir") or default_runs_dir())),
    "recipes": lambda _: recipe.packaged_names(),
    "stores": lambda context: sorted(
        path.stem for path in Path(context.params.get("data_dir") or default_data_dir()).glob("*.h5")
    ),
    "corpora": lambda _: corpora.CORPORA,
    "settings": lambda _: [f"{name}=" for name in recipe.setting_names()],
    "items": lambda _: [*REPRODUCIBLE, ALL_ITEMS],
}


def names_of(*kinds: str) -> Callable[[Context, str], list[str]]:
    """Return a completion with the names of these kinds."""

    def complete(context: Context, incomplete: str) -> list[str]:
        names = dict.fromkeys(name for kind in kinds for name in NAMES[kind](context))
        return [name for name in names if name.startswith(incomplete)]

    return complete
