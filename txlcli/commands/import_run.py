"""`txl import`: make a run of weights that another system trained."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Force, Json, Overrides, RunsDir
from txlcli.views import exchange


def import_run(
    source: Annotated[
        Path, Argument(metavar="FOLDER|FILE", help="A Hugging Face folder, a state dict, or a dump of variables.")
    ],
    recipe_source: Annotated[
        str | None,
        Option(
            "--recipe",
            metavar="RECIPE",
            help="Recipe with the settings of a file of weights.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    vocab: Annotated[Path | None, Option(metavar="FILE", help="File with the vocabulary of the weights.")] = None,
    store: Annotated[
        str | None,
        Option(
            help="Token store with that vocabulary [default: the only store that has it].",
            autocompletion=completion.stores,
        ),
    ] = None,
    name: Annotated[str | None, Option(help="Name of the run [default: name of the source].")] = None,
    overrides: Overrides = None,
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Import released or Hugging Face weights as a run.

    eval, speed and generate work on it as on any other run. A Hugging Face folder contains all settings. A state dict
    of the released PyTorch code, and the variables of a TF checkpoint (.npz or .safetensors), need --recipe.

    Example: txl import transfo-xl-wt103/ --name hf-wt103
    """
    from txlcli.workflows.exchange.options import ImportOptions, check_options

    options = ImportOptions(
        source=source,
        recipe_source=recipe_source,
        vocab=vocab,
        store=store,
        name=name,
        changes=tuple(overrides or ()),
        force=force,
    )
    check_options(options)  # before PyTorch is imported
    from txlcli.workflows.exchange import import_run as workflow
    from txlcli.workflows.workspace import Workspace

    result = workflow.import_run(options, Workspace(data_dir=data_dir, runs_dir=runs_dir))
    console.show_result(result, exchange.show_import, json=json)
