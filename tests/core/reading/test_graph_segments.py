"""Segments read by graphs, one per phase of the buffer, are read as without graphs.

The graph of these tests repeats recorded operations on the same memory. That a GPU repeats them is for a GPU to show.
"""

import pytest

from tests.core import tape
from tests.core.builders import POSITIONS, assert_close, draw_tokens, make_decoder, read_parts, small_model
from txlcli.core.reading.decoder import MAX_PHASES

B, L = 2, 5


class Captures:
    """Captures by a tape, and counts captures and replays."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, run, device):
        replay = tape.capture(run, device)
        self.captured += 1

        def counted():
            self.replayed += 1
            return replay()

        return counted


def both_ways(model, count, lengths=(L,), **how):
    """Last hidden states with graphs and without, and what was captured."""
    captures, tokens = Captures(), draw_tokens(B, count)
    decoder = make_decoder(model, batch_size=B, seg_len=L, capture_graph=captures, **how)
    expected = read_parts(make_decoder(model, batch_size=B, seg_len=L, **how), tokens, lengths)
    return read_parts(decoder, tokens, lengths), expected, captures


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("norm", "memory_start"), [("post", "zeros"), ("pre", "empty")])
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
def test_graphs_read_what_is_read_without_them(position, norm, memory_start, how, phases):
    model = small_model(norm=norm, memory_start=memory_start, **POSITIONS[position])
    found, expected, captures = both_ways(model, 24 * L, **how)
    assert_close(found, expected)
    assert captures.captured == phases
    assert captures.replayed > 2 * phases


@pytest.mark.parametrize("lengths", [(L, L, 3), (L, L, L, 1), (L, L, 2, L)], ids=str)
def test_segments_of_other_lengths_between_them_are_read_without_graphs(lengths):
    found, expected, captures = both_ways(small_model(position="sinusoid"), 40 * L, lengths, mem_len=21)
    assert_close(found, expected)
    assert captures.replayed


def test_single_tokens_and_segments_by_graphs_read_the_same_buffer():
    model, captures = small_model(position="rotary", d_head=12), Captures()
    tokens, lengths = draw_tokens(B, 30 * L), (L, L, 1, 1, L, 1)
    decoder = make_decoder(model, batch_size=B, seg_len=L, mem_len=13, capture_graph=captures)
    expected = read_parts(make_decoder(model, batch_size=B, seg_len=L, mem_len=13), tokens, lengths)
    assert_close(read_parts(decoder, tokens, lengths), expected)
    assert captures.captured > 1


def test_after_a_reset_graphs_wait_for_a_full_memory():
    model, captures, tokens = small_model(), Captures(), draw_tokens(B, 20 * L)
    decoder = make_decoder(model, batch_size=B, seg_len=L, mem_len=12, capture_graph=captures)
    first = read_parts(decoder, tokens, (L,))
    decoder.reset()
    assert_close(read_parts(decoder, tokens, (L,)), first)
    assert captures.captured == 1


@pytest.mark.parametrize(("segments", "captured"), [(9, 0), (10, 1), (11, 2), (30, 2)])
def test_a_phase_that_occurs_once_is_not_captured(segments, captured):
    _, _, captures = both_ways(small_model(n_layers=1), segments * L, mem_len=7 * L)  # two phases after seven segments
    assert captures.captured == captured


def test_observed_layers_are_read_without_graphs():
    captures = Captures()
    decoder = make_decoder(small_model(), batch_size=B, seg_len=L, mem_len=7, capture_graph=captures)
    decoder.observed = True
    read_parts(decoder, draw_tokens(B, 20 * L), (L,))
    assert captures.captured == 0


def test_with_too_many_phases_nothing_is_captured():
    mem_len = 4 * L * MAX_PHASES + 4
    _, _, captures = both_ways(small_model(n_layers=1), mem_len + 3 * (MAX_PHASES + 1) * L, mem_len=mem_len)
    assert captures.captured == 0
