"""Products by oneDNN equal those of nn.Linear, gradients included."""

import contextlib
import dataclasses

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.builders import draw_tokens, make_decoder, read_parts, small_model, small_rnn
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.linear import OneDnnUse, linear, onednn_is_faster, use_onednn
from txlcli.core.kernels.modes import as_on_gpu
from txlcli.core.kernels.private import onednn_has_bf16
from txlcli.core.model.backends import FAST, make_compiled_backend
from txlcli.core.model.linear import Linear
from txlcli.core.reading.registry import make_reader

B, L, M, INPUTS, OUTPUTS = 2, 5, 7, 11, 19
EVERYWHERE = OneDnnUse(fp32=True, bf16=onednn_has_bf16(), min_columns=1)
NOWHERE = OneDnnUse(fp32=False, bf16=False)

HAS_ONEDNN = torch.backends.mkldnn.is_available()
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="PyTorch has no oneDNN on this machine")


@pytest.fixture
def everywhere():
    """Use oneDNN for all products that it can compute."""
    with use_onednn(EVERYWHERE):
        yield


def draw(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class OneDnnCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name == "mkldnn::_linear_pointwise"
        return func(*args, **(kwargs or {}))


def strided(rows):
    return torch.stack([rows, rows], dim=-1)[..., 0]


needs_bf16 = pytest.mark.skipif(not onednn_has_bf16(), reason="oneDNN has no bf16 on this machine")
IN_BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


def products(function, lead, given, *, with_bias, lay, in_bf16):
    """Output and gradients of a function, the former also without gradients; the number of products by oneDNN."""
    rows, weight, bias = draw(*lead, INPUTS).to(given), draw(OUTPUTS, INPUTS, seed=4), draw(OUTPUTS, seed=5)
    leaves = [tensor.requires_grad_() for tensor in ((rows, weight, bias) if with_bias else (rows, weight))]
    with OneDnnCounter() as onednn:
        with torch.autocast(**IN_BF16, enabled=in_bf16):
            out = function(lay(rows), *leaves[1:])
        grads = torch.autograd.grad((out * draw(*lead, OUTPUTS, seed=6)).sum(), leaves)
    if not in_bf16:
        with torch.inference_mode():
            torch.testing.assert_close(function(lay(rows), *leaves[1:]), out.detach(), rtol=0, atol=0)
    return [out, *grads], onednn.count


@needs_onednn
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("lead", "given", "in_bf16"),
    [
        *((lead, torch.float32, False) for lead in [(1,), (L,), (B, L), (B, 0), (B, 3, L)]),
        pytest.param((B, L), torch.float32, True, marks=needs_bf16),
        pytest.param((B, L), torch.bfloat16, True, marks=needs_bf16),
    ],
    ids=str,
)
@pytest.mark.parametrize("lay", [torch.Tensor.clone, strided])
def test_output_and_gradients_equal_plain_products(everywhere, with_bias, lead, given, in_bf16, lay):
    how = {"with_bias": with_bias, "lay": lay, "in_bf16": in_bf16}
    (found, count), (expected, none) = (products(function, lead, given, **how) for function in (linear, F.linear))
    assert (count, none) == (2, 0)
    tolerance = 0.02 if in_bf16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    out = torch.bfloat16 if in_bf16 else torch.float32
    assert [tensor.dtype for tensor in found] == [out, given, *[torch.float32] * (len(found) - 2)]


def test_the_compiler_traces_one_graph_of_products():
    module, rows = Linear(INPUTS, OUTPUTS), draw(L, INPUTS)
    module.backend = make_compiled_backend(FAST, joins_heads=False, pads_rows=False)
    given = torch.compile(lambda rows: module(rows).relu(), fullgraph=True, backend="eager")(rows)
    torch.testing.assert_close(given, module(rows).relu(), rtol=1e-5, atol=1e-5)


@needs_onednn
def test_a_product_can_be_modified_in_place_and_saves_only_rows_and_weight(everywhere):
    rows, weight = draw(B, L, INPUTS).requires_grad_(), draw(OUTPUTS, INPUTS, seed=4).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()) or tensor, id):
        out = linear(rows, weight)
    assert kept == [rows.data_ptr(), weight.data_ptr()]
    torch.testing.assert_close(out.mul_(3), 3 * F.linear(rows, weight), rtol=1e-5, atol=1e-5)


@needs_bf16
@pytest.mark.parametrize("kept", [False, True])
def test_the_backward_pass_keeps_a_cast_of_the_weight_only_on_a_gpu(everywhere, kept):
    weight, saved = draw(OUTPUTS, INPUTS).requires_grad_(), []
    casts = as_on_gpu() if kept else contextlib.nullcontext()
    saving = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, id)
    with casts, saving, torch.autocast(**IN_BF16):
        linear(draw(L, INPUTS).requires_grad_(), weight)
    matrices = [tensor for tensor in saved if OUTPUTS in tensor.shape]
    assert [tensor.dtype for tensor in matrices] == [torch.bfloat16 if kept else torch.float32]
    assert kept or matrices[0].data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("case", ["narrow", "float64", "autocast", "fp16", "no bf16", "another machine"])
def test_other_products_are_left_to_pytorch(case):
    module, rows = Linear(INPUTS, OUTPUTS), draw(L, INPUTS)
    autocast = {"autocast": torch.bfloat16, "fp16": torch.float16, "no bf16": torch.bfloat16}.get(case)
    changes = {"narrow": {"min_columns": INPUTS + 1}, "no bf16": {"bf16": False}, "another machine": {"fp32": False}}
    if case == "float64":
        module, rows = module.double(), rows.double()
    has_gradient = case != "autocast"  # bf16 without gradients
    use = dataclasses.replace(EVERYWHERE, **changes.get(case, {}))
    cast = torch.autocast("cpu", dtype=autocast, enabled=autocast is not None)
    with use_onednn(use), torch.set_grad_enabled(has_gradient), OneDnnCounter() as onednn, cast:
        given, expected = module(rows), F.linear(rows, module.weight, module.bias)
    assert onednn.count == 0
    assert given.dtype == expected.dtype
    assert torch.equal(given, expected)


@pytest.mark.parametrize(
    ("cpuinfo", "capability", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\n", "AVX512", HAS_ONEDNN),
        ("vendor_id\t: AuthenticAMD\n", "AVX2", False),
        ("vendor_id\t: GenuineIntel\n", "AVX512", False),
        (None, "AVX512", False),  # not Linux
    ],
)
def test_onednn_multiplies_fp32_on_the_cpus_that_were_measured(tmp_path, cpuinfo, capability, expected):
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo, encoding="utf-8")
    assert onednn_is_faster(capability, path) is expected


PRECISIONS = [
    pytest.param(torch.float32, 1e-5, marks=needs_onednn),
    pytest.param(torch.bfloat16, 0.05, marks=needs_bf16),
]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("lead", [(1,), (1, 1), (B, L), (300,)], ids=str)
def test_a_packed_matrix_gives_the_same_products(everywhere, dtype, tolerance, with_bias, lead):
    module, rows = Linear(INPUTS, OUTPUTS, bias=with_bias), draw(*lead, INPUTS)
    expected = module(rows)
    module.pack(dtype)
    assert module.packed[0].is_mkldnn
    with torch.inference_mode():
        given = module(rows)
    assert given.dtype == dtype
    torch.testing.assert_close(given.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(
    "changed",
    [{"norm": "post"}, {"position": "sinusoid", "block": "modern"}, {"gating": "gru", "norm": "pre"}],
    ids=str,
)
@pytest.mark.parametrize(("batch_size", "lengths"), [(1, [1] * 17), (B, [L, L, 7])], ids=["tokens", "segments"])
def test_packed_matrices_do_not_change_what_a_decoder_returns(changed, dtype, tolerance, batch_size, lengths):
    model, tokens = small_model(dtype=torch.float32, std=0.2, **changed), draw_tokens(batch_size, 17)
    precision = "fp32" if dtype == torch.float32 else "bf16"
    options = {"batch_size": batch_size, "mem_len": M, "seg_len": 7, "precision": precision}
    results = []
    for use in (EVERYWHERE, NOWHERE):
        with use_onednn(use):
            decoder = make_decoder(model, **options)
            packed = {layer.attention.project_all is not None for layer in decoder.model.layers}
            assert packed == {use is EVERYWHERE}
            results.append([read_parts(decoder, tokens, lengths), decoder.read_last(tokens, 3)])
    torch.testing.assert_close(*results, rtol=0, atol=tolerance)


MODELS = {
    "transformer": small_model,
    "qrnn": lambda **changed: small_rnn("qrnn", **changed),
    "lstm": lambda **changed: small_rnn("lstm", **changed),
}


@needs_onednn
@pytest.mark.parametrize("use", [EVERYWHERE, NOWHERE], ids=["packed", "not packed"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bf16)])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_reader_shares_the_weights_of_the_model_and_does_not_change_it(make, precision, use):
    model = make(dtype=torch.float32).train().on(precision=precision)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters())
    settings = EvalSettings(mem_len=M, seg_len=L, batch_size=1)
    with use_onednn(use):
        reader = make_reader(model, settings)
        reader.read(draw_tokens(1, L))
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])
    if precision == "fp32":
        assert all(parameter is parameters[name] for name, parameter in reader.model.named_parameters())
    linears = [module for module in reader.model.modules() if isinstance(module, Linear) and module.packed]
    assert any(module.packed[0].is_mkldnn for module in linears) == (use is EVERYWHERE and bool(linears))
    assert all(module.packed is None for module in model.modules() if isinstance(module, Linear))
    assert model.training
    assert not reader.model.training
    assert make_reader(reader.model, settings).model is reader.model
