"""Writes a Transformer as a program that plain PyTorch runs, for configurations that no other system has."""

from pathlib import Path

import torch
from torch import Tensor, nn

from txlcli.config.settings import EvalSettings
from txlcli.core.backend import ScoreTerms
from txlcli.core.model import attention
from txlcli.core.model.base import Memory
from txlcli.core.model.losses import Objective
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.decoder import key_limit


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
        limit = key_limit(settings.same_length, settings.mem_len)
        outputs, memory = model._read(tokens, pasts, goal, limit, settings.max_distance)
        self.empty.pop()  # PyTorch warns of tensors that are left in a module
        return model.log_probs(model._final(outputs[-1].hidden)), memory


def write(model: TransformerXL, settings: EvalSettings, path: Path) -> None:
    """Export a model on the CPU in float32; the example inputs are those at the beginning of a text."""
    memory = model.full_memory(2, settings.mem_len)
    remembered = memory[0].shape[1] if model.memory_starts_full else 0
    tokens = torch.zeros(2, settings.seg_len, dtype=torch.int64)
    inputs = tokens, torch.tensor(settings.seg_len), torch.tensor(remembered), memory
    batch = {0: torch.export.Dim("batch", min=1)}
    shapes = batch, None, None, [batch for _ in memory]
    with torch.no_grad():
        program = torch.export.export(Program(model, settings).eval(), inputs, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path)
