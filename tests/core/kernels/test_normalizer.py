"""Losses that are computed for some tokens at a time against all logits at once."""

import pytest
import torch

from txlcli.core.kernels.normalizer import PartSize, SpareGradient, token_losses, total_loss
from txlcli.core.kernels.private import DispatchMode

T, W, N = 7, 5, 23


@pytest.fixture(params=[1, 2, 7])
def size(request):
    """Parts of so many tokens."""
    return part_size(request.param)


def part_size(tokens):
    return PartSize(cpu_bytes=0, min_tokens=tokens)


def random_inputs(tokens=T, ids=N, dtype=torch.float64):
    """Hidden states, table, bias and other normalizers, with gradients; one id per token: the first, the last, none."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((tokens, W), (ids, W), (ids,), (tokens,))
    tensors = [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]
    chosen = torch.randint(ids, (tokens,), generator=generator)
    chosen[:3] = torch.tensor([0, ids - 1, -1])[:tokens]
    return [tensor.requires_grad_() for tensor in tensors], chosen


def weights_of(tokens, dtype=torch.float64):
    return torch.linspace(0, 2, tokens, dtype=dtype)


def from_all_logits(hidden, table, bias, others, chosen):
    logits = hidden @ table.mT + bias
    of_chosen = torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=1).gather(
        1, chosen[:, None] % (len(table) + 1)
    )
    return torch.logaddexp(logits.logsumexp(-1), others) - of_chosen[:, 0]


def of_tokens(hidden, table, bias, others, chosen, **options):
    return token_losses(hidden, table, bias, chosen, others=others, spare=SpareGradient(), **options)


def of_all(hidden, table, bias, others, chosen, weights, **options):
    given = {"others": others, "weights": weights, "spare": SpareGradient(), **options}
    return total_loss(hidden, table, bias, chosen, **given)


@pytest.mark.parametrize("grad", [True, False])
def test_parts_give_the_losses_of_the_whole(size, grad):
    tensors, chosen = random_inputs()
    weights = weights_of(T)
    with torch.set_grad_enabled(grad):
        losses = of_tokens(*tensors, chosen, size=size)
        total = of_all(*tensors, chosen, weights, size=size)
    expected = from_all_logits(*tensors, chosen)
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(total, (expected * weights).sum(), rtol=0, atol=1e-12)


def test_a_softmax_of_its_own_has_no_other_logits(size):
    (hidden, table, bias, _), chosen = random_inputs()
    chosen = chosen.clamp(min=0)
    losses = token_losses(hidden, table, bias, chosen, spare=SpareGradient(), size=size)
    expected = torch.nn.functional.cross_entropy(hidden @ table.mT + bias, chosen, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-13)


def test_gradients_of_losses_are_those_of_finite_differences(size):
    tensors, chosen = random_inputs()
    assert torch.autograd.gradcheck(lambda *given: of_tokens(*given, chosen, size=size), tensors)


def test_gradients_of_a_total_are_those_of_all_logits(size):
    tensors, chosen = random_inputs()
    weights = weights_of(T)
    gradients = torch.autograd.grad(3 * of_all(*tensors, chosen, weights, size=size), tensors)
    expected = torch.autograd.grad(3 * (from_all_logits(*tensors, chosen) * weights).sum(), tensors)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-13)


def test_logits_beyond_the_range_of_exp_are_handled(size):
    (hidden, table, bias, others), chosen = random_inputs(dtype=torch.float32)
    total = of_all(hidden * 100, table * 100, bias, others, chosen.clamp(min=0), weights_of(T).float(), size=size)
    total.backward()
    assert total.isfinite()
    assert table.grad.isfinite().all()


def test_a_nan_is_not_lost(size):
    tensors, chosen = random_inputs()
    with torch.no_grad():
        tensors[1][N - 1, 0] = torch.nan
        losses = of_tokens(*tensors, chosen, size=size)
    assert losses.isnan().all()


def test_autocast_applies_to_products_and_not_to_sums(size):
    tensors, chosen = random_inputs(dtype=torch.float32)
    weights = weights_of(T).float()
    expected = (from_all_logits(*tensors, chosen) * weights).sum()
    with torch.autocast("cpu", torch.bfloat16):
        totals = [
            (of_tokens(*tensors, chosen, size=size) * weights).sum(),
            of_all(*tensors, chosen, weights, size=size),
        ]
    exact = torch.autograd.grad(expected, tensors)
    for total in totals:
        assert total.dtype == torch.float32
        assert total != expected
        torch.testing.assert_close(total, expected, rtol=0, atol=0.2)
        for one, other in zip(torch.autograd.grad(total, tensors), exact, strict=True):
            assert one.dtype == torch.float32
            torch.testing.assert_close(one, other, rtol=0, atol=0.1)


def test_without_tokens_gradients_are_zeros_whatever_the_spare_memory_holds():
    (hidden, table, bias, others), chosen = random_inputs(tokens=0)
    spare = SpareGradient()
    spare.release(torch.full_like(table, 7.0))
    of_all(hidden, table, bias, others, chosen, weights_of(0), spare=spare).backward()
    assert not table.grad.any()
    assert not bias.grad.any()


def test_a_released_gradient_is_the_memory_of_the_next_one_and_does_not_change_it(size):
    tensors, chosen = random_inputs()
    table, spare, results = tensors[1], SpareGradient(), []
    for _ in range(2):
        of_all(*tensors, chosen, weights_of(T), spare=spare, size=size).backward()
        results.append((table.grad.data_ptr(), table.grad.clone()))
        spare.release(table.grad)
        table.grad = None
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_a_second_backward_pass_through_a_total_is_rejected():
    tensors, chosen = random_inputs()
    total = of_all(*tensors, chosen, weights_of(T))
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second"):
        total.backward()


class LargestResult(DispatchMode):
    """Notes the numbers of the largest result of an operation."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def test_the_logits_of_all_tokens_are_never_in_memory():
    tensors, chosen = random_inputs(tokens=200, ids=1000)
    with LargestResult() as mode:
        of_all(*tensors, chosen, weights_of(200), size=part_size(3)).backward()
        of_tokens(*tensors, chosen, size=part_size(3)).sum().backward()
    assert mode.largest == 1000 * W  # the table, and its gradient
