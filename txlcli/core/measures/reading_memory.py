"""Memory that reading a text needs, computed without allocating it.

Axes: B batch, L segment, M memory.
"""

import dataclasses
import gc

import torch
from torch import Tensor

from txlcli.config.bands import bands
from txlcli.config.model_settings import CompressiveSettings, ModelSettings, TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.linear import Linear, should_pack
from txlcli.core.kernels.score_buffer import scores_at_once
from txlcli.core.measures.cost import softmax_columns
from txlcli.core.measures.footprint import with_plain_softmax
from txlcli.core.measures.live_bytes import LiveBytes, counting
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.registry import make_model
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader, make_window_reader


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

    0 if this release of PyTorch cannot observe tensors.

    Args:
        model: settings of the model.
        vocab_size: V.
        settings: L, M and the limits on distance.
        batch_size: B, lanes or windows.
        precision: of matrix products.
        device: to read on.
        attn_len: length of windows without memory; None reads with memory.
    """
    sized = dataclasses.replace(settings, batch_size=batch_size)
    if isinstance(model, CompressiveSettings):
        model = dataclasses.replace(model, compressed_len=settings.compressed_len or model.compressed_len)
    if isinstance(model, TransformerSettings) and settings.mem_len and attn_len is None:
        model = dataclasses.replace(model, memory_start="zeros")  # full from the first segment on
    reading = _Reading(settings=sized, precision=precision, device=device, attn_len=attn_len)
    # The rows that the tail of an adaptive softmax computes depend on the text: a plain one with the mean number of
    # columns replaces it.
    columns = round(softmax_columns(bands(model, vocab_size)))
    plain = with_plain_softmax(model)
    held, peak = reading.count(plain, columns, segments=2)
    if not held:
        return 0
    if (plain, columns) != (model, vocab_size):
        peak += reading.count(model, vocab_size, segments=0)[0] - held
    return peak + _packed_bytes(model, vocab_size, precision, device)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reading:
    """How a text is read."""

    settings: EvalSettings
    precision: str
    device: torch.device
    attn_len: int | None

    def count(self, model: ModelSettings, vocab_size: int, *, segments: int) -> tuple[int, int]:
        """Return the bytes that are held before the first segment, and at the peak of so many segments."""
        live = LiveBytes()
        with counting(live):
            network = make_model(model, vocab_size).eval()  # stays beside the reader's copies
            reader = self._reader(network)
            gc.collect()  # tensors in reference cycles would count as held, and be free later
            held = live.peak = live.now
            tokens = torch.zeros(self.settings.batch_size, self._tokens_at_once, dtype=torch.int64)
            for _ in range(segments):
                self._read(reader, tokens)
        return held, live.peak

    def _reader(self, network: LanguageModel) -> Reader:
        if self.attn_len is None:
            return make_reader(network, self.settings, batch_size=self.settings.batch_size, precision=self.precision)
        limit = self.settings.max_distance
        return make_window_reader(
            network, self.attn_len, windows=self.settings.batch_size, precision=self.precision, max_distance=limit
        )

    @property
    def _tokens_at_once(self) -> int:
        return self.settings.seg_len if self.attn_len is None else self.attn_len

    def _read(self, reader: Reader, tokens: Tensor) -> None:
        if self.device.type == "cpu":
            self._read_segment(reader, tokens)
        else:
            with scores_at_once():
                self._read_segment(reader, tokens)

    def _read_segment(self, reader: Reader, tokens: Tensor) -> None:
        if self.attn_len is None:
            reader.losses(reader.read(tokens), tokens)
        else:
            reader.reset()
            reader.losses(reader.read_last(tokens), tokens[:, -1:])


def _packed_bytes(model: ModelSettings, vocab_size: int, precision: str, device: torch.device) -> int:
    """Return the bytes of the matrices that oneDNN lays out anew in fp32; casts to 16 bits are copies already."""
    if device.type != "cpu" or precision != "fp32":
        return 0
    with torch.device("meta"):
        modules = make_model(model, vocab_size).modules()
    sizes = (module.weight for module in modules if isinstance(module, Linear))
    with torch.device("cpu"):
        return sum(weight.nbytes for weight in sizes if should_pack(torch.empty(weight.shape), torch.float32))
