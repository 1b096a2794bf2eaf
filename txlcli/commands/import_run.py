"""`txl import`: make a run of weights that another system trained."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from txlcli import console
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Json, RunsDir, with_options
from txlcli.workflows.options import ImportOptions

if TYPE_CHECKING:
    from txlcli.workflows.exchange.import_run import ImportedRun


@with_options
def import_run(
    source: Annotated[
        Path, Argument(metavar="FOLDER|FILE", help="A Hugging Face folder, a state dict, or a dump of variables.")
    ],
    options: ImportOptions,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Import released or Hugging Face weights as a run.

    eval, speed and generate work on it as on any other run. A Hugging Face folder contains all settings. A state dict
    of the released PyTorch code, and the variables of a TF checkpoint (.npz or .safetensors), need --recipe.

    Example: txl import transfo-xl-wt103/ --name hf-wt103
    """
    from txlcli.workflows.exchange import import_run as workflow
    from txlcli.workflows.workspace import Workspace

    result = workflow.run(source, options, Workspace(data_dir=data_dir, runs_dir=runs_dir))
    console.show_result(result, _show, json=json)


def _show(result: "ImportedRun") -> None:
    rows = [
        ["weights of", f"{result.system} ({result.source})"],
        ["vocabulary", f"{result.vocab_size:,} symbols"],
        ["line end, unknown", f"{result.boundary or 'none'}, {result.unknown or 'none'}"],
        ["norm, cutoffs", f"{result.norm}, {list(result.cutoffs) or 'none'} (from {result.settings_from})"],
        ["token store", result.store or "none with this vocabulary yet"],
        ["next", result.next],
    ]
    console.show_table(f"{result.run}: {result.parameters:,} parameters", ("", ""), rows)
