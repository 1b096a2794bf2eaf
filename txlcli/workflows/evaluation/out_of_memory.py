"""Says which settings of an evaluation or a generation would fit, after memory ran out."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import available_bytes
from txlcli.core.measures.reading_forecast import reading_bytes
from txlcli.errors import TxlError
from txlcli.runs.loading import OpenRun
from txlcli.workflows import out_of_memory

HALF = "bf16"
"""Precision that is suggested in place of fp32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How a run reads a text."""

    opened: OpenRun
    settings: EvalSettings
    """B, L, M; B is the number of windows if the text is read in windows."""
    attn_len: int | None = None
    """Length of windows without memory; None reads with memory."""
    can_change: tuple[str, ...] = ("--batch-size", "--precision", "--mem-len")
    """Options of the command."""

    def bytes(self, *, batch_size: int | None = None, mem_len: int | None = None, precision: str | None = None) -> int:
        """Forecast the memory, with these settings changed."""
        settings, run = self.settings, self.opened.run
        mem_len = settings.mem_len if mem_len is None else mem_len
        return reading_bytes(
            run.settings.model,
            run.vocab_size,
            dataclasses.replace(settings, mem_len=mem_len),
            batch_size=batch_size or settings.batch_size,
            precision=precision or self.opened.precision,
            device=self.opened.model.device,
            attn_len=self.attn_len,
        )


@contextmanager
def explained(reading: Reading, *, available: Callable[[torch.device], int | None] = available_bytes) -> Iterator[None]:
    """Raise a TxlError with settings that would fit if memory runs out in the block."""

    def explain(what: str) -> TxlError:
        return TxlError(f"{what}; {advise(reading, available(reading.opened.model.device))}")

    with out_of_memory.explained(explain):
        yield


def advise(reading: Reading, available: int | None) -> str:
    """Return the next step after memory ran out, with so many bytes: options of the same command that need less."""
    otherwise = "no smaller setting fits; use a smaller model, or a device with more memory"
    return out_of_memory.advice("it", reading.bytes(), available, _smaller(reading), otherwise=otherwise)


def _smaller(reading: Reading) -> Iterator[Iterator[tuple[str, int]]]:
    """Yield the values of each option that needs less memory, the largest first, each with the bytes it needs."""
    batch_size, mem_len = reading.settings.batch_size, reading.settings.mem_len
    if "--batch-size" in reading.can_change and batch_size > 1:
        yield ((f"--batch-size {size}", reading.bytes(batch_size=size)) for size in _halves(batch_size))
    if "--precision" in reading.can_change and reading.opened.precision == "fp32":
        yield iter([(f"--precision {HALF}", reading.bytes(precision=HALF))])
    if "--mem-len" in reading.can_change and reading.attn_len is None:
        one_lane = "" if batch_size == 1 else "--batch-size 1 "
        lengths = ((length, reading.bytes(batch_size=1, mem_len=length)) for length in _halves(mem_len))
        yield ((f"{one_lane}--mem-len {length}", size) for length, size in lengths)


def _halves(size: int) -> Iterator[int]:
    while size > 1:
        size //= 2
        yield size
