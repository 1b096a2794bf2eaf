"""The reader of each model, and evaluation settings cut to what a text can fill."""

import dataclasses

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.compressive import CompressiveReader
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.reader import Reader, StateReader

READERS: dict[str, type[Reader]] = {
    "transformer": Decoder,
    "compressive": CompressiveReader,
    "rmt": StateReader,
    "lstm": StateReader,
    "qrnn": StateReader,
}
"""Class of the reader of a model, for each value of `model.arch`."""
CHUNK = 256  # queries per pass of a recomputed window: scores stay small, matrix products stay large


def make_reader(model: LanguageModel, settings: EvalSettings, *, batch_size: int, precision: str = "fp32") -> Reader:
    """Return a reader of text, segment by segment.

    Args:
        model: in any mode.
        settings: L, M and the limits on distance; of a model with a recurrent state only L counts.
        batch_size: B, in place of the one in the settings.
        precision: of matrix products.
    """
    return READERS[model.settings.arch](model, settings, batch_size=batch_size, precision=precision)


def make_token_reader(
    model: LanguageModel, settings: EvalSettings, *, batch_size: int, precision: str = "fp32"
) -> Reader:
    """Return a reader of single tokens, which sees at each token what `make_reader` sees in whole segments."""
    if model.has_recurrent_state or not model.settings.has_attention:  # neither depends on segments
        return make_reader(model, settings, batch_size=batch_size, precision=precision)
    return READERS[model.settings.arch](model, settings, batch_size=batch_size, precision=precision, by_tokens=True)


def make_window_reader(
    model: LanguageModel, attn_len: int, *, windows: int, precision: str, max_distance: int | None = None
) -> Reader:
    """Return a reader that holds one window of N tokens, and nothing before it."""
    chunk = min(CHUNK, attn_len)
    settings = EvalSettings(seg_len=chunk, mem_len=attn_len, max_distance=max_distance, same_length="off")
    return READERS[model.settings.arch](model, settings, batch_size=windows, precision=precision, in_windows=True)


def sized_for(model: LanguageModel, settings: EvalSettings, length: int) -> EvalSettings:
    """Cut L and M to what `length` tokens can fill: the rest would stay empty.

    A memory that starts as zeros keeps its length.
    """
    mem_len = settings.mem_len if model.memory_starts_full else min(settings.mem_len, length)
    return dataclasses.replace(settings, seg_len=min(settings.seg_len, length), mem_len=mem_len)
