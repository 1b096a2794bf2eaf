"""The definition of attention and its module against section 3.3, Appendix B and the oracle."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests import reference
from tests.core import oracle
from tests.core.attention_cases import SHAPES, B, D, H, L, M, draw, shifted
from tests.core.builders import make_decoder, small_model
from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.score_buffer import ScoreBuffers
from txlcli.core.model import attention, backends
from txlcli.core.model.attention import Attention, distance_encoding, relative_shift, split_heads, visible_keys
from txlcli.core.model.linear import merge


def relative_attention(width, heads, backend="reference"):
    """An Attention, the projection of distances that belongs to it, and the attention of a backend."""
    chosen = dataclasses.replace(backends.FAST, attention=backend)
    module = Attention(d_model=width, n_heads=heads, d_head=D).double()
    w_k_position = torch.nn.Linear(width, heads * D, bias=False).double()
    return module, w_k_position, backends.make_backend(chosen, ScoreBuffers()).attend


@pytest.mark.parametrize("width", [2, 14])
def test_distance_encoding_is_sines_then_cosines_even_at_long_distances(width):
    distances = [2099, 7, 1, 0]
    expected = [reference.distance_encoding(distance, width) for distance in distances]
    np.testing.assert_allclose(distance_encoding(torch.tensor(distances), width), expected, atol=1e-12)


@pytest.mark.parametrize(("seg_len", "key_len"), SHAPES)
def test_relative_shift_equals_its_definition_where_keys_are_seen(seg_len, key_len):
    score = draw(B * H, seg_len, key_len)
    hidden = ~visible_keys(seg_len, key_len, key_len, torch.device("cpu"))
    given = relative_shift(score).masked_fill(hidden, -math.inf)
    np.testing.assert_array_equal(given, shifted(score, seg_len, key_len))


@pytest.mark.parametrize("reach", [2, 9, M + L])
@pytest.mark.parametrize("position_keys", [1, 5, M + L])
def test_the_definition_equals_sums_pair_by_pair(reach, position_keys):
    position_keys, scale = min(position_keys, reach), D**-0.5
    query, key, value = draw(H, L, D), draw(H, M + L, D, seed=4), draw(H, M + L, D, seed=5)
    u, v, position_key = draw(H, D, seed=6), draw(H, D, seed=7), draw(H, position_keys, D, seed=8)
    distance_bias, expected = draw(H, reach, seed=9), torch.empty(H, L, D, dtype=torch.float64)
    for h in range(H):
        for i in range(L):
            seen = [j for j in range(M + i + 1) if M + i - j < reach]
            scores = []
            for j in seen:
                distance = M + i - j
                row = position_key[h, position_keys - 1 - min(distance, position_keys - 1)]
                terms = (query[h, i] + u[h]) @ key[h, j] + (query[h, i] + v[h]) @ row
                scores.append(scale * terms + distance_bias[h, reach - 1 - distance])
            expected[h, i] = torch.stack(scores).softmax(0) @ value[h, seen]
    given = attention.attend(
        *(tensor[None] for tensor in (query, key, value)), ScoreTerms(reach, position_key, u, v, distance_bias)
    )
    torch.testing.assert_close(given[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("term", "abcd")
@pytest.mark.parametrize("max_distance", [None, 0, 3])
@pytest.mark.parametrize("key_limit", [None, 2, 8])
def test_each_of_the_four_terms_equals_the_oracle(term, max_distance, key_limit, backend):
    # K = D and d = H D: values that are unit vectors and an identity at the end show the probabilities themselves,
    # whose logarithms are the scores up to a constant for each query.
    heads, seg_len, mem_len = 2, 4, D - 4
    torch.manual_seed(5)
    module, w_k_position, attend = relative_attention(heads * D, heads, backend)
    context, u, v = draw(B, D, heads * D), draw(heads, D, seed=4), draw(heads, D, seed=5)
    layer = {**oracle.attention_weights(module, w_k_position), "content_bias": u.numpy(), "position_bias": v.numpy()}
    limits = {"max_distance": max_distance, "key_limit": key_limit}
    scores = [
        reference.attention_scores(row[mem_len:], row[:mem_len], layer, **limits) for row in context.numpy().copy()
    ]
    expected = np.stack([getattr(one, term) for one in scores]) / math.sqrt(D)  # (B, H, L, K), no key hidden yet

    distances = torch.arange(min(D, key_limit or D) - 1, -1, -1).clamp(max=D if max_distance is None else max_distance)
    silent = {
        "a": (w_k_position.weight, u),
        "b": (module.w_k_content.weight, v),
        "c": (w_k_position.weight, module.w_q.weight),
        "d": (module.w_k_content.weight, module.w_q.weight),
    }
    with torch.no_grad():
        module.w_o.weight.copy_(torch.eye(heads * D))
        for tensor in silent[term]:
            tensor.zero_()
        keys, _ = module.project_keys_values(context)
        values = torch.eye(D, dtype=torch.float64).expand(B, heads, D, D)
        position_key = split_heads(w_k_position(distance_encoding(distances, heads * D)), heads)
        terms = ScoreTerms(len(distances), position_key, u, v)
        out = module(module.project_queries(context[:, mem_len:]), keys, values, terms, attend)
    probability = out.unflatten(-1, (heads, D)).transpose(1, 2).numpy()

    seen = {(i, j) for i in range(seg_len) for j in range(D) if probability[0, 0, i, j] > 0}
    assert seen == scores[0].allowed
    for i in range(seg_len):
        columns = [j for j in range(D) if (i, j) in seen]
        given, wanted = np.log(probability[:, :, i, columns]), expected[:, :, i, columns]
        np.testing.assert_allclose(given - given[..., :1], wanted - wanted[..., :1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_reference_backend_is_the_definition_with_products_of_pytorch(recompute):
    model = small_model(attention_dropout=0.3).on(attention="reference", recompute=recompute)
    decoder = make_decoder(model, batch_size=B, mem_len=M, seg_len=L)
    for read in (model, decoder.model):
        assert read.attention_kernels == "reference"
        used = [module.backend for module in read.modules() if hasattr(module, "backend")]
        assert len(used) > len(read.layers)
        assert {backend.attend for backend in used} == {attention.attend}
        assert {backend.linear for backend in used} == {functional.linear}
    assert model.on(attention="auto").attention_kernels == "tiles"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_merged_projections_are_those_of_the_three_matrices(dtype):
    """A GPU reads with them, so that a token takes one kernel instead of three."""
    own, merged = (small_model(n_layers=1).layers[0].attention for _ in range(2))
    weight = merge([merged.w_q, merged.w_k_content, merged.w_v], dtype)
    merged.project_all = functools.partial(linear, weight=weight)
    segment = draw(B, L, own.w_q.weight.shape[1]).to(dtype)
    query, key, value = own.to(dtype).project(segment)
    found, found_key, found_value = merged.project(segment)
    # Of a segment of which only the last positions attend, queries are projected apart from keys.
    apart, apart_key_value = merged.project_queries(segment), merged.project_keys_values(segment)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    for one, other in zip(
        (found, found_key, found_value, apart, *apart_key_value), (query, key, value) * 2, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
