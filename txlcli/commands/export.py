"""`txl export`: write a run or a token store as files of other systems."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Force, Json, RunsDir
from txlcli.errors import UsageError
from txlcli.runs import run_directory
from txlcli.views import exchange

FormatName = Literal["huggingface", "nanogpt", "llm.c", "megatron", "parquet"]


def export(
    name: Annotated[
        str, Argument(metavar="RUN|STORE", help="Run or token store to export.", autocompletion=completion.exports)
    ],
    directory: Annotated[Path, Argument(metavar="FOLDER", help="Folder for the files; created if missing.")],
    format: Annotated[
        FormatName,
        Option(
            help="huggingface for a run; nanogpt, llm.c (.bin), megatron (.bin and .idx) or parquet (text) for a store."
        ),
    ] = "huggingface",
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Export a run for Hugging Face, or the tokens or text of a store.

    A run becomes a TransfoXL folder: config.json and model.safetensors for transformers up to version 4, and the
    vocabulary; "txl import" reads it back. A store becomes one file per split, of ids or of text, and the vocabulary;
    "txl prepare" reads them back.

    Example: txl export runs/wt103 hf-wt103/
    """
    if format == "huggingface":
        _export_run(name, directory, data_dir, runs_dir, force=force, json=json)
        return
    from txlcli.data.token_store import TokenStore
    from txlcli.workflows.exchange import export_store as workflow

    path = Path(name) if name.endswith(".h5") else data_dir / f"{name}.h5"
    if not path.exists() and run_directory.is_run(name, runs_dir):
        raise UsageError(f"{name} is a run; export its token store, or leave out --format {format}")
    result = workflow.export_store(
        TokenStore.open(path), directory, format, force=force, reporter=console.TerminalReporter()
    )
    console.show_result(result, exchange.show_store_export, json=json)


def _export_run(run_name: str, directory: Path, data_dir: Path, runs_dir: Path, *, force: bool, json: bool) -> None:
    is_store = (data_dir / f"{run_name}.h5").is_file() or (run_name.endswith(".h5") and Path(run_name).is_file())
    if is_store and not (runs_dir / run_name).is_dir():
        raise UsageError(f"{run_name} is a token store; give --format nanogpt, llm.c, megatron or parquet")
    run_directory.find(run_name, runs_dir)  # a wrong name is reported before PyTorch is imported
    from txlcli.workflows.exchange import export_run as workflow

    result = workflow.export_run(run_name, directory, runs_dir=runs_dir, force=force)
    console.show_result(result, exchange.show_export, json=json)
