"""The models by architecture, and how one is built from its settings."""

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


def count_parameters(settings: ModelSettings, vocab_size: int) -> int:
    """Count the parameters of a model on the meta device: nothing is allocated."""
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())
