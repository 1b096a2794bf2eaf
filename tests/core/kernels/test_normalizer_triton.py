"""Triton's row kernels of the softmax equal all logits at once in float64, in Triton's interpreter.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

import os

import pytest
import torch

from tests.core.builders import draw_tokens, small_model
from tests.core.kernels.test_normalizer import from_all_logits, of_all, of_tokens, part_size, random_inputs, weights_of
from tests.samples import sampled
from txlcli.core.kernels import normalizer
from txlcli.core.kernels.compilation import runs_triton

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton interprets its kernels with TRITON_INTERPRET=1 only", allow_module_level=True)
pytest.importorskip("triton", reason="Triton's interpreter runs the kernels")

from txlcli.core.kernels import normalizer_triton


def cast(tensors, dtype=torch.float32):
    return [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]


def largest_difference(given, expected):
    return max((one.double() - other).abs().max().item() for one, other in zip(given, expected, strict=True))


LARGEST = {torch.float32: (1e-5, 1e-4), torch.float16: (5e-3, 2e-2)}
"""Differences of losses, and of gradients, which are sums over up to 130 tokens; the interpreter has no bf16."""


@pytest.mark.parametrize(
    ("tokens_and_ids", "tokens", "dtype"),
    sampled(3, [(1, 1), (3, 23), (70, 5000), (130, 1024)], [1000, 70, 33], LARGEST),
)
def test_losses_and_gradients_equal_all_logits_in_float64(tokens_and_ids, tokens, dtype):
    tensors, chosen = random_inputs(*tokens_and_ids)
    given = cast(tensors, dtype)
    tensors = cast(given, torch.float64)
    weights = weights_of(len(chosen))
    expected = from_all_logits(*tensors, chosen)
    gradients = torch.autograd.grad((expected * weights).sum(), tensors)
    column = torch.stack([chosen, chosen.flip(0)], dim=1)[:, 0]  # targets need not be neighbours in memory
    options = {"size": part_size(tokens)}
    assert runs_triton(chosen.device, dtype)
    losses = of_tokens(*given, column, **options)
    assert losses.dtype == torch.float32
    assert largest_difference([losses], [expected]) < LARGEST[dtype][0]
    total = of_all(*given, column, weights.float(), **options)
    for one in (total, (losses * weights).sum()):
        assert largest_difference(torch.autograd.grad(one, given), gradients) < LARGEST[dtype][1]


@pytest.mark.parametrize("ids", [17, 23, 24])
def test_padding_between_rows_is_not_read_as_logits_and_is_zero_afterwards(ids):
    tokens, padded = 70, 24
    chosen = torch.arange(tokens) % (padded + 1) - 1  # also ids of the padding, which have no logit here
    logits = torch.randn(tokens, ids, generator=torch.Generator().manual_seed(3))
    weights = torch.linspace(0.1, 1.0, tokens)
    rows = torch.full((tokens, padded), torch.nan)
    rows[:, :ids] = logits
    others = torch.zeros(tokens)
    *expected, of_logits = normalizer.row_losses(logits, chosen, others, weights)
    *given, of_given = normalizer_triton.row_losses(rows[:, :ids], chosen, others, weights)
    torch.testing.assert_close([*given, *of_given], [*expected, *of_logits])
    assert not others.any()
    assert not rows[:, ids:].any()


def test_logits_beyond_the_range_of_exp_and_nans_are_handled():
    tensors, chosen = random_inputs(5, 300)
    given = cast(60 * tensor for tensor in tensors)
    options = {"size": part_size(2)}
    losses = of_tokens(*given, chosen, **options)
    losses.sum().backward()
    expected = from_all_logits(*(tensor.double() for tensor in given), chosen)
    assert (losses - expected).abs().max() < 1e-5 * expected.abs().max()
    assert all(tensor.grad.isfinite().all() for tensor in given)
    with torch.no_grad():
        given[1][299, 0] = torch.nan
        assert of_tokens(*given, chosen, **options).isnan().all()


@pytest.mark.parametrize("changes", [{}, {"cutoffs": (7, 12), "div_val": 2}], ids=["softmax", "adaptive softmax"])
def test_losses_of_a_model_and_their_gradients_equal_those_in_float64(changes):
    outputs = []
    for dtype in (torch.float32, torch.float64):  # float64 has no kernels
        model = small_model(dtype=dtype, **changes).train()
        model = model.on(attention="reference")
        tokens = draw_tokens(3, 6)
        hidden, _ = model(tokens[:, :-1], model.first_memory(3, 7), mem_len=7)
        losses = model.losses(hidden, tokens[:, 1:])
        loss = model.softmax.mean_loss(hidden, tokens[:, 1:])
        loss.backward()
        outputs.append([losses, loss, *(one.grad for one in model.parameters() if one.grad is not None)])
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4, check_dtype=False)
