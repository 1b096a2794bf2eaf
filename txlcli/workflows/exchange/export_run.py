"""Writes a run as a directory that Hugging Face's TransfoXL reads."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.data.vocabulary import Vocab
from txlcli.exchange import huggingface, vocabularies
from txlcli.exchange.conversion import to_hugging_face
from txlcli.runs import loading
from txlcli.system.atomic_files import replacing
from txlcli.workflows.exchange import export_directory

FILES = CONFIG, WEIGHTS, VOCAB, WORDS = "config.json", "model.safetensors", "vocab.json", "vocab.txt"
EMPTY_START = (
    "Hugging Face's memory starts with M zero vectors that are attended to, this run's memory started empty: "
    "predictions differ near the beginning of a text"
)


def export_run(run_name: str, directory: Path, *, runs_dir: Path, force: bool) -> dict[str, Any]:
    """Write a run as a Hugging Face directory, and return what was written.

    Raises:
        RunError: Hugging Face's TransfoXL has no such model.
        ExportError: the directory is in use, or cannot be written.
        BusyError: another process writes the directory.
    """
    opened = loading.open_run(run_name, runs_dir, device="cpu", precision="fp32")
    run, model = opened.run, opened.model
    config = huggingface.config_of(
        model.settings, run.settings.evaluation_settings(), model.vocab_size, opened.vocab.boundary
    )
    export_directory.check_free(directory, FILES, force=force)
    return {
        "run": str(run.directory),
        "folder": str(directory),
        "files": export_directory.fill(
            directory, FILES, lambda draft: _write(opened.transformer, opened.vocab, config, draft), force=force
        ),
        "parameters": run.parameters,
        "notes": [] if model.memory_starts_full else [EMPTY_START],
    }


def _write(model: TransformerXL, vocab: Vocab, config: dict[str, Any], draft: Path) -> None:
    with replacing(draft / WEIGHTS) as file:
        frequencies = torch.arange(0.0, config["d_model"], 2.0) / config["d_model"]
        constant = {"transformer.pos_emb.inv_freq": 1.0 / 10_000.0**frequencies}  # otherwise Hugging Face warns
        try:
            save_file(to_hugging_face(model) | constant, file, {"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
    (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (draft / VOCAB).write_text(vocab.to_json(), encoding="utf-8")
    if vocab.tokenizer == "word":
        vocabularies.write_words(vocab, draft / WORDS)
