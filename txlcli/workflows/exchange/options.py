"""Options of `txl import` and `txl export`, and names of other programs' models, without PyTorch."""

from pathlib import Path
from typing import Literal, TypeGuard, get_args

from txlcli.errors import UsageError
from txlcli.workflows.options import Options, check_given_once, force_option, option, overrides_option

HUGGING_FACE = "hf:"
"""Beginning of the name of a folder with a model of Transformers."""
GGUF = ".gguf"
RunFormat = Literal["transformers", "hf", "pt2"]
StoreFormat = Literal["nanogpt", "llm.c", "megatron", "parquet"]
RUN_FORMATS: tuple[RunFormat, ...] = get_args(RunFormat)


def is_external(name: str | None) -> TypeGuard[str]:
    """Return True for the name of a model of Transformers, hf:FOLDER or a GGUF file; others are runs."""
    return name is not None and (name.startswith(HUGGING_FACE) or name.lower().endswith(GGUF))


class ImportOptions(Options):
    """Options of `txl import`."""

    recipe: str | None = option("Recipe with the settings of a file of weights.", metavar="RECIPE")
    vocab: Path | None = option("File with the vocabulary of the weights.", metavar="FILE")
    store: str | None = option("Token store with that vocabulary [default: the recipe's, or of the folder's name].")
    name: str | None = option("Name of the run [default: name of the source].")
    overrides: tuple[str, ...] = overrides_option()
    force: bool = force_option()

    def _check(self) -> None:
        check_given_once(self.overrides)
        if any(change.partition("=")[0].strip() == "corpus.store" for change in self.overrides):
            raise UsageError("`overrides` corpus.store: select the store with `store` instead")


class ExportOptions(Options):
    """Options of `txl export`."""

    format: Literal[RunFormat, StoreFormat] = option(
        "transformers, hf (the TransfoXL class of transformers 4) or pt2 (a program of PyTorch) for a run; nanogpt, "
        "llm.c (.bin), megatron (.bin and .idx) or parquet (text) for a store.",
        default="transformers",
    )
    force: bool = force_option()
