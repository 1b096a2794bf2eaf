"""`txl export`: write a run as another system's files."""

import json as json_
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.errors import RunError
from txlcli.options import RUNS_DIR, Device, Force, Json, RunsDir

if TYPE_CHECKING:
    from txlcli.opening import OpenRun

COLD_START = (
    "their memory starts with M zero vectors that are attended to, this run's started empty: "
    "the first M predictions of a text differ"
)


def export_run(
    wanted: Annotated[str, typer.Argument(metavar="RUN", help="A run.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; made where it is missing.")],
    force: Force = False,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Write a run as a Hugging Face TransfoXL folder.

    config.json and model.safetensors, for transformers up to version 4; the vocabulary beside them. "txl import" reads
    it back.

    Example: txl export runs/wt103 hf-wt103/
    """
    from txlcli import opening
    from txlcli.exchange import huggingface

    opened = opening.open_run(wanted, runs_dir, device=Device.cpu.value, precision="fp32")
    run, model = opened.run, opened.model
    boundary = opened.vocab.boundary
    config = huggingface.config_of(model.settings, opening.resolved_reading(run), model.vocab_size, boundary)
    if folder.exists() and not (folder.is_dir() and (force or not any(folder.iterdir()))):
        raise RunError(f"{folder} exists; give another folder, or replace it with --force")
    files = _write(opened, config, folder)
    notes = [COLD_START] if model.settings.memory_start == "empty" else []
    told = {"run": str(run.folder), "folder": str(folder), "files": files, "parameters": run.parameters, "notes": notes}
    if json:
        console.show_json(told)
        return
    rows = [["files", ", ".join(files)], *(["note", note] for note in notes), ["reads back", f"txl import {folder}"]]
    console.show_table(f"{run.folder} as {folder}", ("", ""), rows)


def _write(opened: "OpenRun", config: dict[str, Any], folder: Path) -> list[str]:
    """The files, all or none; gives their names."""
    from safetensors.torch import save_file

    from txlcli.core.conversion import to_hugging_face
    from txlcli.exchange import huggingface, vocabularies, weights

    beside = folder.with_name(f".{folder.name}.new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        save_file(to_hugging_face(opened.model), beside / weights.WEIGHTS[0], {"format": "pt"})
        (beside / huggingface.CONFIG).write_text(json_.dumps(config, indent=2) + "\n", encoding="utf-8")
        (beside / vocabularies.FILES[0]).write_text(opened.vocab.to_json(), encoding="utf-8")
        if opened.vocab.kind == "word":
            vocabularies.write_words(opened.vocab, beside / vocabularies.FILES[-1])
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(beside, folder)
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written ({error.strerror}); check the folder and the free space"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return sorted(path.name for path in folder.iterdir())
