"""An encoding that is registered from outside the package, in training, evaluation and decoding."""

import pytest
import torch

from tests.core import tape
from tests.core.builders import (
    assert_close,
    cut,
    decoded,
    draw_tokens,
    make_decoder,
    model_settings,
    read_segments,
    small_model,
)
from tests.extensions import SlopesEncoding, registered_encoding, registered_slopes
from txlcli.core.architectures.registry import new_model
from txlcli.core.backend import ScoreTerms
from txlcli.core.model.attention import split_heads
from txlcli.core.model.encodings import Encoding
from txlcli.core.model.losses import Objective

B, L, M, H = 2, 5, 7, 3


@pytest.fixture(autouse=True)
def slopes():
    with registered_slopes():
        yield


class RampEncoding(SlopesEncoding):
    """Slopes whose factors begin as 1, 2, ..., H."""

    def reset_parameters(self):
        with torch.no_grad():
            self.log_factors.copy_(torch.arange(1, len(self.log_factors) + 1).log())


def test_a_new_run_begins_with_the_parameters_of_its_encoding_and_others_stay_as_they_are():
    with registered_encoding("ramp", RampEncoding):
        slopes, ramps = (
            dict(new_model(model_settings(position=name), 19, seed=5, device=torch.device("cpu")).named_parameters())
            for name in ("slopes", "ramp")
        )
    torch.testing.assert_close(ramps.pop("encoding.log_factors").exp(), torch.arange(1.0, H + 1))
    assert ramps.keys() == slopes.keys() - {"encoding.log_factors"}
    assert all(torch.equal(slopes[name], ramp) for name, ramp in ramps.items())


class NearEncoding(Encoding):
    """A trained vector for each of the distances 0 to 3; all larger distances share that of 3."""

    def __init__(self, settings):
        super().__init__(settings)
        self.vectors = torch.nn.Parameter(torch.empty(4, settings.n_heads * settings.d_head))

    def score_terms(self, reach, *, max_distance, like):
        count = min(4, reach) if max_distance is None else min(4, reach, max_distance + 1)
        key = split_heads(self.vectors[-count:], self.settings.n_heads)
        return [ScoreTerms(reach, position_key=key)] * self.settings.n_layers


class RepeatingEncoding(NearEncoding):
    def score_terms(self, reach, *, max_distance, like):
        farthest = 3 if max_distance is None else min(3, max_distance)
        key = split_heads(self.vectors[3 - _distances(reach).clamp(max=farthest)], self.settings.n_heads)
        return [ScoreTerms(reach, position_key=key)] * self.settings.n_layers


def _distances(reach):
    return torch.arange(reach - 1, -1, -1)


@pytest.fixture
def near_and_repeating():
    with registered_encoding("near", NearEncoding), registered_encoding("repeating", RepeatingEncoding):
        repeating = small_model(std=0.2, position="repeating")
        near = small_model(std=0.2, position="near")
        near.load_state_dict(repeating.state_dict())
        yield near, repeating


@pytest.mark.parametrize("max_distance", [None, 2, 9])
@pytest.mark.parametrize("seg_len", [1, L])
def test_one_position_key_may_stand_for_all_farther_distances(near_and_repeating, seg_len, max_distance):
    near, repeating = near_and_repeating
    tokens, options = draw_tokens(B, 23), {"mem_len": M, "max_distance": max_distance}
    lengths = cut(23, seg_len)
    with torch.no_grad():
        expected, _ = read_segments(repeating, tokens, lengths, **options)
        given, _ = read_segments(near, tokens, lengths, **options)
    assert_close(given, expected)
    for capture_graph in (None, tape.call_again):
        decoder = make_decoder(near, batch_size=B, seg_len=seg_len, **options, capture_graph=capture_graph)
        assert_close(decoded(near, tokens, decoder, lengths), expected)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_shared_position_key_learns_from_all_farther_distances(near_and_repeating, backend, recompute):
    grads = []
    for original in near_and_repeating:
        model = original.on(attention=backend, recompute=recompute)
        tokens = draw_tokens(B, 2 * L)
        _, memory = model(tokens[:, :L], model.first_memory(B, M), mem_len=M)
        targets = draw_tokens(B, L, seed=9)
        loss, *_ = model.objective(tokens[:, L:], targets, memory, Objective(mem_len=M))
        grads.append(torch.autograd.grad(loss, model.encoding.vectors)[0])
    assert grads[1].count_nonzero() == grads[1].numel()
    torch.testing.assert_close(*grads, rtol=0, atol=1e-10)
