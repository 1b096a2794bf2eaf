"""Parts of later blocks (RMSNorm, SwiGLU, normalized queries and keys, no biases, gates), each and together."""

import pytest
import torch
from torch.nn import functional as F

from tests.core.builders import V, draw_tokens, model_settings, small_model
from tests.core.oracle import assert_equals_oracle
from tests.samples import sampled
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.backend import ScoreTerms
from txlcli.core.model.attention import HeadNorm
from txlcli.core.model.layer import HiddenMemory
from txlcli.core.model.transformer_xl import TransformerXL

B, L, M = 2, 5, 7
PARTS = {
    "rms": {"norm_type": "rms"},
    "swiglu": {"feed_forward": "swiglu"},
    "qk_norm": {"qk_norm": "rms"},
    "no biases": {"biases": "none"},
    "modern": {"block": "modern"},
    "gru": {"gating": "gru"},
    "modern gru": {"block": "modern", "gating": "gru"},
}
NORMS = ["post", "pre", "pre_released"]
POSITIONS = {"relative": {"tie_biases": False}, "rotary": {"d_head": 12}, "alibi": {}, "t5": {}, "none": {}}
ALL = 1 - 2**-20  # a rate that drops every entry


def make(part, *, position="relative", **changed):
    if PARTS[part].get("gating") == "gru" and changed["norm"] == "post":
        changed["norm"] = "pre"  # gates need it
    return small_model(**PARTS[part], position=position, **POSITIONS[position], **changed)


@pytest.mark.parametrize(("part", "norm", "position"), sampled(3, PARTS, NORMS, POSITIONS))
def test_segments_with_growing_memory_equal_the_oracle(part, norm, position):
    assert_equals_oracle(make(part, norm=norm, position=position), draw_tokens(B, 14), [L, L, 3, 1], mem_len=M)


def test_a_norm_of_heads_in_16_bits_is_computed_in_float32():
    norm = HeadNorm(12, 1e-5)
    heads = torch.randn(B, 3, L, 12)
    given = norm(heads.bfloat16())
    assert given.dtype == torch.bfloat16
    torch.testing.assert_close(given, norm(heads.bfloat16().float()).bfloat16(), rtol=0, atol=0)


def test_swiglu_drops_its_activations():
    feed_forward = small_model(block="modern").train().layers[0].feed_forward
    hidden = torch.randn(B, L, 14, dtype=torch.float64)
    expected = F.linear(
        F.silu(F.linear(hidden, feed_forward.ff_gate.weight)) * F.linear(hidden, feed_forward.ff_1.weight),
        feed_forward.ff_2.weight,
    )
    torch.testing.assert_close(feed_forward(hidden), expected, rtol=0, atol=1e-12)
    feed_forward.dropout.rate = ALL
    assert not feed_forward(hidden).count_nonzero()


@pytest.mark.parametrize(
    ("changed", "removed", "added"),
    [
        ({"norm_type": "rms"}, 5 * 14, 0),  # the biases of two norms per layer, and of the last one
        ({"biases": "none"}, 5 * 14 + 2 * (17 + 14), 0),
        ({"norm_type": "rms", "biases": "none"}, 5 * 14 + 2 * (17 + 14), 0),
        ({"qk_norm": "rms"}, 0, 2 * 2 * 11),
        ({"feed_forward": "swiglu"}, 2 * (2 * 14 * 17 + 17), 2 * (3 * 14 * 11 + 2 * 11)),  # 34 / 3 is 11
        ({"block": "modern"}, 5 * 14 + 2 * (2 * 14 * 17 + 17 + 14), 2 * (3 * 14 * 11 + 2 * 11)),
        ({"gating": "gru"}, 0, 2 * 2 * (6 * 14 * 14 + 14)),
    ],
    ids=str,
)
def test_parameters_equal_a_calculation_by_hand(changed, removed, added):
    count = count_parameters(model_settings(norm="pre"), V)
    assert count_parameters(model_settings(norm="pre", **changed), V) == count - removed + added


def test_the_inner_width_of_swiglu_keeps_the_number_of_weights():
    for d_inner, width in ((2048, 1365), (2052, 1368), (4096, 2731), (1, 1), (17, 11)):
        settings = model_settings(feed_forward="swiglu", d_inner=d_inner)
        assert settings.inner_width == width
        assert abs(3 * width - 2 * d_inner) <= 1
        assert model_settings(d_inner=d_inner).inner_width == d_inner


@pytest.mark.parametrize(("gate_bias", "bias"), [({}, 2), ({"gate_bias": 0.0}, 0), ({"gate_bias": 30.0}, 30)], ids=str)
@pytest.mark.parametrize("init", ["pytorch", "tf"])
def test_update_gates_begin_with_their_bias_and_large_ones_with_the_identity(gate_bias, bias, init):
    torch.manual_seed(3)
    settings = model_settings(gating="gru", norm="pre", init=init, **gate_bias)
    model = TransformerXL(settings, V).double()
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("_gate.update_bias")]
    assert [tensor.tolist() for tensor in biases] == [[bias] * 14] * (2 * 2)
    hidden, branch = (torch.randn(B, L, 14, dtype=torch.float64) for _ in range(2))
    joined = model.layers[0].attention_gate(hidden, branch)
    assert torch.allclose(joined, hidden, rtol=0, atol=1e-10) == (bias == 30)


def test_a_gate_reads_a_positive_branch_after_dropout():
    layer = small_model(gating="gru", norm="pre").layers[0].train()
    layer.attention_gate.register_forward_hook(lambda _module, inputs, _output: read.append(inputs[1]))
    for rate in (0.0, ALL):
        read = []
        layer.dropout.rate = rate
        memory = HiddenMemory(hidden=torch.zeros(B, 0, 14, dtype=torch.float64))
        layer(torch.randn(B, L, 14, dtype=torch.float64), memory, ScoreTerms(reach=L))
        assert read[0].min() == 0
        assert bool(read[0].count_nonzero()) == (rate == 0)


def test_single_settings_replace_parts_of_the_block():
    modern = model_settings(block="modern").parts
    assert (modern.norm_type, modern.feed_forward, modern.qk_norm, modern.biases) == ("rms", "swiglu", "rms", "none")
    mixed = model_settings(block="modern", norm_type="layer", qk_norm="none").parts
    assert (mixed.norm_type, mixed.feed_forward, mixed.qk_norm, mixed.biases) == ("layer", "swiglu", "none", "none")
    by_parts = model_settings(norm_type="rms", feed_forward="swiglu", qk_norm="rms", biases="none").parts
    assert by_parts == modern
    paper = model_settings(block="modern", norm_type="layer", feed_forward="relu", qk_norm="none", biases="all").parts
    assert paper == model_settings().parts
