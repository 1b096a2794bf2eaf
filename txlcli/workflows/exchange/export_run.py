"""Writes a run as a directory that Hugging Face's TransfoXL reads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from txlcli.errors import RunError
from txlcli.exchange import huggingface, vocabularies
from txlcli.exchange.conversion import missing_setting, to_hugging_face
from txlcli.runs import loading
from txlcli.runs.loading import OpenRun
from txlcli.system.atomic_files import replacing
from txlcli.workflows.exchange import export_directory
from txlcli.workflows.options import ExportOptions

FILES = CONFIG, WEIGHTS, VOCAB, WORDS = "config.json", "model.safetensors", "vocab.json", "vocab.txt"
EMPTY_START = (
    "Hugging Face's memory starts with M zero vectors that are attended to, this run's memory started empty: "
    "predictions differ near the beginning of a text"
)


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run that was written for Hugging Face."""

    run: str
    folder: str
    files: tuple[str, ...]
    parameters: int
    notes: tuple[str, ...]


def run(run_name: str, directory: Path, options: ExportOptions, runs_dir: Path) -> ExportedRun:
    """Write a run as a Hugging Face directory."""
    opened = loading.open_run(run_name, runs_dir, device="cpu", precision="fp32")
    model = opened.model
    if (missing := missing_setting(model.settings, "hugging_face")) is not None:
        raise RunError(f"{opened.run.directory}: {missing}")
    evaluation = opened.run.settings.evaluation_settings()
    config = huggingface.config_of(opened.transformer.settings, evaluation, model.vocab_size, opened.vocab.boundary)
    return ExportedRun(
        run=str(opened.run.directory),
        folder=str(directory),
        files=export_directory.fill(directory, FILES, lambda draft: _write(opened, config, draft), force=options.force),
        parameters=opened.run.parameters,
        notes=() if model.memory_starts_full else (EMPTY_START,),
    )


def _write(opened: OpenRun, config: dict[str, Any], draft: Path) -> None:
    frequencies = torch.arange(0.0, config["d_model"], 2.0) / config["d_model"]
    constant = {"transformer.pos_emb.inv_freq": 1.0 / 10_000.0**frequencies}  # otherwise Hugging Face warns
    with replacing(draft / WEIGHTS) as file:
        try:
            save_file(to_hugging_face(opened.transformer) | constant, file, {"format": "pt"})
        except SafetensorError as error:
            raise OSError(0, str(error)) from error
    (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (draft / VOCAB).write_text(opened.vocab.to_json(), encoding="utf-8")
    if opened.vocab.tokenizer == "word":
        vocabularies.write_words(opened.vocab, draft / WORDS)
