"""Private PyTorch names: all in one module, all in the installed version, each with a fallback of equal results."""

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import txlcli
from txlcli.core.kernels import private

NOTHING = SimpleNamespace()
B, L, K, INPUTS, OUTPUTS = 2, 5, 7, 11, 13


def draw(*shape, seed=3, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def private_names(path):
    """Private attributes and modules in a file that txlcli itself does not define."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            names, own = [node.attr], isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os")
        elif isinstance(node, ast.ImportFrom):
            names, own = [*(node.module or "").split("."), *(alias.name for alias in node.names)], False
        elif isinstance(node, ast.Import):
            names, own = [name for alias in node.names for name in alias.name.split(".")], False
        else:
            continue
        if not own:
            yield from ((name, node.lineno) for name in names if name.startswith("_") and not name.startswith("__"))


def own_names(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def test_no_other_module_uses_a_private_name_of_a_library():
    files = sorted(Path(txlcli.__file__).parent.rglob("*.py"))
    own = {name for path in files for name in own_names(path)}
    found = [f"{path}:{line} {name}" for path in files for name, line in private_names(path) if name not in own]
    assert found == []


@pytest.mark.parametrize("source", ["torch._foreach_add_([])", "x.untyped_storage()._cdata", "torch._C._a.b"])
def test_the_search_finds_private_names(tmp_path, source):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(private_names(path))


@pytest.mark.parametrize(
    "source", ["from torch._dynamo import config", "import torch.utils._python_dispatch", "from torch import _C"]
)
def test_the_search_finds_private_imports(tmp_path, source):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(private_names(path))


@pytest.mark.parametrize("path", private.NAMES)
def test_the_installed_pytorch_has_every_private_name(path):
    assert private.find(path) is not None
    assert private.find(path, NOTHING) is None


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("source", [torch, NOTHING])
def test_softmax_backward_is_the_gradient_of_the_softmax(source, dtype, atol):
    score, grad = draw(B, L, K).requires_grad_(), draw(B, L, K, seed=4)
    (expected,) = torch.autograd.grad(score.softmax(-1), score, grad)
    given = private.softmax_backward(grad.to(dtype), score.detach().softmax(-1).to(dtype), source=source)
    assert given.dtype == dtype
    torch.testing.assert_close(given.double(), expected, rtol=0, atol=atol)


def test_optimize_ddp_is_switched_off_where_it_exists():
    config = SimpleNamespace(optimize_ddp=True)
    private.compile_across_ddp_buckets(source=SimpleNamespace(_dynamo=SimpleNamespace(config=config)))
    assert config.optimize_ddp is False
    other = SimpleNamespace()
    private.compile_across_ddp_buckets(source=SimpleNamespace(_dynamo=SimpleNamespace(config=other)))
    private.compile_across_ddp_buckets(source=NOTHING)
    assert vars(other) == {}


@pytest.mark.parametrize("source", [torch, NOTHING])
def test_tensors_without_data_have_a_shape_and_no_bytes_in_memory(source):
    with private.tensors_without_data(source=source):
        product = torch.zeros(1 << 30, 3) @ torch.zeros(3, 1 << 20)
    assert product.shape == (1 << 30, 1 << 20)
    assert product.dtype == torch.float32


def test_tensors_without_data_know_their_device():
    with private.tensors_without_data():
        assert torch.zeros(3).device.type == "cpu"


def test_results_of_operators_are_observed_one_by_one_or_not_at_all():
    observed = []
    with private.observed_results(observed.append):
        values, indices = torch.ones(3, 5).max(dim=1)
    assert [tuple(tensor.shape) for tensor in observed[-3:]] == [(3, 5), (3,), (3,)]
    assert observed[-2] is values
    assert observed[-1] is indices
    observed.clear()
    with private.observed_results(observed.append, source=NOTHING):
        torch.ones(3)
    assert observed == []


@pytest.mark.parametrize("source", [torch, NOTHING])
@pytest.mark.parametrize("with_bias", [True, False])
def test_onednn_multiplies_as_f_linear_does_with_a_reordered_weight_too(source, with_bias):
    if source is torch and not private.has_onednn():
        pytest.skip("PyTorch has no oneDNN on this machine")
    rows, weight = draw(B, L, INPUTS, dtype=torch.float32), draw(OUTPUTS, INPUTS, seed=4, dtype=torch.float32)
    bias = draw(OUTPUTS, seed=5, dtype=torch.float32) if with_bias else None
    expected = F.linear(rows, weight, bias)
    reordered = private.onednn_reorder(weight, source=source)
    for matrix in (weight, reordered):
        given = private.onednn_linear(rows, matrix, bias, source=source)
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)
    before = private.onednn_linear(rows, reordered, bias, source=source)
    weight.zero_()
    assert torch.equal(private.onednn_linear(rows, reordered, bias, source=source), before)


def test_without_its_operators_onednn_is_not_used():
    assert not private.has_onednn(source=NOTHING)
    assert not private.onednn_has_bf16(source=NOTHING)


def test_a_compiler_that_is_not_imported_traces_nothing():
    assert private.compiler_may_trace(module="sys")
    assert not private.compiler_may_trace(module="this")  # the standard library has it, and nobody imports it
    assert private.compiler_may_trace(module="no_such_module")


def test_the_installed_pytorch_has_the_compiler():
    assert importlib.util.find_spec(private.COMPILER) is not None
