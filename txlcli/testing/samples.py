"""Small models, texts and runs, on which a class is checked.

Axes: B batch, T tokens, L segment, M memory, d model width, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from txlcli.config import recipe
from txlcli.config.model_settings import MODELS, ModelSettings
from txlcli.config.train_settings import JITTER_MARGIN, TrainSettings
from txlcli.core.architectures.registry import make_model, new_model
from txlcli.core.kernels.cuda_graph import CaptureGraph
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.training import checkpoint
from txlcli.core.training.loop import Training
from txlcli.core.training.saving import Saver
from txlcli.core.training.segments import TrainingSegments
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
STOPS = (3, 4)
"""Steps after which a run is resumed. No interval divides both, so what is done at intervals depends on a count."""
SMALL = {
    "n_layers": 2,
    "d_model": 12,
    "n_heads": 3,
    "d_head": 8,
    "d_inner": 21,  # two thirds of it, the width of a gate, are not d_model
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
        if key.endswith("dropout") and key != "variational_dropout" and value:
            raise UsageError(f"{key} must be 0: the checks compare what a model computes twice")
    cls = MODELS[name]
    values: dict[str, object] = {"arch": name, "dropout": 0.0}
    for field in dataclasses.fields(cls):
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        is_too_large = field.name in ("compression_rate", "n_memory_tokens")
        if field.name in SMALL and (is_required or is_too_large):
            values[field.name] = SMALL[field.name]
    settings: ModelSettings = recipe.read_section("model", {**values, **given})
    return settings


def small_train_settings(**given: object) -> TrainSettings:
    """Return settings of a training run of a few steps."""
    values = {
        "seg_len": L,
        "mem_len": M,
        "batch_size": LANES,
        "max_steps": STEPS,
        "lr": 1e-2,
        "warmup_steps": 0,
    }
    settings: TrainSettings = recipe.read_section("train", {**values, **given})
    return settings


def small_model(settings: ModelSettings) -> LanguageModel:
    """Return a model with random weights, each of which is large enough to matter."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(1)
        model = make_model(settings, V)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
    return model


@contextmanager
def nan_in_new_tensors() -> Iterator[None]:
    """Fill tensors that are made without values, as by `torch.empty`, with NaN inside this block."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)  # PyTorch fills such tensors in this mode alone
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic, warn_only=only_warned)


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


def small_run(
    directory: Path, model: LanguageModel, settings: TrainSettings, *, capture_graph: CaptureGraph | None = None
) -> Training:
    """Return a training run of a few steps, which saves in a directory."""
    directory.mkdir(exist_ok=True)
    count = LANES * (STEPS + 2) * settings.padded_segment + 1
    ids = draw_tokens(1, count)[0].numpy().astype(np.int64)
    segments = TrainingSegments(ids, settings)
    return Training(model, settings, segments, saver=Saver(directory), capture_graph=capture_graph)


def whole_and_resumed(directory: Path, model: ModelSettings, settings: TrainSettings) -> tuple[Training, Training]:
    """Return a training run without an interruption, and one that was saved, loaded and resumed after each of STOPS."""
    whole = small_run(directory / "whole", new_model(model, V, seed=settings.seed, device=checkpoint.CPU), settings)
    finish(whole)
    resumed = small_run(directory / "parts", new_model(model, V, seed=settings.seed, device=checkpoint.CPU), settings)
    for step in STOPS:
        finish(resumed, step)
        saved = checkpoint.load(resumed.saver.last_path)
        resumed = small_run(directory / "parts", checkpoint.build_model(model, V, saved), settings)
        resumed.restore(saved)
    finish(resumed)
    return whole, resumed


def finish(training: Training, step: int = STEPS) -> None:
    """Train up to a step, and save."""
    for _ in training.run(report_every=STEPS, should_stop=lambda: training.step >= step):
        pass


def call_again(run: Callable[[], object], device: torch.device, *, warm_up: int = 0) -> Callable[[], object]:
    """Stand in for a CUDA graph: a replay calls the function again, on the same tensors."""
    return run
