"""Memory of reading a text, counted on tensors without data: nothing is allocated.

Axes: B batch, L segment, M memory, V vocabulary.
"""

import contextlib
import dataclasses
import functools
import gc

import torch

from txlcli.config.bands import bands
from txlcli.config.model_settings import CompressiveSettings, ModelSettings, TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.linear import Linear, OneDnnUse, should_pack, use_onednn
from txlcli.core.kernels.score_buffer import scores_at_once
from txlcli.core.measures.cost import softmax_columns
from txlcli.core.measures.forecast import with_plain_softmax
from txlcli.core.measures.live_bytes import LiveBytes, counting
from txlcli.core.model.registry import make_model
from txlcli.core.reading.registry import make_reader, make_window_reader

NO_ONEDNN = OneDnnUse(fp32=False, bf16=False)
"""For tensors without data: oneDNN needs data to lay out weights anew."""


def reading_bytes(
    model: ModelSettings,
    vocab_size: int,
    settings: EvalSettings,
    *,
    batch_size: int,
    precision: str = "fp32",
    device: torch.device,
    attn_len: int | None = None,
) -> int:
    """Return the bytes that a reader holds at its peak: weights, copies of matrices, keys and values, one segment.

    `batch_size` is B, in place of that of the settings. `attn_len` is the length of windows without memory; None reads
    with memory.
    """
    settings = dataclasses.replace(settings, batch_size=batch_size)
    if isinstance(model, CompressiveSettings):
        model = dataclasses.replace(model, compressed_len=settings.compressed_len or model.compressed_len)
    if isinstance(model, TransformerSettings) and settings.mem_len and attn_len is None:
        model = dataclasses.replace(model, memory_start="zeros")  # full from the first segment on
    count = functools.partial(_read, settings=settings, precision=precision, device=device, attn_len=attn_len)
    # The rows that the tail of an adaptive softmax computes depend on the text: a plain one with the mean number of
    # columns replaces it.
    columns = round(softmax_columns(bands(model, vocab_size)))
    plain = with_plain_softmax(model)
    held, peak = count(plain, columns, segments=2)
    if (plain, columns) != (model, vocab_size):
        peak += count(model, vocab_size, segments=0)[0] - held
    return peak + _packed_bytes(model, vocab_size, precision, device)


def _read(
    model: ModelSettings,
    vocab_size: int,
    *,
    segments: int,
    settings: EvalSettings,
    precision: str,
    device: torch.device,
    attn_len: int | None,
) -> tuple[int, int]:
    """Return the bytes that are held before the first segment, and at the peak of so many segments."""
    live = LiveBytes()
    with counting(live), use_onednn(NO_ONEDNN), contextlib.nullcontext() if device.type == "cpu" else scores_at_once():
        network = make_model(model, vocab_size).eval()  # stays next to the reader's copies
        if attn_len is None:
            reader = make_reader(network, settings, batch_size=settings.batch_size, precision=precision)
        else:
            limit, windows = settings.max_distance, settings.batch_size
            reader = make_window_reader(network, attn_len, windows=windows, precision=precision, max_distance=limit)
        gc.collect()  # tensors in reference cycles would count as held, and be free later
        held = live.peak = live.now
        tokens = torch.zeros(settings.batch_size, attn_len or settings.seg_len, dtype=torch.int64)
        for _ in range(segments):
            if attn_len is None:
                reader.losses(reader.read(tokens), tokens)
            else:
                reader.reset()
                reader.losses(reader.read_last(tokens), tokens[:, -1:])
    return held, live.peak


def _packed_bytes(model: ModelSettings, vocab_size: int, precision: str, device: torch.device) -> int:
    """Return the bytes of the matrices that oneDNN lays out anew in fp32; casts to 16 bits are copies already."""
    if device.type != "cpu" or precision != "fp32":
        return 0
    with torch.device("meta"):
        modules = make_model(model, vocab_size).modules()
    sizes = (module.weight for module in modules if isinstance(module, Linear))
    with torch.device("cpu"):
        return sum(weight.nbytes for weight in sizes if should_pack(torch.empty(weight.shape), torch.float32))
