"""Single tokens, and segments by the phases of the buffer, are read by graphs as without them.

The graph of these tests calls the function again, or repeats recorded operations on the same memory. That a GPU repeats
them is for a GPU to show.
"""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.core import tape
from tests.core.builders import POSITIONS, assert_close, draw_tokens, make_decoder, read_parts, small_model
from tests.core.tape import Graphs
from txlcli.core.kernels.cuda_graph import GraphPool, captured_or_called
from txlcli.core.reading.decoder import MAX_PHASES
from txlcli.core.reading.sampling import Sampling, sample_next
from txlcli.errors import UsageError

B, L, M = 2, 5, 7
CUDA = torch.device("cuda")


def test_a_step_after_a_reset_knows_nothing_of_the_text_before():
    tokens = draw_tokens(B, 2 * M).split(1, dim=1)
    decoder = make_decoder(small_model(), batch_size=B, seg_len=1, mem_len=M, capture_graph=tape.call_again)
    first = [decoder.read(token) for token in tokens]
    assert not torch.equal(decoder.read(tokens[0]), first[0])
    decoder.reset()
    # Nor has a later step written over what an earlier one gave.
    assert all(torch.equal(decoder.read(token), before) for token, before in zip(tokens, first, strict=True))


class Shapes(TorchDispatchMode):
    """Lists every operation with the shapes of what it gets."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        described = tree_map(lambda one: one.shape if isinstance(one, torch.Tensor) else None, (args, kwargs))
        self.found.append((func, str(described)))
        return func(*args, **(kwargs or {}))


def test_no_operation_of_a_step_knows_how_long_the_text_is():
    decoder = make_decoder(small_model(), batch_size=B, seg_len=1, mem_len=400, capture_graph=tape.call_again)
    steps = []
    for token in draw_tokens(B, 9).split(1, dim=1):
        with Shapes() as shapes:
            decoder.read(token)
        steps.append(shapes.found)
    assert len(steps[1]) > 50
    assert all(step == steps[1] for step in steps[2:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA can capture here")
def test_what_cannot_be_captured_is_called_each_time_and_a_warning_says_why():
    run = torch.zeros(3).clone
    message = r"^CUDA cannot capture the kernels of a step as a graph \(.*\): launched one by one, they take longer$"
    with pytest.raises(UsageError, match=message):
        GraphPool()(run, CUDA)
    with pytest.warns(UserWarning, match=message):
        assert captured_or_called(GraphPool())(run, CUDA) is run


def test_a_reader_with_graphs_is_gone_with_its_last_reference():
    """Its buffers and copies of weights are large, and a GPU without memory does not wait for Python's collector."""
    decoder = make_decoder(small_model(), batch_size=B, seg_len=L, mem_len=M, capture_graph=tape.capture)
    tokens = draw_tokens(B, 9 * L)
    for part in (*tokens[:, : 8 * L].split(L, dim=1), *tokens[:, 8 * L :].split(1, dim=1)):
        decoder.losses(decoder.read(part), part)
    noise = torch.ones(3, dtype=torch.float64)
    choose = decoder.captured(sample_next, Sampling())
    for _ in range(2):
        choose(decoder.read(tokens[:, :1])[0], noise)
    assert decoder.has_captured
    gone = weakref.ref(decoder), weakref.ref(decoder.model)
    gc.disable()
    try:
        del decoder, choose
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def both_ways(model, count, lengths=(L,), **how):
    """Last hidden states with graphs and without, and what was captured."""
    graphs, tokens = Graphs(), draw_tokens(B, count)
    decoder = make_decoder(model, batch_size=B, seg_len=L, capture_graph=graphs, **how)
    expected = read_parts(make_decoder(model, batch_size=B, seg_len=L, **how), tokens, lengths)
    return read_parts(decoder, tokens, lengths), expected, graphs


@pytest.mark.parametrize("position", ["relative", "rotary"])
@pytest.mark.parametrize(
    ("how", "phases"),
    [
        ({"mem_len": 7}, 1),
        ({"mem_len": 7, "same_length": "m"}, 1),
        ({"mem_len": 40, "same_length": "m_plus_one", "max_distance": 4}, 2),
        ({"mem_len": 48}, 3),
        ({"mem_len": 0}, 1),
    ],
    ids=str,
)
def test_the_phases_of_a_buffer_are_captured_and_replayed(position, how, phases):
    model = small_model(memory_start="zeros", **POSITIONS[position])
    found, expected, graphs = both_ways(model, 24 * L, **how)
    assert_close(found, expected)
    assert graphs.captured == phases
    assert graphs.replays > 2 * phases


@pytest.mark.parametrize("lengths", [(L, L, 3), (L, L, L, 1), (L, L, 2, L)], ids=str)
def test_segments_of_other_lengths_between_them_are_read_without_graphs(lengths):
    found, expected, graphs = both_ways(small_model(position="sinusoid"), 40 * L, lengths, mem_len=21)
    assert_close(found, expected)
    assert graphs.replays


def test_single_tokens_and_segments_by_graphs_read_the_same_buffer():
    model, graphs = small_model(position="rotary", d_head=12), Graphs()
    tokens, lengths = draw_tokens(B, 30 * L), (L, L, 1, 1, L, 1)
    decoder = make_decoder(model, batch_size=B, seg_len=L, mem_len=13, capture_graph=graphs)
    expected = read_parts(make_decoder(model, batch_size=B, seg_len=L, mem_len=13), tokens, lengths)
    assert_close(read_parts(decoder, tokens, lengths), expected)
    assert graphs.captured > 1


@pytest.mark.parametrize(("segments", "captured"), [(9, 0), (10, 1), (11, 2), (30, 2)])
def test_a_phase_that_occurs_once_is_not_captured(segments, captured):
    _, _, graphs = both_ways(small_model(n_layers=1), segments * L, mem_len=7 * L)  # two phases after seven segments
    assert graphs.captured == captured


def test_with_too_many_phases_nothing_is_captured():
    mem_len = 4 * L * MAX_PHASES + 4
    _, _, graphs = both_ways(small_model(n_layers=1), mem_len + 3 * (MAX_PHASES + 1) * L, mem_len=mem_len)
    assert graphs.captured == 0


@pytest.mark.parametrize("changes", [{}, {"cutoffs": (5, 11), "div_val": 2}], ids=["softmax", "adaptive softmax"])
@pytest.mark.parametrize("length", [L, 1])
@torch.inference_mode()
def test_losses_of_whole_segments_and_of_single_tokens_are_computed_by_graphs(changes, length):
    """Targets are of the head alone, then of the tails alone: these get more rows, and other graphs."""
    model, graphs = small_model(**changes), Graphs()
    decoder = make_decoder(model, batch_size=B, seg_len=L, mem_len=0, capture_graph=graphs)
    hidden = decoder.read(draw_tokens(B, L))[:, :length]
    before = graphs.captured
    for highest, lowest in ((5, 0), (5, 0), (5, 0), (19, 11), (19, 11), (19, 0), (11, 0)):
        targets = draw_tokens(B, length, seed=highest) % (highest - lowest) + lowest
        torch.testing.assert_close(decoder.losses(hidden, targets), model.losses(hidden, targets), rtol=0, atol=1e-12)
    assert graphs.captured == before + (3 if changes else 1)
    if length == L:
        expected = model.losses(hidden[:, :2], targets[:, :2])
        assert torch.equal(decoder.losses(hidden[:, :2], targets[:, :2]), expected)
