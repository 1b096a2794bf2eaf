"""`txl export`: write a run as files of another system."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from txlcli import console
from txlcli.options import RUNS_DIR, Force, Json, RunsDir
from txlcli.runs import run_folder
from txlcli.views import exchange


def export_run(
    run_name: Annotated[str, Argument(metavar="RUN", help="Run to export.")],
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Folder for the files; created if missing.")],
    force: Force = False,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Export a run as a Hugging Face TransfoXL folder.

    Writes config.json and model.safetensors for transformers up to version 4, and the vocabulary. "txl import" reads
    the folder back.

    Example: txl export runs/wt103 hf-wt103/
    """
    run_folder.find(run_name, runs_dir)  # a wrong name is reported before PyTorch is imported
    from txlcli.workflows.exchange import export_run as workflow

    result = workflow.export_run(run_name, folder, runs_dir=runs_dir, force=force)
    console.show_result(result, exchange.show_export, json=json)
