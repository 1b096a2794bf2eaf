"""The class that reads text with each model."""

from dataclasses import replace

from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.registry import ARCHITECTURES
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.reader import Reader, StateReader

READERS: dict[str, type[Reader]] = {"states": StateReader, "keys": Decoder}
"""Class of the reader for each value of `Architecture.reader`."""


def depends_on_segments(model: LanguageModel) -> bool:
    """Return True if predictions may depend on where segments end; by a `Decoder` or a recurrent state they do not.

    If they may, a text is read token by token in segments of L tokens, as in training.
    """
    return ARCHITECTURES[model.settings.arch].reader != "keys" and not model.settings.recurrent_state


def make_reader(
    model: LanguageModel,
    settings: EvalSettings,
    *,
    by_tokens: bool = False,
    length: int | None = None,
    tokens: int = 0,
) -> Reader:
    """Return a reader of text, segment by segment; see `Reader` for the arguments.

    Of a model with a recurrent state only L counts; with M = 0, a segment is a window. L and M are cut to what texts of
    `length` tokens can fill: the rest would stay empty.
    """
    if length is not None:
        # A memory that starts as zeros keeps its length.
        mem_len = settings.mem_len if model.memory_starts_full else min(settings.mem_len, length)
        settings = replace(settings, seg_len=min(settings.seg_len, length), mem_len=mem_len)
        tokens = tokens or settings.batch_size * length
    new_reader = model.own_reader or ARCHITECTURES[model.settings.arch].reader
    if isinstance(new_reader, str):
        new_reader = READERS[new_reader]
    reader: Reader = new_reader(model, settings, by_tokens=by_tokens, tokens=tokens)
    return reader
