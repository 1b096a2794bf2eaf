"""The work that is timed; the times themselves depend on the machine."""

import dataclasses
import itertools
import math
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from tests.commands.novel import RecordingReporter
from tests.core.builders import cut, small_model, small_rnn
from txlcli.config import recipe
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.measures import timing
from txlcli.core.measures.timing import Repetitions, Timing
from txlcli.core.training.distributed import SINGLE_PROCESS
from txlcli.workflows.evaluation import rows
from txlcli.workflows.evaluation.options import SLOWDOWN_REPETITIONS
from txlcli.workflows.speed import Bench

CPU = torch.device("cpu")
B, L, M = 2, 5, 7
TRAIN = TrainSettings(seg_len=L, mem_len=M, batch_size=B, max_steps=3)


NEAR = EvalSettings(seg_len=L, mem_len=M, batch_size=B, max_distance=4, same_length="m_plus_one")


def windows(attn_len, batch_size=1, max_distance=None):
    return EvalSettings(seg_len=attn_len, mem_len=0, batch_size=batch_size, max_distance=max_distance)


def small_float_model():
    return small_model(dtype=torch.float32)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_repetition_has_several_steps(steps):
    calls = []
    clock = iter([0.0, 0.006, 1.0, 1.018, 2.0, 2.012])
    times = timing.measure(lambda: calls.append(0), CPU, tokens=3, repeat=3, steps=steps, seconds=lambda: next(clock))
    assert len(calls) == 1 + 3 * steps  # with the warm-up
    assert times.ms_per_token == pytest.approx((2 / steps, 6 / steps, 4 / steps))
    assert times.median == times.ms_per_token[2]
    assert times.low_high == times.ms_per_token[:2]


def test_the_time_of_a_thread_does_not_count_the_time_of_other_processes():
    def wait_and_work():
        time.sleep(0.2)  # the processor is free for others, as when they take it
        sum(range(100_000))

    idle = timing.measure(wait_and_work, CPU, tokens=1, repeat=2, seconds=time.thread_time)
    wall = timing.measure(wait_and_work, CPU, tokens=1, repeat=2)
    assert 0 < idle.low_high[1] < 150
    assert wall.low_high[0] >= 200


def test_the_peak_is_above_the_rate_of_scalar_operations():
    assert 1e9 < timing.peak_flops_per_s(CPU, "fp32", repeat=1) < 1e15


Call = namedtuple("Call", ["rows", "tokens", "keys_before", "reach", "distances", "key_address"])
"""One call of the first layer's attention, by a model or by a copy of it that a reader made; `distances` have an
encoding of their own."""


def observed_model():
    """Return a small model and the list of calls, which grows while the model or a copy of it is used."""
    model, calls = small_float_model(), []

    def note(_, inputs):
        query, keys, _values, terms, *_attend = inputs
        distances = torch.unique(terms.position_key.detach().round(decimals=4), dim=1).shape[1]
        rows, _, tokens, _ = query.shape
        calls.append(Call(rows, tokens, keys.shape[2] - tokens, terms.reach, distances, keys.data_ptr()))

    model.layers[0].attention.register_forward_pre_hook(note)
    return model, calls


def sizes(calls):
    return [(call.rows, call.tokens, call.keys_before) for call in calls]


def slides(calls):
    """Count the slides of the buffer: between two of them, the keys in view move to higher addresses."""
    return sum(after.key_address <= before.key_address for before, after in itertools.pairwise(calls))


@pytest.mark.parametrize(("seg_len", "mem_len"), [(L, M), (L, 160), (1, 160), (300, M)])
def test_evaluation_is_timed_with_a_full_memory_and_a_slide_of_the_buffer_in_each_repetition(seg_len, mem_len):
    model, calls = observed_model()
    timing.time_evaluation(model, dataclasses.replace(NEAR, seg_len=seg_len, mem_len=mem_len), Repetitions(2))
    period = -(-max(seg_len, mem_len // 4) // seg_len)  # segments
    filling = -(-mem_len // seg_len)
    timed = calls[filling:]
    assert sizes(timed) == [(B, seg_len, mem_len)] * 3 * period  # the warm-up, two repetitions
    assert {(call.distances, call.reach) for call in timed} == {(5, mem_len + 1)}
    for repetition in (calls[-2 * period - 1 : -period], calls[-period - 1 :]):
        assert slides(repetition) >= 1


@pytest.mark.parametrize("mem_len", [M, 160])
def test_single_tokens_are_timed_with_a_full_memory_and_a_slide_of_the_buffer_in_each_repetition(mem_len):
    model, calls = observed_model()
    timing.time_single_tokens(model, dataclasses.replace(NEAR, mem_len=mem_len, batch_size=1), Repetitions(2))
    period = max(L, mem_len // 4)  # tokens
    filling = cut(mem_len, L)  # the memory, in segments
    assert sizes(calls[: len(filling)]) == [(1, length, L * number) for number, length in enumerate(filling)]
    timed = calls[len(filling) :]
    assert sizes(timed) == [(1, 1, mem_len)] * (1 + 2 * period)
    assert {(call.distances, call.reach) for call in timed} == {(5, mem_len + 1)}
    assert [slides(calls[-2 * period - 1 : -period]), slides(calls[-period - 1 :])] == [1, 1]


def test_single_tokens_without_memory_are_timed_with_a_window_for_each():
    model, calls = observed_model()
    timing.time_single_tokens(model, windows(L, max_distance=3), Repetitions(3))
    assert sizes(calls) == [(1, L, 0)] * 5  # the first window, the warm-up, three repetitions
    assert {call.distances for call in calls} == {4}


@pytest.mark.parametrize("arch", ["lstm", "qrnn"])
def test_single_tokens_of_a_recurrent_model_are_timed(arch):
    times = timing.time_single_tokens(small_rnn(arch, dtype=torch.float32), windows(L), Repetitions(3))
    assert len(times.ms_per_token) == 3
    assert 0 < times.median < math.inf


@pytest.mark.parametrize("attn_len", [11, 700])
def test_the_vanilla_model_reads_its_whole_window_for_every_prediction(attn_len):
    model, calls = observed_model()
    timing.time_vanilla(model, windows(attn_len, 3, max_distance=4), Repetitions(2))
    firsts = [call for call in calls if call.keys_before == 0]
    assert len(firsts) == 3  # the warm-up and two repetitions, each with an empty memory
    assert {call.rows for call in calls} == {3}
    assert sum(call.tokens for call in calls) == 3 * attn_len
    assert {call.distances for call in calls} == {5}  # as with memory


@pytest.mark.parametrize(("same_length", "keys"), [("m", M), ("m_plus_one", M + 1), ("off", M + L)])
def test_the_slowdown_of_an_evaluation_compares_one_lane_with_windows_of_as_many_keys(same_length, keys):
    model, calls = observed_model()
    settings = EvalSettings(seg_len=L, mem_len=M, batch_size=B, same_length=same_length)
    text = SimpleNamespace(targets=range(100))
    scoring = SimpleNamespace(opened=SimpleNamespace(model=model), text=text, world=SINGLE_PROCESS)
    numbers = {"tokens": 100, "lanes": B, "loss_nats": 2.0, "measures": {}, "ms_per_token": 3.0, "losses_nats": ()}
    row = rows.EvalRow(mem_len=M, attn_len_min=keys, attn_len_max=keys, settings=settings, **numbers)
    row = rows.with_times(scoring, row)
    assert {call.rows for call in calls} == {1}
    reading = sizes(calls).count((1, L, M))
    assert reading > SLOWDOWN_REPETITIONS
    vanilla = calls[-1 - SLOWDOWN_REPETITIONS :]  # the warm-up and the repetitions, each a window from its start
    assert sizes(vanilla) == [(1, keys, 0)] * len(vanilla)
    assert row.slowdown == row.vanilla_ms_per_token / row.one_lane_ms_per_token


def test_table_9_compares_one_lane_with_windows_as_long_as_its_memory():
    model, calls = observed_model()
    settings = dataclasses.replace(recipe.load("stdlib", [f"eval.seg_len={L}"]), model=model.settings)
    bench = Bench(model, settings, RecordingReporter(), repeat=1, peak=1e9)
    row = bench.slowdown(M)
    assert sizes(calls).count((1, L, M)) >= 2  # the warm-up and a repetition
    assert sizes(calls).count((1, M, 0)) == 2
    assert {call.tokens for call in calls if call.rows > 1} == {M}  # batched windows
    assert row.slowdown == row.vanilla_ms_per_token / row.xl_ms_per_token


SLOWEST, FASTEST = Timing((1e9,)), Timing((1e-9,))


def test_more_windows_are_used_only_if_they_are_faster_and_share_distances():
    model, calls = observed_model()
    number, best = timing.best_windows(model, windows(L, max_distance=3), SLOWEST, Repetitions(2))
    assert number >= 2
    assert best.median < SLOWEST.median
    assert {1, 2, 4} - {call.rows for call in calls} == {1}
    assert {call.distances for call in calls} == {4}
    assert timing.best_windows(model, windows(L), FASTEST, Repetitions(2)) == (1, FASTEST)


@pytest.mark.parametrize("resets", [False, True])
def test_training_is_timed_by_real_steps_with_a_full_memory_that_write_no_files(resets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, calls = small_float_model(), []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: calls.append((*inputs[0].shape[:2], inputs[1].length)))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    times = timing.time_training(model, dataclasses.replace(TRAIN, reset_at_documents=resets), Repetitions(2))
    assert calls[-3:] == [(B, L, M)] * 3  # the warm-up and two repetitions
    assert len(times.ms_per_token) == 2
    assert any(not parameter.equal(before[name]) for name, parameter in model.named_parameters())
    assert list(tmp_path.iterdir()) == []
