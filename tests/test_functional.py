"""`txlcli.relative_attention` equals the paper's definition, with its gradients."""

import numpy as np
import pytest
import torch

import txlcli
from tests import reference
from tests.core.attention_cases import draw
from txlcli.core.backend import ScoreTerms
from txlcli.core.model import attention
from txlcli.errors import UsageError

B, H, L, K, D = 2, 3, 5, 12, 11


def tensors(position_keys=K):
    query, key, value = (draw(B, H, count, D, seed=seed) for seed, count in enumerate((L, K, K)))
    biases = [draw(H, D, seed=seed) for seed in (3, 4)]
    return [tensor.requires_grad_() for tensor in (query, key, value, draw(H, position_keys, D, seed=5), *biases)]


def test_a_query_sees_keys_by_content_and_distance_as_in_the_paper():
    query, key, value, position_key, content_bias, position_bias = given = tensors()
    content = (query + content_bias[:, None]) @ key.mT
    by_distance = (query + position_bias[:, None]) @ position_key.mT
    shifted = np.stack(
        [reference.relative_shift_by_definition(row) for row in by_distance.detach().numpy().reshape(-1, L, K)]
    )
    score = (content.detach().numpy() + shifted.reshape(B, H, L, K)) / np.sqrt(D)
    weight = np.exp(np.where(np.isnan(score), -np.inf, score))
    expected = weight / weight.sum(-1, keepdims=True) @ value.detach().numpy()
    found = txlcli.relative_attention(*given)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("position_keys", [K, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_its_gradients_are_those_of_the_definition(window, position_keys, biased):
    given, reach = tensors(position_keys), window or K
    bias = draw(H, reach, seed=6).requires_grad_() if biased else None
    nearest = given[3][:, -min(position_keys, reach) :]
    terms = ScoreTerms(reach, nearest, given[4], given[5], bias)
    outputs = [
        txlcli.relative_attention(*given, distance_bias=bias, window=window),
        attention.attend(*given[:3], terms),
    ]
    wanted = [*given, *([bias] if biased else [])]
    found, expected = ([out, *torch.autograd.grad(out.square().sum(), wanted)] for out in outputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_compiled_function_has_no_break_at_it():
    given = tensors()
    compiled = torch.compile(txlcli.relative_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), txlcli.relative_attention(*given), rtol=0, atol=1e-12)


def test_finite_differences_confirm_the_gradients():
    given = [tensor[..., :3].detach().requires_grad_() for tensor in tensors()]
    assert torch.autograd.gradcheck(txlcli.relative_attention, given)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": draw(B, H, K + 1, D)}, "query has 13 positions, key 12"),
        ({"query": draw(1, H, L, D)}, r"key is .* B = 1, .* not \(2, 3, 12, 11\)"),
        ({"position_key": draw(H, K, D - 1)}, r"position_key is .* not \(3, 12, 10\)"),
        ({"position_key": draw(H, 0, D)}, r"position_key is .* not \(3, 0, 11\)"),
        ({"content_bias": draw(D)}, r"content_bias is .* not \(11,\)"),
        ({"distance_bias": draw(H, K), "window": 7}, "distance_bias needs 7 columns"),
        ({"key": draw(B, H, K, D).int()}, "key is torch.int32"),
        ({"query": draw(B, H, L, D).half()}, "key is torch.float64 on cpu"),
        ({"position_bias": draw(H, D).to("meta")}, "on meta"),
        ({"query": 1}, "query is of type int"),
        ({"key": None}, "key is of type NoneType"),
        ({"window": 0}, "window 0"),
        ({"dropout": 1.0}, "dropout 1.0"),
    ],
)
def test_arguments_that_do_not_fit_are_rejected(changed, message):
    names = ("query", "key", "value", "position_key", "content_bias", "position_bias")
    with pytest.raises(UsageError, match=message):
        txlcli.relative_attention(**dict(zip(names, tensors(), strict=True)) | changed)
