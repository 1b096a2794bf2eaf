"""A token read without a size that changes is read as by the decoder's own way.

A CPU repeats the step itself; that a GPU repeats a recording of it is for a GPU to show.
"""

from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.core import tape
from tests.core.builders import POSITIONS, assert_close, draw_tokens, make_decoder, read_parts, small_model
from tests.samples import sampled
from txlcli.core.kernels.cuda_graph import WARM_UP, capture, captured_or_called
from txlcli.errors import UsageError

B, L, M, T = 2, 5, 7, 53
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def read(model, tokens, *, lengths, **options):
    """Last hidden states (B, T, d) of a stream read in parts of these lengths, over and over."""
    return read_parts(make_decoder(model, batch_size=len(tokens), seg_len=L, **options), tokens, lengths)


OPTIONS = [
    {"mem_len": M},
    {"mem_len": M, "same_length": "m"},
    {"mem_len": M, "same_length": "m_plus_one", "max_distance": 3},
    {"mem_len": 40, "max_distance": 4},
    {"mem_len": 0},
]


@pytest.mark.parametrize(
    ("position", "norm", "options", "lengths"),
    sampled(3, POSITIONS, ["post", "pre"], OPTIONS, [(1,), (3, 1, 1, 5, 1)]),
    ids=str,
)
def test_every_token_is_what_the_decoder_reads(position, norm, options, lengths):
    memory_start = "zeros" if norm == "post" else "empty"
    model, tokens = small_model(norm=norm, memory_start=memory_start, **POSITIONS[position]), draw_tokens(B, 55)
    expected = read(model, tokens, lengths=lengths, **options)
    found = read(model, tokens, lengths=lengths, capture_graph=tape.call_again, **options)
    assert_close(found, expected)


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
        """Note it, then do it."""
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
        capture(run, CUDA)
    with pytest.warns(UserWarning, match=message):
        assert captured_or_called(capture)(run, CUDA) is run


def test_memory_that_runs_out_in_a_capture_is_reported_as_such(monkeypatch):
    """The end of the capture raises an error of its own."""
    recording = mock.MagicMock(__exit__=mock.Mock(side_effect=RuntimeError("a previous error during capture")))
    for name in ("CUDAGraph", "Stream", "stream", "current_stream", "graph"):
        monkeypatch.setattr(
            torch.cuda, name, mock.MagicMock(return_value=recording if name == "graph" else mock.MagicMock())
        )
    run = mock.Mock(side_effect=[torch.ones(1)] * WARM_UP + [torch.OutOfMemoryError("CUDA out of memory.")])
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        capture(run, CUDA)


def test_a_recording_casts_weights_itself(monkeypatch):
    """What autocast had cast before would be gone when the recording is repeated."""
    graph, stream = mock.MagicMock(), mock.MagicMock()
    for name in ("CUDAGraph", "Stream", "stream", "current_stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, stream if name != "CUDAGraph" else lambda: graph)
    found = []

    def run():
        found.append(torch.is_autocast_cache_enabled())
        return torch.ones(1)

    repeat = capture(run, CUDA)
    assert found == [False] * (WARM_UP + 1)
    assert torch.is_autocast_cache_enabled()
    repeat()
    assert len(found) == WARM_UP + 1
    graph.replay.assert_called_once_with()
