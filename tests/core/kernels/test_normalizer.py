"""Normalisers of softmaxes, found in pieces, against the whole of the logits."""

import copy

import pytest
import torch

from tests.core.work_counters import AllocationCounter
from txlcli.core.kernels import normalizer
from txlcli.core.kernels.normalizer import SpareGradient, normalize

T, W, N = 7, 5, 23


@pytest.fixture(params=[(2, 3), (7, 23), (7, 4), (1, 23)], ids=str)
def pieces(request, monkeypatch):
    """Pieces of so many tokens and ids."""
    tokens, ids = request.param
    monkeypatch.setattr(normalizer, "MOST_TOKENS", tokens)
    monkeypatch.setattr(normalizer, "MULTIPLE", 1)
    monkeypatch.setattr(normalizer, "CACHE_BYTES", 4 * tokens * ids)
    return request.param


def drawn(tokens=T, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    hidden, table, bias = (torch.randn(*size, generator=generator).to(dtype) for size in ((tokens, W), (N, W), (N,)))
    chosen = torch.randint(N, (tokens,), generator=generator)
    return [tensor.requires_grad_() for tensor in (hidden, table, bias)], chosen


def of_all_logits(hidden, table, bias, chosen):
    logits = hidden @ table.mT + bias
    return logits.logsumexp(-1), logits[torch.arange(len(chosen)), chosen]


@pytest.mark.parametrize("grad", [True, False])
def test_pieces_give_the_normaliser_and_the_logit_of_the_whole(pieces, grad):
    tensors, chosen = drawn()
    with torch.set_grad_enabled(grad):
        found = normalize(*tensors, chosen, spare=SpareGradient())
    torch.testing.assert_close(found, of_all_logits(*tensors, chosen), rtol=0, atol=1e-13)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_both_results_are_those_of_finite_differences(pieces, recompute):
    tensors, chosen = drawn()

    def both(*tensors):
        return normalize(*tensors, chosen, spare=SpareGradient(), recompute=recompute)

    assert torch.autograd.gradcheck(both, tensors)


def test_logits_beyond_the_range_of_exp_do_no_harm(pieces):
    (hidden, table, bias), chosen = drawn(dtype=torch.float32)
    total, logit = normalize(hidden * 100, table * 100, bias, chosen, spare=SpareGradient())
    (total - logit).sum().backward()
    assert total.isfinite().all()
    assert table.grad.isfinite().all()
    assert (total >= logit - 1e-2).all()  # to rounding of numbers of 1e5


def test_a_number_that_is_not_finite_is_not_lost(pieces):
    (hidden, table, bias), chosen = drawn()
    with torch.no_grad():
        table[N - 1, 0] = torch.nan
        total, _ = normalize(hidden, table, bias, chosen, spare=SpareGradient())
    assert total.isnan().all()


def test_under_autocast_products_are_in_16_bits_and_sums_are_not(pieces):
    tensors, chosen = drawn(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = normalize(*tensors, chosen, spare=SpareGradient())
    expected = of_all_logits(*tensors, chosen)
    assert not torch.equal(found[1], expected[1])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.05)
    gradients = [torch.autograd.grad(total.sum() - logit.sum(), tensors) for total, logit in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.1)


def test_without_tokens_gradients_are_zeros_whatever_the_memory_held():
    (hidden, table, bias), chosen = drawn(tokens=0)
    spare = SpareGradient()
    spare.give(torch.full_like(table, 7.0))
    total, logit = normalize(hidden, table, bias, chosen, spare=spare)
    (total - logit).sum().backward()
    assert not table.grad.any()
    assert not bias.grad.any()


def test_a_gradient_given_back_is_the_memory_of_the_next_and_leaves_no_trace(pieces):
    tensors, chosen = drawn()
    table, spare, found = tensors[1], SpareGradient(), []
    for _ in range(2):
        total, logit = normalize(*tensors, chosen, spare=spare)
        (total - logit).sum().backward()
        found.append((table.grad.data_ptr(), table.grad.clone()))
        spare.give(table.grad)
        table.grad = None
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_spare_memory_of_another_shape_or_format_is_not_taken():
    spare, table = SpareGradient(), torch.zeros(N, W)
    for other in (torch.zeros(N + 1, W), torch.zeros(N, W, dtype=torch.float64)):
        spare.give(other)
        taken = spare.take(table)
        assert (taken.shape, taken.dtype) == (table.shape, table.dtype)


def test_a_copy_of_a_model_copies_no_spare_memory():
    spare, table = SpareGradient(), torch.zeros(N, W)
    spare.give(torch.full_like(table, 7.0))
    with AllocationCounter() as counter:
        copy.deepcopy(spare)
    assert counter.bytes == 0


def test_reading_never_holds_the_logits_of_all_tokens(monkeypatch):
    monkeypatch.setattr(normalizer, "MULTIPLE", 1)
    monkeypatch.setattr(normalizer, "CACHE_BYTES", 4 * T * 2)
    (hidden, table, bias), chosen = (tensor for tensor in drawn(dtype=torch.float32))
    with torch.no_grad(), AllocationCounter() as counter:
        normalize(hidden, table, bias, chosen, spare=SpareGradient())
    of_tokens = 2 * T + 12 * 12 * T  # two results, and a dozen vectors in each of twelve pieces
    assert counter.bytes <= 8 * (of_tokens + 12 * T) + 2 * 4 * T * 2
