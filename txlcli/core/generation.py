"""Sampling with memory (Appendix E).

Axes: V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from txlcli.core.decoding import Decoder


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the model's distribution."""

    temperature: float = 1.0
    """Logits are divided by it; below 1 is bolder."""
    top_k: int | None = 40
    """Only the k likeliest tokens can be drawn; None is all."""
    top_p: float | None = None
    """Only the likeliest tokens that together reach this probability can be drawn; None is all."""
    greedy: bool = False
    """Always take the likeliest token."""


def draw(logits: Tensor, how: Sampling, generator: torch.Generator) -> int:
    """Draw one token from logits (V,)."""
    if how.greedy:
        return int(logits.argmax())
    candidates = min(how.top_k or len(logits), len(logits))
    scores, tokens = (logits / how.temperature).topk(candidates)  # likeliest first
    probabilities = scores.softmax(dim=-1)
    if how.top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= how.top_p, 0.0)  # the first always stays
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])


def generate(decoder: Decoder, context: Tensor, how: Sampling, *, seed: int) -> Iterator[int]:
    """Read a context, then draw tokens without end; every token is read with memory, at constant cost.

    Args:
        decoder: of one lane; what it read before is forgotten.
        context: (T,) tokens, at least one.
        how: the sampling.
        seed: the same seed gives the same tokens.
    """
    generator = torch.Generator(device=decoder.device).manual_seed(seed)
    decoder.reset()
    hidden = decoder.read_last(context.to(decoder.device)[None])  # (1, 1, d)
    while True:
        token = draw(decoder.logits(hidden[0, -1]), how, generator)
        yield token
        hidden = decoder.read(torch.tensor([[token]], device=decoder.device))
