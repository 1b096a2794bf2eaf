"""Builds the model that a recipe asks for, and what reads text with it."""

import torch

from txlcli.core.decoding import Decoder
from txlcli.core.language_model import LanguageModel
from txlcli.core.model import TransformerXL
from txlcli.core.reader import Reader
from txlcli.core.rnn import RecurrentModel, StateReader
from txlcli.model_settings import ModelSettings, RnnSettings, TransformerSettings
from txlcli.settings import SameLength


def make_model(settings: ModelSettings, vocab_size: int) -> LanguageModel:
    """A model with fresh weights.

    Raises:
        RecipeError: a cutoff lies beyond the vocabulary.
    """
    if isinstance(settings, RnnSettings):
        return RecurrentModel(settings, vocab_size)
    assert isinstance(settings, TransformerSettings)
    return TransformerXL(settings, vocab_size)


def make_reader(
    model: LanguageModel,
    *,
    lanes: int,
    mem_len: int,
    seg_len: int,
    same_length: SameLength = "off",
    max_distance: int | None = None,
    precision: str = "fp32",
) -> Reader:
    """What reads a text with a model; the arguments are those of an evaluation.

    A model that carries a state has no use for `mem_len`, `same_length` and `max_distance`.

    Raises:
        UsageError: the model has learned fewer positions than a segment has.
    """
    if isinstance(model, RecurrentModel):
        return StateReader(model, lanes=lanes, seg_len=seg_len, precision=precision)
    assert isinstance(model, TransformerXL)
    return Decoder(
        model,
        lanes=lanes,
        mem_len=mem_len,
        seg_len=seg_len,
        same_length=same_length,
        max_distance=max_distance,
        precision=precision,
    )


def count_parameters(settings: ModelSettings, vocab_size: int) -> int:
    """Parameters of a model, counted on the meta device: nothing is allocated.

    Raises:
        RecipeError: a cutoff lies beyond the vocabulary.
    """
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())
