"""Token streams divided into lanes and segments."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlcli.config.train_settings import TrainSettings
from txlcli.core.reading.scoring import scored_stream
from txlcli.core.training.segments import StreamPosition, TrainingSegments
from txlcli.errors import StoreError, TrainingError


def segments_of(ids, starts=None, *, shuffles=True, **settings):
    settings = {"mem_len": 0, "max_steps": 1, "seed": 0, **settings}
    return TrainingSegments(ids, TrainSettings(**settings), starts, shuffles=shuffles)


def epoch_of(segments, number=0):
    """Return the inputs and targets of one epoch, (B, lane length) each."""
    numbers = range(segments.segments_in(number))
    windows = [segments.at(StreamPosition(number, segment)) for segment in numbers]  # (B, L + 1) each
    return np.hstack([window[:, :-1] for window in windows]), np.hstack([window[:, 1:] for window in windows])


@pytest.mark.parametrize(
    ("boundary", "count", "read", "predicted"),
    [
        (None, None, [3, 1, 4, 1], [1, 4, 1, 5]),  # the first token is only an input
        (0, None, [0, 3, 1, 4, 1], [3, 1, 4, 1, 5]),  # an implied boundary
        (None, 2, [3, 1], [1, 4]),
        (0, 2, [0, 3], [3, 1]),
    ],
)
def test_the_stream_to_score_begins_with_a_boundary_if_there_is_one(boundary, count, read, predicted):
    inputs, targets = scored_stream(np.array([3, 1, 4, 1, 5], dtype=np.uint8), boundary, count=count)
    assert (inputs.tolist(), targets.tolist()) == (read, predicted)


def test_segments_of_24_tokens_by_hand():
    # 24 tokens, 2 lanes: 23 // 2 = 11 predictions each, in segments of 5, 5 and 1.
    segments = segments_of(np.arange(24), batch_size=2, seg_len=5)
    assert segments.segments_in(0) == 3
    assert segments.at(StreamPosition(0, 1)).tolist() == [[5, 6, 7, 8, 9, 10], [16, 17, 18, 19, 20, 21]]
    assert segments.at(StreamPosition(0, 2)).tolist() == [[10, 11], [21, 22]]


def test_a_file_that_is_truncated_meanwhile_is_an_error_and_one_that_is_replaced_is_not(tmp_path):
    path = tmp_path / "ids"
    path.write_bytes(bytes(4) + np.arange(20_000, dtype=np.uint16).tobytes())
    ids = np.memmap(path, dtype=np.uint16, mode="r", offset=4, shape=(20_000,))
    segments = segments_of(ids, batch_size=2, seg_len=9_000)
    path.rename(tmp_path / "old")
    path.write_bytes(b"new")
    assert segments.at(StreamPosition(0, 1))[:, 0].tolist() == [9_000, 18_999]
    os.truncate(tmp_path / "old", 8_000)
    with pytest.raises(StoreError, match="/ids was truncated during training"):
        segments.at(StreamPosition(0, 1))


@given(lanes=st.integers(1, 7), seg_len=st.integers(1, 11), count=st.integers(8, 100))
def test_an_epoch_contains_all_tokens_but_the_remainder(lanes, seg_len, count):
    inputs, targets = epoch_of(segments_of(np.arange(count), batch_size=lanes, seg_len=seg_len))
    used = (count - 1) // lanes * lanes
    assert inputs.flatten().tolist() == list(range(used))  # lane after lane: contiguous, nothing twice
    assert targets.flatten().tolist() == list(range(1, used + 1))
    assert count - 1 - used < lanes


@given(seg_len=st.integers(1, 11), count=st.integers(4, 40))
def test_positions_follow_each_other_through_the_epochs(seg_len, count):
    segments = segments_of(np.arange(count), batch_size=3, seg_len=seg_len)
    position, positions = StreamPosition(), []
    for _ in range(2 * segments.segments_in(0) + 1):
        positions.append((position.epoch, position.segment))
        position = segments.next_position(position)
    assert positions == [(e, s) for e in range(2) for s in range(segments.segments_in(0))] + [(2, 0)]


@given(lanes=st.integers(1, 7), seg_len=st.integers(1, 11), count=st.integers(8, 100), epoch=st.integers(0, 5))
def test_a_rolled_lane_has_its_own_tokens_in_a_circle(lanes, seg_len, count, epoch):
    segments = segments_of(np.arange(count), batch_size=lanes, seg_len=seg_len, roll_lanes=True, seed=7)
    inputs, targets = epoch_of(segments, epoch)
    length = (count - 1) // lanes
    for lane in range(lanes):
        first = inputs[lane, 0] - lane * length
        assert inputs[lane].tolist() == [lane * length + (first + i) % length for i in range(length)]
        assert targets[lane].tolist() == [lane * length + (first + i + 1) % length for i in range(length)]


def test_lanes_begin_at_other_tokens_in_every_epoch_and_with_every_seed():
    def starts(epoch, seed):
        segments = segments_of(np.arange(4001), batch_size=4, seg_len=5, roll_lanes=True, seed=seed)
        return tuple(segments.at(StreamPosition(epoch, 0))[:, 0] % 1000)

    all_starts = [starts(epoch, seed) for epoch in range(50) for seed in (1, 2)]
    assert len(set(all_starts)) == 100
    assert all(len(set(lanes)) > 1 for lanes in all_starts)
    assert np.mean(all_starts) == pytest.approx(500, abs=60)  # 400 uniform numbers: 4 standard errors


def test_some_lanes_of_a_rolled_epoch_are_those_of_all():
    segments = segments_of(np.arange(60), batch_size=5, seg_len=4, roll_lanes=True, seed=3)
    position = StreamPosition(1, 2)
    np.testing.assert_array_equal(segments.at(position, slice(2, 4)), segments.at(position)[2:4])


LENGTHS = [4, 1, 6, 7, 5, 2, 3, 8, 1, 4]
STARTS = np.cumsum([0, *LENGTHS[:-1]])


def sentence_epoch(number, *, seed=3, seg_len=5, starts=STARTS):
    """Return the text of one epoch in one lane, with its last target."""
    ids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)  # a token is the number of its sentence
    segments = segments_of(ids, starts, batch_size=1, seg_len=seg_len, seed=seed)
    inputs, targets = epoch_of(segments, number)
    np.testing.assert_array_equal(inputs[0, 1:], targets[0, :-1])
    return [*inputs[0].tolist(), int(targets[0, -1])]


def test_epochs_differ_in_their_order_and_the_same_seed_repeats_it():
    orders = [tuple(sentence_epoch(epoch)) for epoch in range(4)]
    assert len(set(orders)) == 4
    assert orders == [tuple(sentence_epoch(epoch)) for epoch in range(4)]
    assert orders[0] != tuple(sentence_epoch(0, seed=4))


@pytest.mark.parametrize(("count", "lanes"), [(0, 1), (1, 1), (7, 7), (3, 5)])
def test_a_text_too_short_for_the_lanes_is_rejected(count, lanes):
    with pytest.raises(TrainingError, match=f"too few for train.batch_size = {lanes}"):
        segments_of(np.arange(count), batch_size=lanes, seg_len=5)


def reordered(seed, epoch):
    """Return the stream of an epoch: the sentences in the order of NumPy's shuffle of their numbers."""
    order = np.arange(len(LENGTHS), dtype=np.uint32)
    np.random.default_rng((seed, epoch)).shuffle(order)
    return np.concatenate([np.full(LENGTHS[sentence], sentence) for sentence in order])


@pytest.mark.parametrize("lanes", [range(5), range(2), range(1, 4), range(4, 5)])
def test_some_lanes_are_read_in_the_order_of_all_sentences(lanes):
    ids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    segments = segments_of(ids, STARTS, batch_size=5, seg_len=3, seed=7)
    stream = reordered(7, 1)
    for segment in range(segments.segments_in(0)):
        window = segments.at(StreamPosition(1, segment), slice(lanes.start, lanes.stop))
        firsts = [lane * segments.lane_len + 3 * segment for lane in lanes]
        assert window.tolist() == [stream[first : first + window.shape[1]].tolist() for first in firsts]
