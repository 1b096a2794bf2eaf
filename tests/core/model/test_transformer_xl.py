"""The model against the oracle: outputs, initial weights, counts."""

import math

import numpy as np
import pytest
import torch

from tests import reference
from tests.core import oracle
from tests.core.builders import V, draw_tokens, model_settings, small_model
from tests.core.oracle import assert_equals_oracle
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.model.transformer_xl import TransformerXL

B, L, M = 2, 5, 7
KINDS = [
    {"norm": "post", "tie_biases": True},
    {"norm": "post", "tie_biases": False},
    {"norm": "pre", "tie_biases": True},
    {"norm": "pre", "tie_biases": False},
]
LIMITS = [
    {"max_distance": 3},
    {"key_limit": 4},
    {"key_limit": M},
    {"key_limit": M + 1},
    {"key_limit": 6, "max_distance": 4},
]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"mem_len": M}) for kind in KINDS),
        *(({"norm": norm}, {"mem_len": M, **limits}) for norm in ("post", "pre") for limits in LIMITS),
        *(({}, {"mem_len": mem_len}) for mem_len in (0, 2, L)),
    ],
    ids=str,
)
def test_segments_with_memory_equal_the_oracle(kind, options):
    tokens, lengths = draw_tokens(B, 14), [L, L, 3, 1]  # the memory grows 0, 5, 7, 7
    assert_equals_oracle(small_model(**kind), tokens, lengths, **options)


def test_losses_are_the_cross_entropy_in_token_order():
    model = small_model()
    tokens, targets = draw_tokens(B, L), draw_tokens(B, L, seed=6)
    hidden, _ = model(tokens, model.first_memory(B, 0), mem_len=0)
    log_probs, _ = oracle.read_segments(model, tokens, [L], mem_len=0)
    expected = [
        reference.cross_entropy_nats(row, wanted) for row, wanted in zip(log_probs, targets.tolist(), strict=True)
    ]
    losses = model.losses(hidden, targets)
    np.testing.assert_allclose(losses.detach(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("init", ["pytorch", "tf"])
def test_initial_weights_are_the_released_ones(init):
    adaptive = {"cutoffs": (53, 101), "div_val": 2, "tie_embeddings": False, "norm": "pre", "tie_biases": False}
    settings = model_settings(**adaptive, d_model=118, d_inner=149, init=init, init_std=0.05, proj_init_std=0.2)
    torch.manual_seed(3)
    parameters = dict(TransformerXL(settings, 211).named_parameters())
    for name, parameter in parameters.items():
        if name.endswith("norm.weight") and init == "tf":
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("norm.weight"):
            assert parameter.std().item() == pytest.approx(0.05, rel=0.3), name
        elif ".projections." in name:
            assert parameter.std().item() == pytest.approx(0.2, rel=0.3), name
        elif parameter.dim() == 1 or (name == "softmax.cluster_weight" and init == "tf"):
            assert not parameter.any(), name
        else:
            assert abs(parameter.mean().item()) < 4 * 0.05 / math.sqrt(parameter.numel()), name
            assert parameter.std().item() == pytest.approx(0.05, rel=0.3), name
    assert {name for name in parameters if name.startswith(("embedding.", "softmax."))} == {
        *(f"{end}.tables.{band}" for end in ("embedding", "softmax") for band in range(3)),
        *(f"embedding.projections.{band}" for band in range(3)),
        "softmax.projections.0",
        *(f"softmax.biases.{band}" for band in range(3)),
        "softmax.cluster_weight",
        "softmax.cluster_bias",
    }


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_parameters_are_counted_by_a_pencil(kind):
    N, d, H, D, inner = 2, 14, 3, 11, 17
    pairs = 1 if kind["tie_biases"] else N
    layer = 5 * d * H * D + 2 * d * inner + inner + d + 2 * 2 * d
    final_norm = 2 * d if kind["norm"] == "pre" else 0
    expected = V * d + V + pairs * 2 * H * D + N * layer + final_norm
    assert count_parameters(model_settings(**kind), V) == expected
    assert sum(parameter.numel() for parameter in small_model(**kind).parameters()) == expected


def test_counting_allocates_nothing():
    # 1e15 parameters would fill a petabyte.
    assert count_parameters(model_settings(n_layers=1, d_model=10_000_000, d_inner=50_000_000), 7) > 1e15
