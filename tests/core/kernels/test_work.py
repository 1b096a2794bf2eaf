"""The work of a training step, of an evaluated segment and of a token equals the formulas.

Counts instead of times, because they are equal on every machine. Bounds on bytes list the tensors that are needed.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, d model width, F inner width, V vocabulary,
N layers.
"""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.core.builders import V, draw_tokens, make_decoder, small_model
from tests.core.work_counters import AllocationCounter, unseen_flops_per_token
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.measures.cost import evaluation_flops_per_token, step_flops_per_token, window_flops_per_prediction
from txlcli.core.reading.windows import WindowReader
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments

B, L, M = 3, 67, 71  # scores take most of the work, as at published sizes
K = M + L
N, H, D, WIDTH, F = 2, 3, 11, 14, 17
FLOAT = 4
SETTINGS = TrainSettings(seg_len=L, mem_len=M, batch_size=B, max_steps=9)


def one_lane_model(*, min_queries=L, **changed):
    """Return a model that computes one lane at a time, like models of published sizes on a CPU."""
    model = small_model(dtype=torch.float32, **changed)
    model.workspace.cache_bytes, model.workspace.min_queries = 1, min_queries
    return model


def floats(*sizes):
    """Return the bytes of fp32 tensors, given as (count, size)."""
    return FLOAT * sum(count * size for count, size in sizes)


SCORES = H * L * K  # of one lane


def training(*, min_queries=L, **changed):
    """Return a training run whose memory, gradients and optimizer state exist already."""
    ids = draw_tokens(1, 5 * B * L + 1)[0].numpy()
    settings = dataclasses.replace(SETTINGS, **changed)
    model = one_lane_model(min_queries=min_queries)
    started = Training(model, settings, TrainingSegments(ids, settings))
    for _ in range(3):
        started.update()
    return started


def allocated(work):
    with AllocationCounter() as counter:
        work()
    return counter.bytes


def operations(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def operations_by_formula(model, blocks=(L,)):
    """Return the operations of a training step, with those for the keys that no query of a block sees."""
    unseen = sum(size * unseen_flops_per_token(model.settings, size) for size in blocks)
    return B * (L * step_flops_per_token(model.settings, V, SETTINGS) + unseen)


@pytest.mark.parametrize(("queries", "blocks"), [(L, [L]), (17, [23, 23, 21])])
def test_a_training_step_multiplies_as_much_as_the_formula_and_the_keys_that_no_query_of_a_block_sees(queries, blocks):
    step = training(min_queries=queries)
    assert operations(step.update) == pytest.approx(operations_by_formula(step.model, blocks), rel=1e-12)


def training_bytes():
    """Return the bytes of the tensors of one training step without dropout; score buffers exist already."""
    forward_layer = [
        (B, SCORES),  # probabilities, kept for the backward pass
        (1, B * K * WIDTH),  # memory with segment, stored for the next one
        (4, B * K * H * D),  # keys, values, of memory and segment apart and together
        (1, K * H * D),  # position keys
        (5, B * L * H * D),  # queries, scaled, with u, with v; output
        (1, B * L * H * D),  # output, heads side by side
        (4, B * L * WIDTH),  # two projections, which become the sums; two norms
        (1, B * L * F),  # inner
    ]
    backward_layer = [
        (2 * B, SCORES),  # gradients of probabilities and scores
        (2, B * K * H * D),  # of keys and values
        (2, B * K * H * D),  # the same, of memory and segment apart, heads side by side
        (3, K * H * D),  # of position keys, and heads side by side
        (7, B * L * H * D),  # of output and queries, and heads side by side
        (5, B * L * WIDTH),  # of the layer's input, through keys, values and queries, and their sums
        (12, B * L * WIDTH),  # of sums, norms and projections
        (4, B * L * F),  # of the inner activations
        (1, 4 * WIDTH * H * D + WIDTH * H * D + 2 * WIDTH * F),  # of the matrices
    ]
    layer = floats(*forward_layer) + floats(*backward_layer)
    ends = floats(
        (4, K * WIDTH),  # sinusoids, in float64 on the way
        (8, B * L * WIDTH),
        (5, B * L * V),  # logits and their gradient
        (4, V * WIDTH),  # the table's gradients
    )
    return N * layer + ends


def test_a_training_step_allocates_no_more_than_its_tensors():
    step = training()
    given, bound = allocated(step.update), training_bytes()
    assert given <= bound
    assert bound - given < N * floats((B, SCORES))  # one more tensor of scores in each layer would be seen


def test_recomputing_repeats_the_scores():
    step = training(recompute=True)
    scores = 2 * 2 * B * N * SCORES * D  # two products, each of a multiplication and an addition
    expected = operations_by_formula(step.model) + scores
    assert operations(step.update) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("max_distance", [None, 3, 29])
@pytest.mark.parametrize("seg_len", [1, L])
def test_reading_multiplies_as_much_as_the_formula(seg_len, max_distance):
    reader = full_reader(seg_len, max_distance=max_distance)
    tokens = draw_tokens(B, seg_len)
    # Distances beyond the farthest key of a query are multiplied, too.
    seen = EvalSettings(seg_len=1, mem_len=M + seg_len - 1, same_length="off", max_distance=max_distance)
    expected = evaluation_flops_per_token(reader.model.settings, V, seen)
    assert operations(lambda: reader.losses(reader.read(tokens), tokens)) == pytest.approx(
        B * seg_len * expected, rel=1e-12
    )


@pytest.mark.parametrize("position", ["relative", "learned"])
def test_a_window_multiplies_as_much_as_the_formula_and_the_keys_that_no_query_sees(position):
    learned = {"n_positions": L} if position == "learned" else {}
    model = one_lane_model(position=position, **learned)
    reader = WindowReader(model, EvalSettings(seg_len=L, mem_len=0, batch_size=1))
    reader.read_last(draw_tokens(1, L))
    token = draw_tokens(1, 1)
    expected = window_flops_per_prediction(model.settings, V, reader.settings)
    terms = 3 if position == "relative" else 2
    unseen = 2 * (N - 1) * L * terms * (L - 1) / 2 * H * D  # of the layers below the last
    unused = 2 * (L - 1) * WIDTH * H * D  # queries of the last layer, projected with the keys
    assert expected <= operations(lambda: reader.losses(reader.read(token), token)) <= expected + unseen + unused


def full_reader(seg_len, max_distance=None, **changed):
    """Return a decoder with a full memory whose buffer does not slide at the next segment."""
    sizes = {"batch_size": B, "mem_len": M, "seg_len": seg_len, "max_distance": max_distance}
    reader = make_decoder(one_lane_model(memory_start="zeros", **changed), **sizes)
    reader.read(draw_tokens(B, seg_len))
    reader.reset()
    return reader


def reading_bytes(seg_len):
    """Return the bytes of the tensors of reading and scoring one segment; score buffers and keys exist already."""
    keys = M + seg_len
    layer = [
        (1, H * seg_len * keys),  # scores of one lane, used by the lanes one after the other
        (8, B * seg_len * H * D),  # query, key, value; the query scaled, with u, with v; output, heads side by side
        (7, B * seg_len * WIDTH),
        (1, B * seg_len * F),
        (2, H * D),  # u and v, scaled
    ]
    ends = [(6, B * seg_len * WIDTH), (3, B * seg_len * V), (10, B * seg_len)]
    return N * floats(*layer) + floats(*ends)


@pytest.mark.parametrize("seg_len", [1, L])
def test_reading_allocates_no_more_than_its_tensors(seg_len):
    reader, tokens = full_reader(seg_len), draw_tokens(B, seg_len)
    given, bound = allocated(lambda: reader.losses(reader.read(tokens), tokens)), reading_bytes(seg_len)
    assert given <= bound
    # A second tensor of scores in each layer would be noticed, or a copy of its keys where scores are small.
    assert bound - given < N * floats((1, H * max(seg_len, D) * (M + seg_len)))


def test_a_token_allocates_equally_much_after_a_long_text():
    reader, token = full_reader(1), draw_tokens(B, 1)
    sizes = {allocated(lambda: reader.losses(reader.read(token), token)) for _ in range(reader.capacity)}
    slide = 2 * N * floats((1, B * H * M * D))  # keys and values move now and then
    assert max(sizes) <= reading_bytes(1) + slide
    assert len(sizes) == 2
