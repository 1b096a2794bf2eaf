"""`txl export`: write a run as another system's files."""

import json as json_
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.errors import RunError
from txlcli.options import RUNS_DIR, Device, Force, Json, RunsDir
from txlcli.system.atomic_files import replacing

if TYPE_CHECKING:
    from txlcli.core.model.transformer_xl import TransformerXL
    from txlcli.data.vocabulary import Vocab

FILES = CONFIG, WEIGHTS, VOCAB, WORDS = "config.json", "model.safetensors", "vocab.json", "vocab.txt"
DRAFT = ".new"
COLD_START = (
    "their memory starts with M zero vectors that are attended to, this run's started empty: "
    "predictions differ near the beginning of a text"
)


def export_run(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="A run.")],
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
    from txlcli.core.model.transformer_xl import TransformerXL
    from txlcli.exchange import huggingface
    from txlcli.runs import loading

    opened = loading.open_run(run_name, runs_dir, device=Device.cpu.value, precision="fp32")
    run, model = opened.run, opened.model
    boundary = opened.vocab.boundary
    config = huggingface.config_of(model.settings, run.settings.evaluation_settings(), model.vocab_size, boundary)
    assert isinstance(model, TransformerXL)  # nothing else has a configuration
    _check_free(folder, force=force)
    files = _write(model, opened.vocab, config, folder)
    notes = [COLD_START] if model.settings.memory_start == "empty" else []
    result = {
        "run": str(run.folder),
        "folder": str(folder),
        "files": files,
        "parameters": run.parameters,
        "notes": notes,
    }
    if json:
        console.show_json(result)
        return
    rows = [
        ["files", ", ".join(files)],
        *(["note", note] for note in notes),
        ["reads back", shlex.join(["txl", "import", str(folder)])],
    ]
    console.show_table(f"{run.folder} as {folder}", ("", ""), rows)


def _check_free(folder: Path, *, force: bool) -> None:
    """Refuse a folder that holds anything, unless `force` may replace it and it holds nothing but an export."""
    held = {path.name for path in folder.iterdir()} - {DRAFT} if folder.is_dir() else set()
    if held and force and not held <= set(FILES):
        strange = min(held - set(FILES))
        raise RunError(f"{folder} holds {strange}, which no export wrote; give another folder, or empty this one")
    if (folder.exists() and not folder.is_dir()) or (held and not force):
        raise RunError(f"{folder} exists; give another folder, or replace an earlier export with --force")


def _write(model: "TransformerXL", vocab: "Vocab", config: dict[str, Any], folder: Path) -> list[str]:
    """The files, each whole or not at all, and none of an earlier export; gives their names."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from txlcli.exchange import vocabularies
    from txlcli.exchange.conversion import to_hugging_face

    made = not folder.exists()
    draft = folder / DRAFT
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of an export that was killed
        draft.mkdir(parents=True)
        with replacing(draft / WEIGHTS) as file:
            save_file(to_hugging_face(model), file, {"format": "pt"})
        (draft / CONFIG).write_text(json_.dumps(config, indent=2) + "\n", encoding="utf-8")
        (draft / VOCAB).write_text(vocab.to_json(), encoding="utf-8")
        if vocab.tokenizer == "word":
            vocabularies.write_words(vocab, draft / WORDS)
        written = sorted(path.name for path in draft.iterdir())
        for name in written:
            (draft / name).replace(folder / name)
        for name in set(FILES) - set(written):
            (folder / name).unlink(missing_ok=True)
        return written
    except (OSError, SafetensorError) as error:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise RunError(f"{folder}: cannot be written ({error}); check the folder and the free space") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
