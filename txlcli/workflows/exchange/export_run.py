"""Writes a run as a folder that Hugging Face's TransfoXL reads."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.data.vocabulary import Vocab
from txlcli.errors import RunError
from txlcli.exchange import huggingface, vocabularies
from txlcli.exchange.conversion import to_hugging_face
from txlcli.runs import loading
from txlcli.system.atomic_files import replacing

FILES = CONFIG, WEIGHTS, VOCAB, WORDS = "config.json", "model.safetensors", "vocab.json", "vocab.txt"
DRAFT = ".new"
EMPTY_START = (
    "Hugging Face's memory starts with M zero vectors that are attended to, this run's memory started empty: "
    "predictions differ near the beginning of a text"
)


def export_run(run_name: str, folder: Path, *, runs_dir: Path, force: bool) -> dict[str, Any]:
    """Write a run as a Hugging Face folder, and return what was written.

    Raises:
        RunError: Hugging Face's TransfoXL has no such model; the folder is in use or cannot be written.
    """
    opened = loading.open_run(run_name, runs_dir, device="cpu", precision="fp32")
    run, model = opened.run, opened.model
    config = huggingface.config_of(
        model.settings, run.settings.evaluation_settings(), model.vocab_size, opened.vocab.boundary
    )
    _check_free(folder, force=force)
    return {
        "run": str(run.folder),
        "folder": str(folder),
        "files": _write(opened.transformer, opened.vocab, config, folder),
        "parameters": run.parameters,
        "notes": [] if model.memory_starts_full else [EMPTY_START],
    }


def _check_free(folder: Path, *, force: bool) -> None:
    """Refuse a folder that is not empty, unless `force` may replace an earlier export and nothing else is in it."""
    held = {path.name for path in folder.iterdir()} - {DRAFT} if folder.is_dir() else set()
    if held and force and not held <= set(FILES):
        other = min(held - set(FILES))
        raise RunError(f"{folder} holds {other}, which no export wrote; give another folder, or empty this one")
    if (folder.exists() and not folder.is_dir()) or (held and not force):
        raise RunError(f"{folder} exists; give another folder, or replace an earlier export with --force")


def _write(model: TransformerXL, vocab: Vocab, config: dict[str, Any], folder: Path) -> list[str]:
    """Write the files of an export and remove those of an earlier one; return their names.

    The files are written to a draft folder first, so that an error leaves the earlier export as it was.
    """
    is_new = not folder.exists()
    draft = folder / DRAFT
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of an export that was killed
        draft.mkdir(parents=True)
        _write_draft(model, vocab, config, draft)
        written = sorted(path.name for path in draft.iterdir())
        for name in written:
            (draft / name).replace(folder / name)
        for name in set(FILES) - set(written):
            (folder / name).unlink(missing_ok=True)
        return written
    except (OSError, SafetensorError) as error:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise RunError(f"{folder}: cannot be written ({error}); check the folder and the free space") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_draft(model: TransformerXL, vocab: Vocab, config: dict[str, Any], draft: Path) -> None:
    with replacing(draft / WEIGHTS) as file:
        frequencies = torch.arange(0.0, config["d_model"], 2.0) / config["d_model"]
        constant = {"transformer.pos_emb.inv_freq": 1.0 / 10_000.0**frequencies}  # otherwise Hugging Face warns
        save_file(to_hugging_face(model) | constant, file, {"format": "pt"})
    (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (draft / VOCAB).write_text(vocab.to_json(), encoding="utf-8")
    if vocab.tokenizer == "word":
        vocabularies.write_words(vocab, draft / WORDS)
