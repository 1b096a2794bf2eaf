"""Sampling with memory (Appendix E).

Axes: V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.windows import WindowReader


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the model's distribution."""

    temperature: float = 1.0
    """Logits are divided by it; below 1 keeps to likely tokens."""
    top_k: int | None = 40
    """Only the k likeliest tokens can be drawn; None is all."""
    top_p: float | None = None
    """Only the likeliest tokens that together reach this probability can be drawn; None is all."""
    greedy: bool = False
    """Always take the likeliest token."""

    def candidates(self, vocab_size: int) -> int:
        """How many of the likeliest tokens must be known to draw one."""
        return 1 if self.greedy else min(self.top_k or vocab_size, vocab_size)


def reader_of_one_text(model: LanguageModel, how: EvalSettings, *, precision: str) -> Reader:
    """What reads a text while it is drawn: with memory at constant cost, or by windows where the model has none.

    Raises:
        UsageError: the model has learned fewer positions than a segment has.
    """
    if not model.has_recurrent_state and how.mem_len == 0:
        attends = cast(TransformerXL, model)
        return WindowReader(attends, attn_len=how.seg_len, precision=precision, max_distance=how.max_distance)
    return make_reader(model, how, lanes=1, precision=precision)


def draw(log_probs: Tensor, tokens: Tensor, how: Sampling, generator: torch.Generator) -> Tensor:
    """Draw one of the candidates, (1,), given their log-probabilities (k,) and ids (k,), likeliest first."""
    if how.greedy:
        return tokens[:1]
    probabilities = (log_probs / how.temperature).softmax(dim=-1)
    if how.top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= how.top_p, 0.0)  # the first always stays
    return tokens[torch.multinomial(probabilities, 1, generator=generator)]


def generate(reader: Reader, context: Tensor, how: Sampling, *, seed: int) -> Iterator[int]:
    """Read a context, then draw tokens without end, each read before the next is drawn.

    Args:
        reader: of one lane; what it read before is forgotten.
        context: (T,) tokens, at least one.
        how: the sampling.
        seed: the same seed gives the same tokens.
    """
    generator = torch.Generator(device=reader.device).manual_seed(seed)
    candidates = how.candidates(reader.model.vocab_size)
    reader.reset()
    hidden = reader.read_last(context.to(reader.device)[None])  # (1, 1, d)
    while True:
        token = draw(*reader.likeliest(hidden[0, -1:], candidates), how, generator)
        yield int(token)
        hidden = reader.read(token[None])
