"""Products by oneDNN are those of nn.Linear, gradients included."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.core.builders import V, draw_tokens, read_segments, small_model, small_rnn
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels import linear as linear_module
from txlcli.core.kernels.linear import Linear, linear, should_pack
from txlcli.core.kernels.private import has_onednn
from txlcli.core.model.registry import make_reader
from txlcli.core.reading.decoder import Decoder

B, L, M, INPUTS, OUTPUTS = 2, 5, 7, 11, 19

needs_onednn = pytest.mark.skipif(not has_onednn(), reason="PyTorch has no oneDNN here")


@pytest.fixture
def everywhere(monkeypatch):
    """oneDNN multiplies whatever it can."""
    monkeypatch.setattr(linear_module, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear_module, "NARROWEST", 1)


def draw(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Watched:
    """How many products went to oneDNN."""

    def __init__(self, monkeypatch):
        self.count, multiply = 0, linear_module.onednn_linear

        def counted(*tensors):
            self.count += 1
            return multiply(*tensors)

        monkeypatch.setattr(linear_module, "onednn_linear", counted)


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
@pytest.mark.parametrize("learned", range(3))
def test_no_gradient_is_computed_that_nobody_needs(everywhere, learned):
    tensors = [draw(L, INPUTS), draw(OUTPUTS, INPUTS, seed=4), draw(OUTPUTS)]
    assert not linear(*tensors).requires_grad
    tensors[learned].requires_grad_()
    found = linear_module._Linear.backward(linear(*tensors).grad_fn, torch.ones(L, OUTPUTS))
    assert [one is not None for one in found] == [number == learned for number in range(4)]


@needs_onednn
def test_the_compiler_sees_one_graph(everywhere):
    module, rows = Linear(INPUTS, OUTPUTS), draw(L, INPUTS)
    found = torch.compile(lambda rows: module(rows).relu(), fullgraph=True, backend="eager")(rows)
    torch.testing.assert_close(found, module(rows).relu(), rtol=1e-5, atol=1e-5)


@needs_onednn
def test_a_product_may_be_changed_in_place_and_keeps_rows_and_weight_alone(everywhere):
    rows, weight = draw(B, L, INPUTS).requires_grad_(), draw(OUTPUTS, INPUTS, seed=4).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()) or tensor, id):
        out = linear(rows, weight)
    assert kept == [rows.data_ptr(), weight.data_ptr()]
    torch.testing.assert_close(out.mul_(3), 3 * F.linear(rows, weight), rtol=1e-5, atol=1e-5)


needs_bf16 = pytest.mark.skipif(not linear_module.onednn_has_bf16(), reason="oneDNN has no bf16 here")
IN_BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


@needs_bf16
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lay", [torch.Tensor.clone, turned])
def test_under_autocast_output_and_gradients_are_those_of_plain_products(
    everywhere, monkeypatch, with_bias, given, lay
):
    found = []
    for function in (linear, F.linear):
        rows, weight, bias = draw(B, L, INPUTS).to(given), draw(OUTPUTS, INPUTS, seed=4), draw(OUTPUTS, seed=5)
        leaves = [tensor.requires_grad_() for tensor in ((rows, weight, bias) if with_bias else (rows, weight))]
        watched = Watched(monkeypatch)
        with torch.autocast(**IN_BF16):
            out = function(lay(rows), *leaves[1:])
        grads = torch.autograd.grad((out * draw(B, L, OUTPUTS, seed=6)).sum(), leaves)
        assert watched.count == (2 if function is linear else 0)
        found.append((out, *grads))
    torch.testing.assert_close(*found, rtol=0.02, atol=0.02)
    assert [one.dtype for one in found[0]] == [torch.bfloat16, given, *[torch.float32] * (len(leaves) - 1)]


@needs_bf16
@pytest.mark.parametrize("kept", [False, True])
def test_the_backward_pass_keeps_no_cast_of_a_weight_unless_that_is_wanted(everywhere, kept):
    weight, saved = draw(OUTPUTS, INPUTS).requires_grad_(), []
    casts = linear_module.kept_casts() if kept else contextlib.nullcontext()
    saving = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, id)
    with casts, saving, torch.autocast(**IN_BF16):
        linear(draw(L, INPUTS).requires_grad_(), weight)
    matrices = [tensor for tensor in saved if OUTPUTS in tensor.shape]
    assert [tensor.dtype for tensor in matrices] == [torch.bfloat16 if kept else torch.float32]
    assert kept or matrices[0].data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("case", ["narrow", "float64", "autocast", "fp16", "no bf16", "another machine"])
def test_other_products_are_pytorch_s_own(everywhere, monkeypatch, case):
    module, rows = Linear(INPUTS, OUTPUTS), draw(L, INPUTS)
    autocast = {"autocast": torch.bfloat16, "fp16": torch.float16, "no bf16": torch.bfloat16}.get(case)
    if case == "narrow":
        monkeypatch.setattr(linear_module, "NARROWEST", INPUTS + 1)
    elif case == "float64":
        module, rows = module.double(), rows.double()
    elif case == "no bf16":
        monkeypatch.setattr(linear_module, "onednn_has_bf16", lambda: False)
    elif case == "another machine":
        monkeypatch.setattr(linear_module, "onednn_is_faster", lambda: False)
    watched = Watched(monkeypatch)
    learning = case != "autocast"  # with bf16 where nothing is learned
    with torch.set_grad_enabled(learning), torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        found, expected = module(rows), F.linear(rows, module.weight, module.bias)
    assert watched.count == 0
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("cpuinfo", "capability", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\n", "AVX512", has_onednn()),
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

    monkeypatch.setattr(linear_module.Path, "read_text", read_text)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert linear_module.onednn_is_faster.__wrapped__() is expected


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
    monkeypatch.setattr(linear_module, "onednn_is_faster", lambda: False)
    torch.testing.assert_close(found, look(), rtol=1e-4, atol=1e-5)


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
    assert module.packed is not None
    with torch.inference_mode():
        found = module(rows)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", ["narrow", "float64", "another machine"])
def test_a_matrix_is_packed_where_that_pays(everywhere, monkeypatch, case):
    weight = draw(OUTPUTS, INPUTS)
    assert should_pack(weight, torch.float32)
    assert should_pack(weight, torch.bfloat16) == linear_module.onednn_has_bf16()
    dtype = torch.float32
    if case == "narrow":
        monkeypatch.setattr(linear_module, "NARROWEST", INPUTS + 1)
    elif case == "float64":
        dtype = torch.float64
    else:
        monkeypatch.setattr(linear_module, "onednn_is_faster", lambda: False)
    assert not should_pack(weight, dtype)
    assert not should_pack(weight.to("meta"), dtype)


def test_a_matrix_that_is_not_packed_is_cast_and_the_weight_left_alone():
    module, rows = Linear(INPUTS, OUTPUTS), draw(L, INPUTS)
    weight, bias = module.weight, module.bias
    module.pack(torch.float32)
    assert (module.packed, module.weight, module.bias) == (None, weight, bias)
    module.pack(torch.bfloat16)
    assert module.packed is None
    assert module.weight.dtype == module.bias.dtype == torch.bfloat16
    torch.testing.assert_close(module(rows.bfloat16()).float(), F.linear(rows, weight, bias), rtol=0.02, atol=0.02)


@torch.inference_mode()
def read(decoder, tokens, lengths):
    return torch.cat([decoder.read(part) for part in tokens.split(lengths, dim=1)], dim=1)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("changed", [{"norm": "post"}, {"norm": "pre"}, {"position": "sinusoid"}], ids=str)
@pytest.mark.parametrize(("lanes", "lengths"), [(1, [1] * 29), (B, [L, L, L, 14])], ids=["tokens", "segments"])
def test_a_decoder_reads_by_packed_matrices_what_it_reads_without(
    everywhere, monkeypatch, changed, dtype, tolerance, lanes, lengths
):
    model, tokens = small_model(dtype=torch.float32, std=0.2, **changed), draw_tokens(lanes, 29)
    how = {"lanes": lanes, "mem_len": M, "seg_len": 14, "precision": "fp32" if dtype == torch.float32 else "bf16"}
    packed = Decoder(model, **how)
    assert all(layer.attention.merged is not None for layer in packed.model.layers)
    found = [read(packed, tokens, lengths), packed.read_last(tokens, 3)]
    monkeypatch.setattr(linear_module, "NARROWEST", 10**6)
    plain = Decoder(model, **how)
    assert all(layer.attention.merged is None for layer in plain.model.layers)
    expected = [read(plain, tokens, lengths), plain.read_last(tokens, 3)]
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


MODELS = {
    "transformer": small_model,
    "qrnn": lambda **how: small_rnn("qrnn", **how),
    "lstm": lambda **how: small_rnn("lstm", **how),
}


@needs_onednn
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_bf16)])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_reader_shares_the_model_s_weights_and_leaves_it_as_it_was(everywhere, monkeypatch, make, precision, packs):
    if not packs:
        monkeypatch.setattr(linear_module, "NARROWEST", 10**6)
    model = make(dtype=torch.float32).train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters())
    how = EvalSettings(mem_len=M, seg_len=L, batch_size=1)
    reader = make_reader(model, how, lanes=1, precision=precision)
    reader.read(draw_tokens(1, L))
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])
    if precision == "fp32":
        assert all(parameter is parameters[name] for name, parameter in reader.model.named_parameters())
    linears = [module for module in reader.model.modules() if isinstance(module, Linear)]
    assert any(module.packed is not None for module in linears) == (packs and bool(linears))
    assert all(module.packed is None for module in model.modules() if isinstance(module, Linear))
    assert model.training
    assert not reader.model.training
    assert make_reader(reader.model, how, lanes=1, precision=precision).model is reader.model
