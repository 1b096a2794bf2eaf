"""Writes a run as a directory that Hugging Face's TransfoXL reads, or as a program that plain PyTorch runs."""

import json
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from txlcli.config.settings import EvalSettings
from txlcli.core.backend import ScoreTerms
from txlcli.core.model import attention
from txlcli.core.model.base import Memory
from txlcli.core.model.losses import Objective
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RunError
from txlcli.exchange import huggingface, vocabularies
from txlcli.exchange.conversion import missing_setting, to_hugging_face
from txlcli.runs import loading
from txlcli.runs.loading import OpenRun
from txlcli.system.atomic_files import replacing
from txlcli.workflows.exchange import export_directory
from txlcli.workflows.options import ExportOptions

FILES = CONFIG, WEIGHTS, VOCAB, WORDS = "config.json", "model.safetensors", "vocab.json", "vocab.txt"
PROGRAM, LOADER = "model.pt2", "load.py"
EMPTY_START = (
    "Hugging Face's memory starts with M zero vectors that are attended to, this run's memory started empty: "
    "predictions differ near the beginning of a text"
)

ONLY_IDS = f"{LOADER} cannot encode text of this vocabulary: import it, and give its function `read` ids"


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run that was written for Hugging Face, or as a program of PyTorch."""

    run: str
    folder: str
    files: tuple[str, ...]
    parameters: int
    notes: tuple[str, ...]


def run(run_name: str, directory: Path, options: ExportOptions, runs_dir: Path) -> ExportedRun:
    """Write a run as a Hugging Face directory, or as a program with the file that runs it."""
    opened = loading.open_run(run_name, runs_dir, device="cpu", precision="fp32")
    model, is_program = opened.model, options.format == "pt2"
    arch = model.settings.arch
    if is_program and arch != "transformer":
        raise RunError(f'{opened.run.directory}: only arch = "transformer" can be exported, not "{arch}"')
    if not is_program and (missing := missing_setting(model.settings, "hugging_face")) is not None:
        raise RunError(f"{opened.run.directory}: {missing}" + "; export it with `format` pt2" * (arch == "transformer"))
    names, write = ((PROGRAM, LOADER, VOCAB), _write_program) if is_program else (FILES, _write)
    return ExportedRun(
        run=str(opened.run.directory),
        folder=str(directory),
        files=export_directory.fill(directory, names, lambda draft: write(opened, draft), force=options.force),
        parameters=opened.run.parameters,
        notes=_notes(opened, is_program=is_program),
    )


def _notes(opened: OpenRun, *, is_program: bool) -> tuple[str, ...]:
    """Return what a user of the export has to know."""
    if is_program:
        return () if opened.vocab.tokenizer in ("byte", "char", "word") else (ONLY_IDS,)
    return () if opened.model.memory_starts_full else (EMPTY_START,)


class Program(nn.Module):
    """Reads up to L tokens after a memory of fixed size, by the definition of attention."""

    def __init__(self, model: TransformerXL, settings: EvalSettings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.empty: list[Tensor] = []
        """Positions at the beginning of the memory that hold nothing yet, 0-d, of the call that is traced."""
        model.set_attention_backend("reference")
        for layer in model.layers:
            layer.attention.attend = self.attend

    def attend(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Attend as the definition does, without empty positions: the weights of the others sum to 1 again."""
        known = (torch.arange(key.shape[2]) >= self.empty[-1]).to(value.dtype)[:, None].expand_as(value)
        return attention.attend(query, key, value * known, terms) / attention.attend(query, key, known, terms)

    def forward(self, tokens: Tensor, count: Tensor, remembered: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return log-probabilities (B, L, V) of the tokens after each, and the new memory; see standalone.py."""
        model, settings = self.model, self.settings
        self.empty.append(memory[0].shape[1] - remembered)
        pasts, goal = model.pasts(memory, settings.mem_len), Objective(mem_len=settings.mem_len, seg_len=count)
        limit = settings.key_limit
        outputs, memory = model._read(tokens, pasts, goal, limit, settings.max_distance)
        self.empty.pop()  # PyTorch warns of tensors that are left in a module
        return model.log_probs(model._final(outputs[-1].hidden)), memory


def _write_program(opened: OpenRun, draft: Path) -> None:
    """Export a model on the CPU in float32; the example inputs are those at the beginning of a text."""
    model, settings = opened.transformer, opened.run.settings.evaluation_settings()
    memory = model.full_memory(2, settings.mem_len)
    remembered = memory[0].shape[1] if model.memory_starts_full else 0
    tokens = torch.zeros(2, settings.seg_len, dtype=torch.int64)
    inputs = tokens, torch.tensor(settings.seg_len), torch.tensor(remembered), memory
    batch = {0: torch.export.Dim("batch", min=1)}
    shapes = batch, None, None, [batch for _ in memory]
    with torch.no_grad():
        program = torch.export.export(Program(model, settings).eval(), inputs, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, draft / PROGRAM)
    (draft / VOCAB).write_text(opened.vocab.to_json(), encoding="utf-8")
    shutil.copyfile(str(files("txlcli.exchange") / "standalone.py"), draft / LOADER)


def _write(opened: OpenRun, draft: Path) -> None:
    evaluation = opened.run.settings.evaluation_settings()
    vocab_size, boundary = opened.model.vocab_size, opened.vocab.boundary
    config = huggingface.config_of(opened.transformer.settings, evaluation, vocab_size, boundary)
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
