"""Scoring: every token once, in the order of the stream, given what memory and segment hold."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests import reference
from tests.core import oracle
from tests.core.builders import V, draw_stream, small_model
from tests.core.work_counters import AllocationCounter
from txlcli.config.settings import EvalSettings
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.scoring import (
    Scores,
    Stream,
    attention_span,
    score,
)

L, M = 5, 7
assert_close = partial(np.testing.assert_allclose, rtol=1e-5)


def lanes_of(number):
    return EvalSettings(seg_len=L, mem_len=M, batch_size=number)


def bigram_model():
    """A model without context: neither attention nor feed-forward adds anything to the embedding."""
    model = small_model()
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.w_o.weight.zero_()
            layer.feed_forward.ff_2.weight.zero_()
    return model


@given(lanes=st.integers(1, 7), seg_len=st.integers(1, 11), count=st.integers(1, 60))
@example(lanes=7, seg_len=3, count=8)  # 2 tokens per lane, so 4 lanes are full and 3 not needed
@example(lanes=7, seg_len=11, count=3)
def test_every_token_is_scored_once_and_in_order(lanes, seg_len, count):
    # A loss of this model depends on one input and its target only, so it says which pair was scored where.
    model, seen = bigram_model(), []
    with torch.no_grad():
        table = model.log_probs(model(torch.arange(V)[:, None], model.first_memory(V, 0), mem_len=0)[0])[:, 0]
    settings = EvalSettings(seg_len=seg_len, mem_len=3, batch_size=lanes)
    text = draw_stream(count, settings, model, on_tokens=seen.append)
    assert_close(score(text).losses_nats, -table[text.inputs, text.targets])
    assert seen == sorted(seen)
    assert seen[-1] == count


@pytest.mark.parametrize("same_length", ["off", "m", "m_plus_one"])
@pytest.mark.parametrize(
    ("changed", "mem_len", "max_distance", "lengths"),
    [
        ({}, M, None, [5, 5, 5, 5, 3]),
        ({"norm": "pre"}, 3, 4, [5, 5, 5, 5, 3]),
        ({}, 0, None, [5, 5, 5, 5, 3]),
        ({}, 97, 4, [5, 5, 5, 5, 3]),
        ({"memory_start": "zeros"}, 37, 4, [5, 5, 1]),  # the zeros are seen whole by the shortest lane
    ],
)
def test_one_lane_gives_the_losses_of_the_oracle(same_length, changed, mem_len, max_distance, lengths):
    model, sizes = small_model(**changed), {"mem_len": mem_len, "max_distance": max_distance}
    text = draw_stream(sum(lengths), EvalSettings(seg_len=L, batch_size=1, same_length=same_length, **sizes), model)
    limit = {"off": None, "m": mem_len, "m_plus_one": mem_len + 1}[same_length] if mem_len else None
    log_probs, _ = oracle.read_segments(model, torch.from_numpy(text.inputs)[None], lengths, key_limit=limit, **sizes)
    scores = score(text)
    assert_close(scores.losses_nats, reference.cross_entropy_nats(log_probs[0], text.targets.tolist()))
    assert scores.lanes == 1


@pytest.mark.parametrize("same_length", ["off", "m", "m_plus_one"])
def test_the_buffer_is_no_longer_than_a_lane_can_fill(same_length):
    far = EvalSettings(seg_len=9_999_999, mem_len=9_999_999, batch_size=2, max_distance=4, same_length=same_length)
    whole = dataclasses.replace(far, seg_len=12, mem_len=29)
    fitting = dataclasses.replace(far, seg_len=12, mem_len=12)
    assert make_reader(small_model(), fitting).capacity == 24
    losses, allocated = [], []
    for text in (draw_stream(23, settings) for settings in (far, whole, fitting)):
        with AllocationCounter() as counter:
            losses.append(score(text).losses_nats)
        allocated.append(counter.bytes)
    assert np.array_equal(losses[0], losses[1])
    assert np.array_equal(losses[0], losses[2])
    assert allocated == [allocated[2]] * 3


@pytest.mark.parametrize(
    ("memory_start", "seg_len", "mem_len", "same_length", "span", "in_lane"),
    [
        ("empty", L, 7, "m", (7, 7), (7, 7)),
        ("empty", L, 7, "m_plus_one", (8, 8), (8, 8)),
        ("empty", L, 7, "off", (8, 12), (8, 12)),
        ("empty", 1, 7, "off", (8, 8), (8, 8)),
        ("empty", L, 0, "m", (1, 5), (1, 5)),
        ("empty", L, 0, "off", (1, 5), (1, 5)),
        ("empty", L, 11, "off", (12, 16), (12, 12)),  # a lane has 12 tokens
        ("empty", L, 999, "m", (999, 999), (12, 12)),
        ("zeros", L, 999, "m", (999, 999), (999, 999)),
    ],
)
def test_no_query_sees_more_than_its_lane_and_the_zeros_before_it(
    memory_start, seg_len, mem_len, same_length, span, in_lane
):
    model = small_model(memory_start=memory_start)
    settings = EvalSettings(seg_len=seg_len, mem_len=mem_len, batch_size=2, same_length=same_length)
    assert attention_span(model, settings) == span
    assert attention_span(model, settings, 23) == in_lane


@pytest.mark.parametrize(
    ("asked", "count", "lanes", "lane_len"), [(3, 23, 3, 8), (7, 8, 4, 2), (5, 3, 3, 1), (2, 1, 1, 1)]
)
def test_a_lane_is_a_contiguous_piece_that_begins_with_the_last_token_before_it(asked, count, lanes, lane_len):
    text = draw_stream(count, lanes_of(asked))
    scores = score(text)
    pieces = [slice(first, first + lane_len) for first in range(0, count, lane_len)]
    alone = [Stream(text.model, text.inputs[piece], text.targets[piece], lanes_of(1)) for piece in pieces]
    assert scores.lanes == lanes == len(pieces)
    assert_close(scores.losses_nats, np.concatenate([score(piece).losses_nats for piece in alone]))
    if lanes > 1:
        assert text.inputs[pieces[1]][0] == text.targets[pieces[0]][-1]


@pytest.mark.parametrize(
    ("count", "parts"), [(53, [range(2), range(2, 5)]), (51, [range(1), range(1, 4), range(4, 5)])]
)
def test_lanes_scored_apart_have_the_losses_that_they_have_together(count, parts):
    seen = []
    text = draw_stream(count, lanes_of(5), on_tokens=seen.append)
    apart = [score(text, selected=part).losses_nats for part in parts]
    assert_close(np.concatenate(apart), score(text).losses_nats)
    assert set(seen) == {25, 50, count}


def test_scoring_uses_no_dropout_and_no_chance_and_leaves_the_model_as_it_was():
    text = draw_stream(23, lanes_of(2), small_model(dropout=0.5, attention_dropout=0.5).train())
    first, second = (score(text).losses_nats for _ in range(2))
    assert np.array_equal(first, second)
    assert all(module.training for module in text.model.modules())


def test_the_total_is_summed_in_float64():
    # In float32, 2^24 + 1 is 2^24.
    scores = Scores(np.array([2**24, 1, 1], dtype=np.float32), seconds=0.5, lanes=1)
    assert scores.total_nats == 2**24 + 2
