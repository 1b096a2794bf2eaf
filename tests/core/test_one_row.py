"""One token of one lane at a time: layers laid out anew are the same function."""

import pytest
import torch

from tests.core.builders import draw_tokens, small_model
from txlcli.core.decoding import Decoder
from txlcli.core.one_row import for_one_row

M = 7
FEED_FORWARD = "feed_forward.ff_1.weight"


@torch.inference_mode()
def read(decoder, tokens):
    return torch.cat([decoder.read(part) for part in tokens.split(1, dim=1)], dim=1)


@pytest.mark.parametrize(
    "changed", [{"norm": "post"}, {"norm": "pre"}, {"tie_biases": False}, {"position": "sinusoid"}], ids=str
)
@pytest.mark.parametrize(
    ("precision", "dtype", "tolerance"),
    [("fp32", torch.float64, 1e-12), ("fp32", torch.float32, 1e-5), ("bf16", torch.float32, 0.02)],
)
def test_single_tokens_are_read_as_the_model_s_own_layers_read_them(changed, precision, dtype, tolerance):
    model, tokens = small_model(dtype=dtype, **changed), draw_tokens(1, 29)
    how = {"lanes": 1, "mem_len": M, "seg_len": 1, "precision": precision}
    own = Decoder(model, **how)
    own.watched = True
    expected = read(own, tokens)
    assert own._one_row is None
    made = Decoder(model, **how)
    torch.testing.assert_close(read(made, tokens), expected, rtol=0, atol=tolerance)
    assert made._one_row is not None


def test_single_tokens_of_several_lanes_are_no_single_rows():
    decoder = Decoder(small_model(), lanes=2, mem_len=M, seg_len=1)
    read(decoder, draw_tokens(2, 3))
    assert decoder._one_row is None


def test_a_matrix_that_widens_lies_column_by_column_and_is_the_same_matrix():
    layers = small_model(dtype=torch.float32).layers
    for own, made in zip(layers, for_one_row(layers), strict=True):
        widening = made.feed_forward.ff_1.weight
        assert widening.t().is_contiguous()
        assert torch.equal(widening, own.feed_forward.ff_1.weight)
        assert made.attention.merged.t().is_contiguous()
        parts = made.attention.merged.split(len(own.attention.w_q.weight))
        plain = (own.attention.w_q, own.attention.w_k_content, own.attention.w_v)
        assert all(torch.equal(part, one.weight) for part, one in zip(parts, plain, strict=True))


def test_all_else_is_shared_and_the_model_is_left_as_it_was():
    model = small_model(dtype=torch.float32)
    made = for_one_row(model.layers)
    for own, other in zip(model.layers, made, strict=True):
        others = dict(other.named_parameters())
        for name, parameter in own.named_parameters():
            assert (others[name] is parameter) == (name != FEED_FORWARD)
        assert own.feed_forward.ff_1.weight.is_contiguous()
        assert own.feed_forward.ff_1.weight.requires_grad
        assert own.attention.merged is None
