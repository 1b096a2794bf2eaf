"""After memory ran out, the error names options that need less, by the forecast of a reader."""

import re
from types import SimpleNamespace

import pytest
import torch

from tests.commands.novel import RECIPE
from txlcli.config import recipe
from txlcli.config.settings import EvalSettings
from txlcli.errors import TxlError
from txlcli.system.memory import format_size
from txlcli.workflows.evaluation.out_of_memory import Reading, advise, explained

GPU = torch.device("cuda:0")
MODEL = recipe.resolve_text(RECIPE, "tiny.toml").model
CUDA_ERROR = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which ..."


def reading(*, batch_size=8, mem_len=40, precision="bf16", device=GPU, **changes):
    run = SimpleNamespace(settings=SimpleNamespace(model=MODEL), vocab_size=300)
    opened = SimpleNamespace(run=run, precision=precision, model=SimpleNamespace(device=device))
    settings = EvalSettings(seg_len=10, mem_len=mem_len, batch_size=batch_size)
    return Reading(opened=opened, settings=settings, **changes)


def test_the_largest_batch_that_fits_is_suggested_and_another_precision_comes_second():
    whole = reading()
    advice = advise(whole, available=round(whole.bytes(batch_size=2) / 0.8) + 1000)
    assert f"try --batch-size 2 (about {format_size(whole.bytes(batch_size=2))})" in advice
    assert f"it needs about {format_size(whole.bytes())} of " in advice
    advice = advise(reading(precision="fp32"), available=None)
    assert re.search(r"try --batch-size 4 \(about [^)]+\), or --precision bf16 \(about [^)]+\)$", advice)


@pytest.mark.slow
def test_a_shorter_memory_is_suggested_if_no_batch_fits():
    one_lane = reading(batch_size=1, mem_len=100_000)
    enough = round(one_lane.bytes(mem_len=25_000) / 0.8) + 1000
    assert "; try --mem-len 25000 (about " in advise(one_lane, enough)
    assert "; try --batch-size 1 --mem-len 25000 (about " in advise(reading(mem_len=100_000), enough)


def test_windows_have_no_memory_to_shorten():
    windows = reading(attn_len=20)
    assert advise(windows, available=1000).endswith(
        "and no smaller setting fits; use a smaller model, or a device with more memory"
    )
    assert "try --batch-size 4" in advise(windows, available=None)


def test_only_options_of_the_command_are_suggested():
    advice = advise(reading(precision="fp32", batch_size=1, mem_len=200, can_change=("--precision",)), available=None)
    assert "--precision bf16" in advice
    assert "--mem-len" not in advice


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(CUDA_ERROR), MemoryError("tried to allocate 2.00 GiB")])
def test_the_error_says_what_was_asked_for_and_what_there_is(error):
    start = r"out of memory \(tried to allocate 2.00 GiB\); it needs about .* of 10.0 MiB; try --batch-size [^\n]*$"
    with pytest.raises(TxlError, match=start), explained(reading(), available={GPU: 10 << 20}.__getitem__):
        raise error


def test_other_errors_are_not_explained():
    with pytest.raises(RuntimeError, match=r"^size mismatch$"), explained(reading()):
        raise RuntimeError("size mismatch")
