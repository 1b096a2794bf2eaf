"""`txl import` and `txl export`: exchange weights, tokens and text with other systems."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from txlcli import console
from txlcli.commands.options import Json, argument
from txlcli.errors import UsageError
from txlcli.runs import run_directory
from txlcli.workflows.exchange.options import RUN_FORMATS, ExportOptions, ImportOptions
from txlcli.workflows.workspace import Workspace

if TYPE_CHECKING:
    from txlcli.workflows.exchange.export_run import ExportedRun
    from txlcli.workflows.exchange.export_store import ExportedStore
    from txlcli.workflows.exchange.import_run import ImportedRun


def import_run(
    source: Annotated[
        Path, Argument(metavar="FOLDER|FILE", help="A Hugging Face folder, a state dict, or a dump of variables.")
    ],
    options: ImportOptions,
    workspace: Workspace,
    json: Json = False,
) -> None:
    """Import released or Hugging Face weights as a run.

    eval, speed and generate work on it as on any other run. A Hugging Face folder contains all settings. A state dict
    of the released PyTorch code, and the variables of a TF checkpoint (.npz or .safetensors), need --recipe.

    Example: txl import transfo-xl-wt103/ --name hf-wt103
    """
    from txlcli.workflows.exchange import import_run as workflow

    console.show_result(workflow.run(source, options, workspace), _show_import, json=json)


def _show_import(result: "ImportedRun") -> None:
    facts = {
        "weights of": f"{result.system} ({result.source})",
        "vocabulary": f"{result.vocab_size:,} symbols",
        "line end, unknown": f"{result.boundary or 'none'}, {result.unknown or 'none'}",
        "norm, cutoffs": f"{result.norm}, {list(result.cutoffs) or 'none'} (from {result.settings_from})",
        "token store": result.store or "none chosen; --store selects one with this vocabulary",
        "next": result.next,
    }
    console.show_facts(f"{result.run}: {result.parameters:,} parameters", facts, result.notes)


def export(
    name: Annotated[
        str,
        argument("RUN|STORE", "Run or token store to export.", "runs", "stores"),
    ],
    directory: Annotated[Path, Argument(metavar="FOLDER", help="Folder for the files; created if missing.")],
    options: ExportOptions,
    workspace: Workspace,
    json: Json = False,
) -> None:
    """Export a run for other programs, or the tokens or text of a store.

    A run becomes a folder that Hugging Face Transformers 5 opens, with its model code, tokenizer and model card. With
    --format hf it becomes a folder of the TransfoXL class of Transformers 4, which "txl import" reads back; with
    --format pt2 a program that PyTorch runs without txl. A store becomes one file per split, of ids or of text, and
    the vocabulary; "txl prepare" reads them back.

    Example: txl export runs/wt103 wt103-model/
    """
    path = workspace.store_path(name)
    is_run = run_directory.is_run(name, workspace.runs_dir)
    if options.format in RUN_FORMATS:
        if path.is_file() and not is_run:
            raise UsageError(f"{name} is a token store; give --format nanogpt, llm.c, megatron or parquet")
        run = run_directory.find(name, workspace.runs_dir)
        from txlcli.workflows.exchange import export_run

        console.show_result(export_run.run(run, directory, options), _show_run, json=json)
        return
    from txlcli.data.token_store import TokenStore
    from txlcli.workflows.exchange import export_store
    from txlcli.workflows.preparation.preparing import prepare_again

    if is_run and not path.exists():
        raise UsageError(f"{name} is a run; export its token store, or leave out --format {options.format}")
    result = export_store.run(TokenStore.open(path), directory, options, workspace.reporter, prepare_again)
    console.show_result(result, _show_store, json=json)


def _show_run(result: "ExportedRun") -> None:
    from txlcli.workflows.exchange.export_run import ONLY_IDS

    folder = shlex.quote(result.folder)
    command: str | None = None
    if result.format == "transformers":
        command = f"AutoModelForCausalLM.from_pretrained({result.folder!r}, trust_remote_code=True)"
    elif result.format == "hf":
        command = f"txl import {folder}"
    elif ONLY_IDS not in result.notes:
        command = f"python {folder}/load.py score FILE"
    facts = {"files": ", ".join(result.files), "next": command}
    console.show_facts(f"{result.run} as {result.folder}", facts, result.notes)


def _show_store(result: "ExportedStore") -> None:
    facts = {
        "files": ", ".join(result.files),
        "tokens": ", ".join(f"{split} {count:,}" for split, count in result.tokens.items()),
        "dtype": result.dtype,
        "prepare again": f"txl prepare {shlex.quote(result.folder)}",
    }
    console.show_facts(f"{result.store} as {result.format} files in {result.folder}", facts, result.notes)
