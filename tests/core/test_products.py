"""Products by oneDNN are those of nn.Linear, gradients included."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.core.builders import V, draw_tokens, read_segments, small_model
from txlcli.core import products
from txlcli.core.products import Linear, linear

B, L, M, INPUTS, OUTPUTS = 2, 5, 7, 11, 19

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN here")


@pytest.fixture
def everywhere(monkeypatch):
    """oneDNN multiplies whatever it can."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "NARROWEST", 1)


def draw(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Watched:
    """How many products went to oneDNN."""

    def __init__(self, monkeypatch):
        self.count, multiply = 0, products._multiply

        def counted(*tensors):
            self.count += 1
            return multiply(*tensors)

        monkeypatch.setattr(products, "_multiply", counted)


def turned(rows):
    """The same numbers with gaps between them."""
    return torch.stack([rows, rows], dim=-1)[..., 0]


@needs_onednn
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("lead", [(1,), (L,), (B, L), (B, 0), (B, 3, L)], ids=str)
@pytest.mark.parametrize("lay", [torch.Tensor.clone, turned])
def test_output_and_gradients_are_those_of_plain_products(everywhere, monkeypatch, with_bias, lead, lay):
    found = []
    for function in (linear, F.linear):
        rows, weight, bias = draw(*lead, INPUTS), draw(OUTPUTS, INPUTS, seed=4), draw(OUTPUTS, seed=5)
        leaves = [tensor.requires_grad_() for tensor in ((rows, weight, bias) if with_bias else (rows, weight))]
        watched = Watched(monkeypatch)
        out = function(lay(rows), *leaves[1:])
        grads = torch.autograd.grad((out * draw(*lead, OUTPUTS, seed=6)).sum(), leaves)
        assert watched.count == (2 if function is linear else 0)
        with torch.inference_mode():
            torch.testing.assert_close(function(lay(rows), *leaves[1:]), out.detach(), rtol=0, atol=0)
        found.append((out, *grads))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_what_needs_no_gradient_gets_none(everywhere):
    rows, weight, bias = draw(L, INPUTS), draw(OUTPUTS, INPUTS, seed=4).requires_grad_(), draw(OUTPUTS)
    linear(rows, weight, bias).sum().backward()
    assert (rows.grad, bias.grad) == (None, None)
    assert weight.grad.shape == weight.shape
    assert not linear(rows, weight.detach(), bias).requires_grad


@needs_onednn
def test_a_product_may_be_changed_in_place_and_keeps_rows_and_weight_alone(everywhere):
    rows, weight = draw(B, L, INPUTS).requires_grad_(), draw(OUTPUTS, INPUTS, seed=4).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()) or tensor, id):
        out = linear(rows, weight)
    assert kept == [rows.data_ptr(), weight.data_ptr()]
    torch.testing.assert_close(out.mul_(3), 3 * F.linear(rows, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["narrow", "float64", "autocast", "another machine"])
def test_other_products_are_pytorch_s_own(everywhere, monkeypatch, case):
    module, rows = Linear(INPUTS, OUTPUTS), draw(L, INPUTS)
    if case == "narrow":
        monkeypatch.setattr(products, "NARROWEST", INPUTS + 1)
    elif case == "float64":
        module, rows = module.double(), rows.double()
    elif case == "another machine":
        monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    watched = Watched(monkeypatch)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case == "autocast"):
        found, expected = module(rows), F.linear(rows, module.weight, module.bias)
    assert watched.count == 0
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("cpuinfo", "capability", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\n", "AVX512", torch.backends.mkldnn.is_available()),
        ("vendor_id\t: AuthenticAMD\n", "AVX2", False),
        ("vendor_id\t: GenuineIntel\n", "AVX512", False),
        (None, "AVX512", False),  # no Linux
    ],
)
def test_onednn_is_taken_where_it_was_measured(monkeypatch, cpuinfo, capability, expected):
    def read_text(path, **_):
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    monkeypatch.setattr(products.Path, "read_text", read_text)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.onednn_is_faster.__wrapped__() is expected


@needs_onednn
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_is_the_same_function_by_onednn(everywhere, monkeypatch, norm):
    model, tokens = small_model(norm=norm, dtype=torch.float32), draw_tokens(B, 13)
    assert all(isinstance(module, Linear) for module in model.modules() if isinstance(module, nn.Linear))

    def look():
        model.zero_grad()
        log_probs, _ = read_segments(model, tokens, [L, L, 3], mem_len=M)
        log_probs[..., V // 2].mean().backward()
        return log_probs.detach(), [parameter.grad.clone() for parameter in model.parameters()]

    watched = Watched(monkeypatch)
    found = look()
    assert watched.count > 50
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    torch.testing.assert_close(found, look(), rtol=1e-4, atol=1e-5)
