"""Writes a run as a directory for Hugging Face Transformers, for its former TransfoXL, or as a program of PyTorch."""

import functools
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from txlcli.config.settings import EvalSettings
from txlcli.core.backend import Attend, ScoreTerms
from txlcli.core.model import attention
from txlcli.core.model.base import Memory
from txlcli.core.model.layer import HiddenMemory
from txlcli.core.model.losses import Objective
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RunError
from txlcli.runs import loading
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.system.input_files import utf8_path
from txlcli.workflows.exchange import export_directory, huggingface, transformers_folder, weights
from txlcli.workflows.exchange.conversion import missing_setting, to_hugging_face
from txlcli.workflows.exchange.huggingface import CONFIG
from txlcli.workflows.exchange.options import ExportOptions
from txlcli.workflows.exchange.transformers_folder import WEIGHTS
from txlcli.workflows.result import Result

WORDS = "vocab.txt"
PROGRAM = "model.pt2"
LOADER = "load.py"
FILES_BY_FORMAT = {
    "transformers": transformers_folder.FILES,
    "hf": (CONFIG, WEIGHTS, WORDS),
    "pt2": (PROGRAM, LOADER),
}
EMPTY_START = (
    "Hugging Face's memory starts with M zero vectors that are attended to, this run's memory started empty: "
    "predictions differ near the beginning of a text"
)
NO_TEMPERATURE = "Hugging Face's model has no temperature: its predictions are those at eval.temperature = 1"
AUTO_TEMPERATURE = (
    "eval.temperature = auto is exported as 1; config.json of `format` transformers has it as softmax_temperature"
)
ONLY_IDS = f"{LOADER} cannot encode text of this vocabulary: import it, and give its function `read` ids"


@dataclass(frozen=True, kw_only=True)
class ExportedRun(Result):
    """A run that was written for Hugging Face, or as a program of PyTorch."""

    run: str
    folder: str
    format: str
    files: tuple[str, ...]
    parameters: int
    notes: tuple[str, ...]


def run(run: Run, directory: Path, options: ExportOptions) -> ExportedRun:
    """Write a run as a directory in one of the formats."""
    opened = loading.open_run(run, device="cpu", precision="fp32")
    notes = []
    if options.format == "transformers":
        transformers_folder.check(opened)
        write = transformers_folder.write
    elif options.format == "pt2":
        transformers_folder.check_architecture(opened)
        write = _write_program
        if opened.vocab.tokenizer not in ("byte", "char", "word"):
            notes.append(ONLY_IDS)
    else:
        _check_settings(opened)
        write = _write_hugging_face
        if not opened.model.memory_starts_full:
            notes.append(EMPTY_START)
    temperature = opened.run.settings.eval.temperature
    if options.format == "hf" and temperature != 1:
        notes.append(NO_TEMPERATURE)
    elif temperature == "auto":
        notes.append(AUTO_TEMPERATURE)
    fill = functools.partial(write, opened)
    names = FILES_BY_FORMAT[options.format]
    return ExportedRun(
        run=str(opened.run.directory),
        folder=str(directory),
        format=options.format,
        files=export_directory.fill(directory, names, fill, opened.vocab, force=options.force),
        parameters=opened.run.parameters,
        notes=tuple(notes),
    )


def _check_settings(opened: OpenRun) -> None:
    """Reject a model that Hugging Face does not have."""
    settings = opened.model.settings
    missing = missing_setting(settings, "hugging_face")
    if missing is None:
        return
    message = f"{opened.run.directory}: {missing}"
    if settings.arch == "transformer":
        other = "transformers"
        if transformers_folder.registered_part(opened.transformer.settings) is not None:
            other = "pt2"
        message += f"; export it with `format` {other}"
    raise RunError(message)


class Program(nn.Module):
    """Reads up to L tokens after a memory of fixed size, by the definition of attention."""

    def __init__(self, model: TransformerXL, settings: EvalSettings) -> None:
        super().__init__()
        self.model = model.on(attention="reference", temperature=settings.fixed_temperature)
        self.settings = settings

    def forward(self, tokens: Tensor, count: Tensor, remembered: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return log-probabilities (B, L, V) of the tokens after each, and the new memory; see standalone.py."""
        settings = self.settings
        empty = memory[0].shape[1] - remembered
        pasts = []
        for past in self.model.pasts(memory, settings.mem_len):
            pasts.append(PartlyEmptyMemory(hidden=past.hidden, attend=AttendWithoutFirst(empty)))
        goal = Objective(mem_len=settings.mem_len, seg_len=count)
        outputs = self.model.read_layers(tokens, pasts, settings.key_limit, settings.max_distance)
        hidden = self.model.final_hidden(outputs[-1].hidden)
        return self.model.log_probs(hidden), self.model.memory_after(pasts, outputs, goal)


@dataclass(frozen=True, kw_only=True)
class PartlyEmptyMemory(HiddenMemory):
    """A memory of fixed size whose first positions hold nothing yet."""

    attend: Attend


class AttendWithoutFirst:
    """Attention by the definition, without the first `empty` keys: the other weights sum to 1 again."""

    def __init__(self, empty: Tensor) -> None:
        self.empty = empty

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Attend from (B, H, L, D) to keys and values (B, H, K, D)."""
        is_key = torch.arange(key.shape[2]) >= self.empty  # (K,)
        weight = is_key.to(value.dtype)[:, None].expand_as(value)
        return attention.attend(query, key, value * weight, terms) / attention.attend(query, key, weight, terms)


def export_program(model: TransformerXL, settings: EvalSettings) -> ExportedProgram:
    """Return a program of a model on the CPU; its example inputs are those at the beginning of a text."""
    memory = model.full_memory(2, settings.mem_len)
    remembered = memory[0].shape[1] if model.memory_starts_full else 0
    inputs = (
        torch.zeros(2, settings.seg_len, dtype=torch.int64),
        torch.tensor(settings.seg_len),
        torch.tensor(remembered),
        memory,
    )
    batch = {0: torch.export.Dim("batch", min=1)}
    shapes = (batch, None, None, [batch] * len(memory))
    with torch.no_grad():
        return torch.export.export(Program(model, settings).eval(), inputs, dynamic_shapes=shapes, strict=False)


def _write_program(opened: OpenRun, draft: Path) -> None:
    program = export_program(opened.transformer, opened.run.settings.evaluation_settings())
    with utf8_path(draft / PROGRAM) as path:
        torch.export.save(program, path)
    shutil.copyfile(str(files("txlcli.workflows.exchange") / "standalone.py"), draft / LOADER)


def _write_hugging_face(opened: OpenRun, draft: Path) -> None:
    model = opened.transformer
    evaluation = opened.run.settings.evaluation_settings()
    config = huggingface.config_of(model.settings, evaluation, model.vocab_size, opened.vocab.boundary)
    exponents = torch.arange(0.0, model.settings.d_model, 2.0) / model.settings.d_model
    constant = {"transformer.pos_emb.inv_freq": 1.0 / 10_000.0**exponents}  # otherwise Hugging Face warns
    weights.write(draft / WEIGHTS, to_hugging_face(model) | constant)
    export_directory.write_json(draft / CONFIG, config)
    if opened.vocab.tokenizer == "word":
        lines = "".join(f"{word}\n" for word in opened.vocab.symbols)
        (draft / WORDS).write_text(lines, encoding="utf-8")
