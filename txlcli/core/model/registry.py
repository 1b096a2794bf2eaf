"""Builds the model that a recipe asks for, and what reads text with it."""

import dataclasses

import torch

from txlcli.config.model_settings import ModelSettings, RnnSettings, TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.rnn import RecurrentModel
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.state_reader import StateReader


def make_model(settings: ModelSettings, vocab_size: int) -> LanguageModel:
    """A model with fresh weights.

    Raises:
        RecipeError: a cutoff lies beyond the vocabulary.
    """
    if isinstance(settings, RnnSettings):
        return RecurrentModel(settings, vocab_size)
    assert isinstance(settings, TransformerSettings)
    return TransformerXL(settings, vocab_size)


def make_reader(model: LanguageModel, how: EvalSettings, *, lanes: int, precision: str = "fp32") -> Reader:
    """What reads a text with a model, segment by segment.

    Args:
        model: in any mode.
        how: L, M and the limits on distance; of a model that carries a state only L counts.
        lanes: B, whatever `how` says.
        precision: number format of matrix products.

    Raises:
        UsageError: the model has learned fewer positions than a segment has.
    """
    if isinstance(model, RecurrentModel):
        return StateReader(model, batch_size=lanes, seg_len=how.seg_len, precision=precision)
    assert isinstance(model, TransformerXL)
    return Decoder(
        model,
        lanes=lanes,
        mem_len=how.mem_len,
        seg_len=how.seg_len,
        same_length=how.same_length,
        max_distance=how.max_distance,
        precision=precision,
    )


def starts_full(model: LanguageModel) -> bool:
    """Whether the memory is full of zeros before the first token, so that all of M is seen from there on."""
    return isinstance(model, TransformerXL) and model.settings.memory_start == "zeros"


def sized_for(model: LanguageModel, how: EvalSettings, length: int) -> EvalSettings:
    """The same reading with as much of L and M as `length` tokens fill: the rest would stay empty.

    A memory that starts as zeros stays as long as it is.
    """
    mem_len = how.mem_len if starts_full(model) else min(how.mem_len, length)
    return dataclasses.replace(how, seg_len=min(how.seg_len, length), mem_len=mem_len)


def count_parameters(settings: ModelSettings, vocab_size: int) -> int:
    """Parameters of a model, counted on the meta device: nothing is allocated.

    Raises:
        RecipeError: a cutoff lies beyond the vocabulary.
    """
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())
