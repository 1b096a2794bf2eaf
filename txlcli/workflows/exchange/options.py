"""Options of an import, checked before PyTorch is imported."""

import re
from dataclasses import dataclass
from pathlib import Path

from txlcli.config import recipe
from txlcli.config.settings import PLAIN_NAME, plain_name
from txlcli.errors import RunError, UsageError
from txlcli.exchange import huggingface
from txlcli.runs import run_directory
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import check_regular


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options of an import."""

    source: Path
    """Hugging Face directory, or a file of weights."""
    recipe_source: str | None = None
    """Recipe with the settings that the source does not contain."""
    vocab: Path | None = None
    """File with the vocabulary of the weights."""
    store: str | None = None
    """Name of a token store with that vocabulary."""
    name: str | None = None
    """Name of the run; None for the name of the source."""
    changes: tuple[str, ...] = ()
    """Overrides of settings, as --set takes them."""
    force: bool = False
    """True if an earlier run of that name may be replaced."""


def check_options(options: ImportOptions) -> None:
    """Check what can be checked without PyTorch.

    Raises:
        RunError: the source is missing, a run already, or a directory without weights or configuration.
        UsageError: an option is wrong, or the recipe is missing.
    """
    source = options.source
    if not check_regular(source).exists():
        raise RunError(f"no file or folder at {source}; give a Hugging Face folder or a file of weights")
    if (source / run_directory.CARD).is_file():
        raise RunError(f'{source} is already a run; evaluate it with "{command_line("eval", str(source))}"')
    if options.name is not None and not re.fullmatch(PLAIN_NAME, options.name):
        raise UsageError(f'--name "{options.name}" is not a plain name; use letters, digits, ".", "-" and "_"')
    if any(change.partition("=")[0].strip() == "corpus.store" for change in options.changes):
        raise UsageError("--set corpus.store: name the store with --store, or leave it out to find it by vocabulary")
    if source.is_dir():
        huggingface.file_of_weights(source)
        huggingface.read_config(source)
    elif options.recipe_source is None:
        raise UsageError(
            f"{source}: a file of weights does not contain the number of heads, the cutoffs or the corpus; "
            "name its recipe, e.g. --recipe wt103-large-tf"
        )
    if options.recipe_source is not None:
        recipe.load(options.recipe_source, () if source.is_dir() else options.changes)


def run_name(source: Path) -> str:
    """Derive the name of a run from the name of its source."""
    return plain_name(source.resolve(), otherwise="imported")
