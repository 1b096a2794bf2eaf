"""Triton's row kernels of the softmax equal all logits at once in float64, in Triton's interpreter.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

import os

import pytest
import torch

from tests.core.builders import draw_tokens, small_model
from tests.core.kernels.test_normalizer import block_size, from_all_logits, random_inputs
from tests.samples import sampled
from txlcli.core.kernels.normalizer import BlockSize, SpareGradient, normalize

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton interprets its kernels with TRITON_INTERPRET=1 only", allow_module_level=True)
pytest.importorskip("triton", reason="Triton's interpreter runs the kernels")

from txlcli.core.kernels.normalizer_triton import TritonRows


def cast(tensors, dtype=torch.float32):
    return [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]


def with_gradients(tensors, results):
    """Normalizers and logits, and the gradients of a weighted sum of both."""
    total, logit = results
    weights = torch.linspace(-1, 2, len(total), dtype=total.dtype)
    grads = torch.autograd.grad((total * weights + logit * weights.flip(0)).sum(), tensors)
    return [total, logit, *grads]


def largest_difference(given, expected):
    return max((one.double() - other).abs().max().item() for one, other in zip(given, expected, strict=True))


LARGEST = {torch.float32: (1e-5, 1e-4), torch.float16: (5e-3, 1e-2)}
"""Differences of results, and of gradients, which are sums over up to 130 tokens; the interpreter has no bf16."""


@pytest.mark.parametrize(
    ("tokens_and_ids", "recompute", "size", "dtype"),
    sampled(3, [(1, 1), (3, 23), (70, 5000), (130, 1024)], [False, True], [None, (70, 700), (33, 5000)], LARGEST),
)
def test_normalizers_logits_and_gradients_equal_all_logits_in_float64(tokens_and_ids, recompute, size, dtype):
    tensors, chosen = random_inputs(*tokens_and_ids)
    given = cast(tensors, dtype)
    tensors = cast(given, torch.float64)
    expected = with_gradients(tensors, from_all_logits(*tensors, chosen))
    options = {} if size is None else {"size": block_size(*size)}
    column = torch.stack([chosen, chosen.flip(0)], dim=1)[:, 0]  # targets need not be neighbours in memory
    results = normalize(*given, column, spare=SpareGradient(), recompute=recompute, rows=TritonRows(), **options)
    assert results[0].dtype == torch.float32
    found = with_gradients(given, results)
    assert largest_difference(found[:2], expected[:2]) < LARGEST[dtype][0]
    assert largest_difference(found[2:], expected[2:]) < LARGEST[dtype][1]


def test_logits_beyond_the_range_of_exp_and_nans_are_handled():
    tensors, chosen = random_inputs(5, 300)
    given = cast(60 * tensor for tensor in tensors)
    total, logit = normalize(*given, chosen, spare=SpareGradient(), rows=TritonRows(), size=block_size(2, 100))
    (total - logit).sum().backward()
    expected = from_all_logits(*(tensor.double() for tensor in given), chosen)[0]
    assert ((total - expected) / expected).abs().max() < 1e-5
    assert all(tensor.grad.isfinite().all() for tensor in given)
    with torch.no_grad():
        given[1][299, 0] = torch.nan
        total, _ = normalize(*given, chosen, spare=SpareGradient(), rows=TritonRows(), size=block_size(4, 100))
    assert total.isnan().all()


def test_many_logits_are_computed_again_instead_of_kept():
    tensors, chosen = random_inputs(6, 50)
    saved = []
    saving = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tuple(tensor.shape)) or tensor, id)
    for kept_bytes, count in ((6 * 50 * 4, 1), (6 * 50 * 4 - 1, 0)):
        saved.clear()
        size = BlockSize(kept_bytes=kept_bytes)
        with saving:
            normalize(*cast(tensors), chosen, spare=SpareGradient(), rows=TritonRows(), size=size)
        assert saved.count((6, 50)) == count


def test_a_second_backward_pass_through_the_same_logits_is_rejected():
    tensors, chosen = random_inputs(6, 50)
    total = normalize(*cast(tensors), chosen, spare=SpareGradient(), rows=TritonRows())[0].sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("changes", [{}, {"cutoffs": (7, 12), "div_val": 2}], ids=["softmax", "adaptive softmax"])
def test_losses_of_a_model_and_their_gradients_equal_those_in_float64(changes):
    outputs = []
    for dtype in (torch.float32, torch.float64):  # float64 has no kernels
        model = small_model(dtype=dtype, **changes).train()
        model = model.on(attention="reference")
        tokens = draw_tokens(3, 6)
        hidden, _ = model(tokens[:, :-1], model.first_memory(3, 7), mem_len=7)
        losses = model.losses(hidden, tokens[:, 1:])
        losses.sum().backward()
        outputs.append([losses, *(one.grad for one in model.parameters() if one.grad is not None)])
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4, check_dtype=False)
