"""Windows without memory: every prediction sees exactly the tokens that it should, at its own positions."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from tests.core.builders import draw_stream, draw_tokens, small_model
from txlcli.config.settings import EvalSettings
from txlcli.core.reading.reader import StateReader
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.sampling import Sampling, generate, reader_of_one_text
from txlcli.core.reading.windows import WindowReader, score_windows
from txlcli.errors import UsageError

N = 7
assert_close = partial(np.testing.assert_allclose, rtol=1e-5)
KINDS = {
    "relative": {},
    "relative, zeros": {"memory_start": "zeros", "norm": "pre"},
    "shaw": {"position": "shaw", "n_positions": 5},
    "sinusoid": {"position": "sinusoid"},
    "learned": {"position": "learned", "n_positions": N},
}


def windows(batch_size=2, max_distance=None, attn_len=N):
    return EvalSettings(seg_len=attn_len, mem_len=0, batch_size=batch_size, max_distance=max_distance)


@torch.no_grad()
def log_probs(model, window, max_distance=None):
    """Log-probabilities (V,) after a window (N,), from a forward pass."""
    empty = [past[:, :0] for past in model.first_memory(1, 0)]
    hidden, _ = model(torch.as_tensor(window)[None], empty, mem_len=0, max_distance=max_distance)
    return model.log_probs(hidden)[0, -1]


def by_definition(text):
    """The loss of each target, from its own window."""
    contexts = (text.inputs[max(0, place + 1 - N) : place + 1] for place in range(len(text.targets)))
    pairs = zip(contexts, text.targets, strict=True)
    return [-log_probs(text.model, each, text.settings.max_distance)[target].item() for each, target in pairs]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [3, 50])
def test_one_prediction_per_window_is_the_models_own_of_exactly_that_window(kind, batch_size):
    seen = []
    text = draw_stream(23, windows(batch_size), small_model(**KINDS[kind]), on_tokens=seen.append)
    assert_close(score_windows(text, stride=1).losses_nats, by_definition(text))
    assert seen == sorted(seen)
    assert seen[-1] == 23


@pytest.mark.parametrize("stride", [1, 3])
def test_shares_of_the_windows_are_disjoint_and_add_up_to_all_of_them(stride):
    text, every = draw_stream(23, windows()), ((0, 1), (0, 3), (1, 3), (2, 3))
    whole, *shares = (score_windows(text, stride=stride, share=share).losses_nats for share in every)
    assert set((np.stack(shares) != 0).sum(axis=0)) == {1}
    assert (sum(shares) == whole).all()


def test_distances_beyond_the_largest_share_an_encoding():
    text = draw_stream(23, windows(3, max_distance=3))
    near = score_windows(text, stride=1).losses_nats
    assert_close(near, by_definition(text))
    assert not np.allclose(near, score_windows(draw_stream(23, windows(3)), stride=1).losses_nats, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 5, N, N + 1, 20, 23])
@pytest.mark.parametrize("stride", [2, 3, N])
def test_with_a_stride_the_last_predictions_of_each_window_count_once(count, stride):
    text, expected = draw_stream(count, windows()), []
    for place, target in enumerate(text.targets):
        # Windows end at N, N + S, N + 2S ...; the last one at the end of the text.
        end = min(count, N + max(0, -(-(place + 1 - N) // stride)) * stride)
        expected.append(-log_probs(text.model, text.inputs[max(0, end - N) : place + 1])[target].item())
    assert_close(score_windows(text, stride=stride).losses_nats, expected)


def test_positions_that_were_not_learned_are_rejected():
    model = small_model(position="learned", n_positions=N)
    with pytest.raises(UsageError, match="learned 7 positions"):
        make_reader(model, windows(attn_len=N + 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [4, 12])
def test_a_text_is_drawn_from_the_window_of_its_last_tokens(kind, length):
    model, context = small_model(std=0.9, **KINDS[kind]), draw_tokens(1, length)[0]
    reader = reader_of_one_text(model, windows())
    assert isinstance(reader, WindowReader)
    drawn = list(itertools.islice(generate(reader, context, Sampling(greedy=True), seed=0), 15))
    text, expected = context.tolist(), []
    for _ in range(15):
        expected.append(int(log_probs(model, text[-N:]).argmax()))
        text.append(expected[-1])
    assert drawn == expected


def test_a_reader_of_windows_reports_the_graphs_that_read_them():
    class Captured(StateReader):
        has_captured = True

    model = small_model()
    assert WindowReader(model, windows()).path.endswith("not captured")
    model.own_reader = Captured
    assert WindowReader(model, windows()).path.endswith(", captured")
