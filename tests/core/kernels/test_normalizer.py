"""The log normalizer computed block by block against all logits at once."""

import pytest
import torch

from tests.core.work_counters import AllocationCounter
from txlcli.core.kernels.normalizer import BlockSize, SpareGradient, normalize

T, W, N = 7, 5, 23


@pytest.fixture(params=[(2, 3), (7, 23), (7, 4), (1, 23)], ids=str)
def size(request):
    """Blocks of so many tokens and ids."""
    return block_size(*request.param)


def block_size(tokens, ids):
    return BlockSize(cpu_tokens=tokens, cpu_bytes=4 * tokens * ids, id_multiple=1)


def random_inputs(tokens=T, ids=N, dtype=torch.float64):
    """Hidden states, table and bias, each with a gradient, and one id per token, among them the first and the last."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(*shape, generator=generator).to(dtype) for shape in ((tokens, W), (ids, W), (ids,))]
    chosen = torch.randint(ids, (tokens,), generator=generator)
    chosen[:2] = torch.tensor([0, ids - 1])[:tokens]
    return [tensor.requires_grad_() for tensor in tensors], chosen


def from_all_logits(hidden, table, bias, chosen):
    logits = hidden @ table.mT + bias
    return logits.logsumexp(-1), logits[torch.arange(len(chosen)), chosen]


@pytest.mark.parametrize("grad", [True, False])
def test_blocks_give_the_normalizer_and_the_logit_of_the_whole(size, grad):
    tensors, chosen = random_inputs()
    with torch.set_grad_enabled(grad):
        results = normalize(*tensors, chosen, spare=SpareGradient(), size=size)
    torch.testing.assert_close(results, from_all_logits(*tensors, chosen), rtol=0, atol=1e-13)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_both_results_are_those_of_finite_differences(size, recompute):
    tensors, chosen = random_inputs(tokens=4, ids=11)

    def both(*tensors):
        return normalize(*tensors, chosen, spare=SpareGradient(), recompute=recompute, size=size)

    assert torch.autograd.gradcheck(both, tensors)


def test_logits_beyond_the_range_of_exp_and_nans_are_handled(size):
    (hidden, table, bias), chosen = random_inputs(dtype=torch.float32)
    total, logit = normalize(hidden * 100, table * 100, bias, chosen, spare=SpareGradient(), size=size)
    (total - logit).sum().backward()
    assert total.isfinite().all()
    assert table.grad.isfinite().all()
    assert (total >= logit - 1e-2).all()  # up to the rounding of values around 1e5
    with torch.no_grad():
        table[N - 1, 0] = torch.nan
        total, _ = normalize(hidden, table, bias, chosen, spare=SpareGradient(), size=size)
    assert total.isnan().all()


def test_autocast_applies_to_products_and_not_to_sums(size):
    tensors, chosen = random_inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        results = normalize(*tensors, chosen, spare=SpareGradient(), size=size)
    expected = from_all_logits(*tensors, chosen)
    assert not torch.equal(results[1], expected[1])
    for one, other in zip(results, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.05)
    gradients = [torch.autograd.grad(total.sum() - logit.sum(), tensors) for total, logit in (results, expected)]
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0.1)


def test_without_tokens_gradients_are_zeros_whatever_the_spare_memory_holds():
    (hidden, table, bias), chosen = random_inputs(tokens=0)
    spare = SpareGradient()
    spare.release(torch.full_like(table, 7.0))
    total, logit = normalize(hidden, table, bias, chosen, spare=spare)
    (total - logit).sum().backward()
    assert not table.grad.any()
    assert not bias.grad.any()


def test_a_released_gradient_is_the_memory_of_the_next_one_and_does_not_change_it(size):
    tensors, chosen = random_inputs()
    table, spare, results = tensors[1], SpareGradient(), []
    for _ in range(2):
        total, logit = normalize(*tensors, chosen, spare=spare, size=size)
        (total - logit).sum().backward()
        results.append((table.grad.data_ptr(), table.grad.clone()))
        spare.release(table.grad)
        table.grad = None
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_without_gradients_the_logits_of_all_tokens_are_never_in_memory():
    hidden_table_bias, chosen = random_inputs(dtype=torch.float32)
    with torch.no_grad(), AllocationCounter() as counter:
        normalize(*hidden_table_bias, chosen, spare=SpareGradient(), size=block_size(T, 2))
    vectors = 2 * T + 12 * 12 * T  # two results, and a dozen vectors in each of twelve blocks
    assert counter.bytes <= 8 * (vectors + 12 * T) + 2 * 4 * T * 2
