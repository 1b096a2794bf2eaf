"""The recipe for a token store of the user's own."""

from pathlib import Path

from txlcli.config import recipe

RECIPES = {"byte": "stdlib", "char": "stdlib", "word": "ptb-small", "piece": "ptb-small", "id": "ptb-small"}
"""Small packaged recipe for each unit of a store."""


def is_store(name: str, data_dir: Path) -> bool:
    """Return True if a name belongs to a token store, and neither a recipe file nor a packaged recipe."""
    is_recipe = Path(name).is_file() or name.removesuffix(".toml") in recipe.packaged_names()
    return not is_recipe and (data_dir / f"{name}.h5").is_file()
