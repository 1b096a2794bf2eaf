"""The models by architecture, and how one is built from its settings."""

import functools
from collections.abc import Mapping

import torch

from txlcli.config.model_settings import ModelSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.compressive import CompressiveTransformer
from txlcli.core.model.rmt import RecurrentMemoryTransformer
from txlcli.core.model.rnn import RecurrentModel
from txlcli.core.model.transformer_xl import TransformerXL

ARCHITECTURES: dict[str, type[LanguageModel]] = {
    "transformer": TransformerXL,
    "compressive": CompressiveTransformer,
    "rmt": RecurrentMemoryTransformer,
    "lstm": RecurrentModel,
    "qrnn": RecurrentModel,
}
"""The class of each word of `model.arch`."""


def make_model(settings: ModelSettings, vocab_size: int) -> LanguageModel:
    """Return a model with fresh weights."""
    return ARCHITECTURES[settings.arch](settings, vocab_size)


@functools.lru_cache(maxsize=8)
def parameter_shapes(settings: ModelSettings, vocab_size: int | None = None) -> Mapping[str, torch.Size]:
    """Return the shapes of a model's parameters by name; nothing is allocated.

    By default, the vocabulary has one symbol in its last band.
    """
    with torch.device("meta"):
        model = make_model(settings, vocab_size or max(settings.cutoffs, default=0) + 1)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def count_parameters(settings: ModelSettings, vocab_size: int) -> int:
    """Count the parameters of a model."""
    return sum(shape.numel() for shape in parameter_shapes(settings, vocab_size).values())
