"""Private PyTorch names: all in one module, and what they compute."""

import ast
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import txlcli
from txlcli.core.kernels import private

B, L, K, INPUTS, OUTPUTS = 2, 5, 7, 11, 13
OF_PYTHON = {"_fields", "_replace", "_Unpickler"}
"""Names of named tuples, which are public, and the unpickler that is written in Python."""


def draw(*shape, seed=3, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def private_names(source):
    """Private attributes and modules in a source text, and the lines, without those of `self`, `cls` and `os`."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os")):
                names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [name for alias in node.names for name in alias.name.split(".")]
        yield from ((name, node.lineno) for name in names if name.startswith("_") and not name.startswith("__"))


def own_names(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def test_no_other_module_uses_a_private_name_of_a_library():
    files = sorted(Path(txlcli.__file__).parent.rglob("*.py"))
    sources = {path: path.read_text(encoding="utf-8") for path in files if path != Path(private.__file__)}
    own = OF_PYTHON | {name for source in sources.values() for name in own_names(source)}
    found = [f"{path}:{at} {name}" for path in sources for name, at in private_names(sources[path]) if name not in own]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "torch._foreach_add_([])",
        "x.untyped_storage()._cdata",
        "from torch._dynamo import config",
        "import torch.utils._python_dispatch",
        "from torch import _C",
    ],
)
def test_the_search_finds_private_names(source):
    assert list(private_names(source))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_softmax_backward_is_the_gradient_of_the_softmax(dtype, atol):
    score, grad = draw(B, L, K).requires_grad_(), draw(B, L, K, seed=4)
    (expected,) = torch.autograd.grad(score.softmax(-1), score, grad)
    given = private.softmax_backward(grad.to(dtype), score.detach().softmax(-1).to(dtype))
    assert given.dtype == dtype
    torch.testing.assert_close(given.double(), expected, rtol=0, atol=atol)


def test_tensors_without_data_have_a_shape_and_a_device_and_no_bytes_in_memory():
    with private.tensors_without_data():
        product = torch.zeros(1 << 30, 3) @ torch.zeros(3, 1 << 20)
    assert (product.shape, product.dtype, product.device.type) == ((1 << 30, 1 << 20), torch.float32, "cpu")


def test_results_of_operators_are_observed_one_by_one():
    observed = []
    with private.observed_results(observed.append):
        values, indices = torch.ones(3, 5).max(dim=1)
    assert [tuple(tensor.shape) for tensor in observed[-3:]] == [(3, 5), (3,), (3,)]
    assert observed[-2] is values
    assert observed[-1] is indices


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN on this machine")
@pytest.mark.parametrize("with_bias", [True, False])
def test_onednn_multiplies_as_f_linear_does_with_a_reordered_weight_too(with_bias):
    rows, weight = draw(B, L, INPUTS, dtype=torch.float32), draw(OUTPUTS, INPUTS, seed=4, dtype=torch.float32)
    bias = draw(OUTPUTS, seed=5, dtype=torch.float32) if with_bias else None
    expected = F.linear(rows, weight, bias)
    reordered = private.onednn_reorder(weight)
    for matrix in (weight, reordered):
        torch.testing.assert_close(private.onednn_linear(rows, matrix, bias), expected, rtol=1e-5, atol=1e-5)
    before = private.onednn_linear(rows, reordered, bias)
    weight.zero_()
    assert torch.equal(private.onednn_linear(rows, reordered, bias), before)
