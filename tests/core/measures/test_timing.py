"""What is timed is the work that is meant; the times themselves belong to the machine."""

import itertools
import math
import time
from pathlib import Path

import pytest
import torch

from tests.core.builders import small_model, small_rnn
from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.measures import timing
from txlcli.core.measures.timing import Timing
from txlcli.core.model import registry
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading import windows
from txlcli.core.reading.decoder import Decoder

CPU = torch.device("cpu")
B, L, M = 2, 5, 7
TRAIN = TrainSettings(seg_len=L, mem_len=M, batch_size=B, max_steps=3)


def small_float_model():
    return small_model(dtype=torch.float32)


def test_a_timing_is_quoted_by_its_middle_and_its_ends():
    times = Timing((3.0, 1.0, 2.0, 9.0, 2.5))
    assert (times.median, times.low, times.high) == (2.5, 1.0, 9.0)


def test_the_first_call_is_not_counted():
    pauses = iter([0.2, 0.01, 0.01, 0.01])
    times = timing.measure(lambda: time.sleep(next(pauses)), CPU, tokens=2, repeat=3)
    assert len(times.ms_per_token) == 3
    assert times.low >= 5.0  # 10 ms for two tokens
    assert times.median < 100.0
    assert next(pauses, None) is None


def test_the_peak_is_above_what_one_operation_after_the_other_could_reach():
    assert 1e9 < timing.peak_flops_per_s(CPU, "fp32", repeat=1) < 1e15


@pytest.fixture
def watched(monkeypatch):
    """What the timed work reads: (rows, tokens, positions remembered before) of each segment; and the decoders used."""
    seen, decoders = [], []

    class Watched(Decoder):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            decoders.append(options)

        def _run(self, tokens, *, count):
            seen.append((*tokens.shape, self._end - self._start))
            return super()._run(tokens, count=count)

    for module in (windows, registry):
        monkeypatch.setattr(module, "Decoder", Watched)
    return seen, decoders


def test_evaluation_is_timed_with_a_full_memory(watched):
    how = EvalSettings(seg_len=L, mem_len=M, batch_size=B, max_distance=4, same_length="m_plus_one")
    timing.time_evaluation(small_float_model(), how, precision="fp32", repeat=2)
    seen, (options,) = watched
    scored = seen[2:]  # two segments fill the memory
    assert set(scored) == {(B, L, M)}
    assert (options["max_distance"], options["same_length"]) == (4, "m_plus_one")


@pytest.mark.parametrize(("seg_len", "mem_len"), [(L, M), (L, 160), (1, 160), (300, M)])
def test_a_repetition_pays_for_the_slide_of_the_buffer(seg_len, mem_len, monkeypatch):
    places = where_each_reading_ends(monkeypatch)
    how = EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=B)
    timing.time_evaluation(small_float_model(), how, precision="fp32", repeat=2)
    period = -(-max(seg_len, mem_len // 4) // seg_len)  # segments
    assert len(places) == -(-mem_len // seg_len) + 3 * period  # the memory, the warm-up, two repetitions
    for repetition in (places[-2 * period - 1 : -period], places[-period - 1 :]):
        assert slides(repetition) >= 1


@pytest.mark.parametrize("mem_len", [M, 160])
def test_single_tokens_pay_for_the_slide_of_the_buffer(mem_len, monkeypatch):
    places = where_each_reading_ends(monkeypatch)
    how = EvalSettings(seg_len=L, mem_len=mem_len)
    timing.time_single_tokens(small_float_model(), how, precision="fp32", repeat=2)
    period = max(L, mem_len // 4)  # tokens
    assert [slides(places[-2 * period - 1 : -period]), slides(places[-period - 1 :])] == [1, 1]


def where_each_reading_ends(monkeypatch):
    """The end of what a decoder's buffer holds, after each reading."""
    ends = []

    class Noted(Decoder):
        def _run(self, tokens, *, count):
            hidden = super()._run(tokens, count=count)
            ends.append(self._end)
            return hidden

    monkeypatch.setattr(registry, "Decoder", Noted)
    return ends


def slides(ends):
    """How often the buffer has slid: each reading ends behind the one before it, unless it has."""
    return sum(after <= before for before, after in itertools.pairwise(ends))


def test_single_tokens_are_timed_with_a_full_memory(watched):
    how = EvalSettings(seg_len=L, mem_len=M, max_distance=4, same_length="m_plus_one")
    timing.time_single_tokens(small_float_model(), how, precision="fp32", repeat=3)
    seen, (options,) = watched
    assert seen[:2] == [(1, L, 0), (1, M - L, L)]  # the memory, in segments
    assert seen[2:] == [(1, 1, M)] * (1 + 3 * L)  # L is more than a quarter of M
    assert (options["max_distance"], options["same_length"]) == (4, "m_plus_one")


def test_single_tokens_without_memory_are_timed_with_a_window_for_each(watched):
    how = EvalSettings(seg_len=L, mem_len=0, max_distance=4)
    timing.time_single_tokens(small_float_model(), how, precision="fp32", repeat=3)
    seen, (options,) = watched
    assert seen == [(1, L, 0)] * 5  # the first window, one to warm up, three repetitions
    assert options["max_distance"] == 4


@pytest.mark.parametrize("arch", ["lstm", "qrnn"])
def test_single_tokens_of_a_model_with_a_state_are_timed(arch):
    how = EvalSettings(seg_len=L, mem_len=0)
    times = timing.time_single_tokens(small_rnn(arch, dtype=torch.float32), how, precision="fp32", repeat=3)
    assert len(times.ms_per_token) == 3
    assert 0 < times.low < math.inf


@pytest.mark.parametrize("attn_len", [11, 700])
def test_the_vanilla_model_reads_its_whole_window_for_every_prediction(watched, attn_len):
    timing.time_vanilla(small_float_model(), attn_len, windows=3, max_distance=4, precision="fp32", repeat=2)
    seen, (options,) = watched
    starts = [number for number, (_, _, remembered) in enumerate(seen) if remembered == 0]
    assert len(starts) == 3  # the warm-up and two repetitions, each from nothing
    assert {rows for rows, _, _ in seen} == {3}
    assert sum(tokens for _, tokens, _ in seen) == 3 * attn_len
    assert options["max_distance"] == 4  # the same function as with memory


def test_batched_windows_are_the_same_function_as_one(watched):
    one = Timing((1e9,))  # anything is faster
    timing.best_windows(small_float_model(), L, one, max_distance=3, precision="fp32", repeat=1)
    _, decoders = watched
    assert len(decoders) >= 3  # two and four were tried, the winner was timed
    assert {options["max_distance"] for options in decoders} == {3}


def test_training_is_timed_with_a_full_memory(monkeypatch):
    keys = []
    forward = TransformerXL.forward

    def watching(self, tokens, memory, **options):
        keys.append((*tokens.shape, memory[0].shape[1]))
        return forward(self, tokens, memory, **options)

    monkeypatch.setattr(TransformerXL, "forward", watching)
    timing.time_training(small_float_model(), TRAIN, repeat=2)
    assert keys[-3:] == [(B, L, M)] * 3  # the warm-up and two repetitions


@pytest.mark.parametrize("mem_len", [0, M])
@pytest.mark.parametrize("seg_len", [1, L])
def test_evaluation_is_timed_with_every_repetition(mem_len, seg_len):
    how = EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=B)
    times = timing.time_evaluation(small_float_model(), how, precision="fp32", repeat=3)
    assert len(times.ms_per_token) == 3
    assert 0 < times.low <= times.median <= times.high < math.inf


def test_a_longer_window_costs_the_vanilla_model_more():
    # 2,500 tokens against 5: even on a busy machine the ratio is far from 1.
    long, short = (
        timing.time_vanilla(small_float_model(), attn_len, windows=1, max_distance=None, precision="fp32", repeat=3)
        for attn_len in (2500, 5)
    )
    assert long.low > 2 * short.low


def test_windows_at_once_are_taken_as_long_as_they_gain():
    model = small_float_model()
    one = Timing((1e9,))  # anything is faster
    windows, best = timing.best_windows(model, L, one, max_distance=None, precision="fp32", repeat=2)
    assert windows >= 2
    assert best.median < one.median
    none = Timing((1e-9,))  # nothing is
    assert timing.best_windows(model, L, none, max_distance=None, precision="fp32", repeat=2) == (1, none)


def search_where_windows_beyond(most, work, monkeypatch):
    """A search for batched windows, where a decoder of more than `most` of them begins with some work."""

    class Limited(Decoder):
        def __init__(self, *args, lanes, **options):
            if lanes > most:
                work()
            super().__init__(*args, lanes=lanes, **options)

    monkeypatch.setattr(windows, "Decoder", Limited)
    one = Timing((1e9,))  # anything is faster
    return timing.best_windows(small_float_model(), L, one, max_distance=None, precision="fp32", repeat=1)


def test_the_search_for_windows_ends_where_memory_does(monkeypatch):
    most, _ = search_where_windows_beyond(2, lambda: torch.empty(1 << 50), monkeypatch)
    assert most == 2


def test_the_search_for_windows_hides_no_other_error(monkeypatch):
    with pytest.raises(RuntimeError, match="size mismatch"):
        search_where_windows_beyond(2, lambda: torch.ones(2, 3) @ torch.ones(2), monkeypatch)


def test_training_is_timed_by_real_steps_that_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = small_float_model()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    times = timing.time_training(model, TRAIN, repeat=2)
    assert len(times.ms_per_token) == 2
    assert any(not parameter.equal(before[name]) for name, parameter in model.named_parameters())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can tell")
def test_the_peak_of_memory_is_that_of_the_block():
    size = 64 << 20
    with timing.peak_memory(CPU) as idle:
        pass
    with timing.peak_memory(CPU) as busy:
        block = torch.ones(size, dtype=torch.uint8)
        del block
    if not idle:
        pytest.skip("this machine does not let the mark be set back")
    assert busy[0] >= idle[0] + size // 2
