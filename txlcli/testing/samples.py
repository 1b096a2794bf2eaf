"""Small models, texts and runs, on which a class is checked.

Axes: B batch, T tokens, L segment, M memory, d model width, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.config.train_settings import JITTER_MARGIN
from txlcli.core.reading.reader import Reader
from txlcli.core.training.loop import Training
from txlcli.errors import UsageError

V = 19
B = 3
L = 4
M = 6
SEGMENT_LENGTHS = (L, L - 1, 1)
"""Lengths of segments of which a text is read: even, odd, and single tokens."""
MEMORY_LENGTHS = (M, 2, 4 * M)
"""Lengths of memory: longer than a segment, shorter, and longer than in training."""
LANES = 4
STEPS = 6
SMALL = {
    "n_layers": 2,
    "d_model": 12,
    "n_heads": 3,
    "d_head": 8,
    "d_inner": 18,
    "n_positions": L + JITTER_MARGIN,
    "compressed_len": 3,
    "compression_rate": 2,
    "segment_len": L,
    "n_memory_tokens": 2,
}
"""Values of settings without a default, and of those whose default is too large for a small model."""


def small_settings(name: str, given: dict[str, object]) -> ModelSettings:
    """Return settings of a small model of an architecture, without dropout."""
    for key, value in given.items():
        if key.endswith("dropout") and value:
            raise UsageError(f"{key} must be 0: the checks compare what a model computes twice")
    cls = MODELS[name]
    values: dict[str, object] = {"arch": name, "dropout": 0.0}
    for field in dataclasses.fields(cls):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        is_too_large = field.name in ("compression_rate", "n_memory_tokens")
        if field.name in SMALL and (is_required or is_too_large):
            values[field.name] = SMALL[field.name]
    return cls(**{**values, **given})  # type: ignore[arg-type]


def draw_tokens(lanes: int, count: int) -> Tensor:
    """Return random tokens (lanes, count)."""
    return torch.randint(V, (lanes, count), generator=torch.Generator().manual_seed(2))


def read_parts(reader: Reader, tokens: Tensor, lengths: list[int]) -> Tensor:
    """Return the last hidden states (B, T, d) of tokens read in parts of these lengths, over and over."""
    parts = [reader.read(part) for part in parts_of(tokens, lengths)]
    return torch.cat(parts, dim=1)


def parts_of(tokens: Tensor, lengths: list[int]) -> Iterator[Tensor]:
    """Cut tokens (B, T) into parts of these lengths, over and over."""
    start = 0
    while start < tokens.shape[1]:
        for length in lengths:
            part = tokens[:, start : start + length]
            start += length
            if part.shape[1]:
                yield part


def finish(training: Training, step: int = STEPS) -> None:
    """Train up to a step, and save."""
    for _ in training.run(report_every=STEPS, should_stop=lambda: training.step >= step):
        pass


def call_again(run: Callable[..., object], device: torch.device, *, warm_up: int = 0) -> Callable[..., object]:
    """Stand in for a CUDA graph: a replay calls the function again, on the same tensors."""
    return run
