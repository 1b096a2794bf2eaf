"""The core on a CUDA device against float64 on the CPU. Skipped without a GPU.

Relative errors are norms of differences over norms: what rounding of a dtype explains, with some room.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width.
"""

import contextlib
import copy
import gc
from functools import partial

import pytest
import torch
from torch.nn import functional

from tests.core import builders, tape
from tests.core.attention_cases import attend, draw, draw_inputs
from tests.core.builders import draw_tokens, make_decoder, read_parts, small_model
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.cuda_graph import GraphPool
from txlcli.core.kernels.modes import DTYPES, autocast, float32_products
from txlcli.core.kernels.normalizer import SpareGradient, token_losses, total_loss
from txlcli.core.measures.adaptation import DynamicSettings, score_dynamic
from txlcli.core.model.losses import Objective
from txlcli.core.reading.scoring import Stream
from txlcli.errors import UsageError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CUDA = torch.device("cuda")
ERRORS = {"fp64": 1e-11, "fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
"""Largest relative error of attention in each precision."""
B, H, D = 2, 3, 41
KEYS = (140, 300, 1024)
STREAMS = 32
"""Streams that PyTorch hands out in turn."""
BACKENDS = ("reference", "auto")
ODD = {"d_model": 26, "n_heads": 2, "d_head": 13, "d_inner": 51}
"""Widths that are no multiples of 8, as those of wt103 and ptb."""


def relative_error(found, expected):
    """Norm of the difference over the norm of what is expected, in float64 on the CPU."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    assert found.isfinite().all()
    return ((found - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def dtype_of(precision):
    return torch.float64 if precision == "fp64" else DTYPES[precision]


def outputs(inputs, *, backend, reach, weights):
    """Output of attention, and the gradients of a weighted sum of it."""
    out = attend(*inputs, backend=backend, reach=reach)
    return [out, *torch.autograd.grad((out * weights.to(out)).sum(), inputs)]


def on_cuda(inputs, precision):
    return [tensor.detach().to(CUDA, dtype_of(precision)).requires_grad_() for tensor in inputs]


def in_precision(precision):
    """Multiply float32 in TF32 or not; other dtypes need nothing."""
    return float32_products(CUDA, precision if precision == "tf32" else "fp32")


@pytest.mark.parametrize("key_len", KEYS)
@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_and_its_six_gradients_are_those_of_float64(backend, precision, key_len):
    scale = 0.3  # scores of size 1
    inputs = [
        (scale * tensor).detach().requires_grad_()
        for tensor in draw_inputs(batch_size=B, seg_len=key_len // 2, key_len=key_len, heads=H, width=D)
    ]
    weights = draw(B, H, key_len // 2, D, seed=9)
    # The reference reads what the dtype can hold.
    rounded = [tensor.detach().to(dtype_of(precision)).double().requires_grad_() for tensor in inputs]
    expected = outputs(rounded, backend="reference", reach=key_len, weights=weights)
    with in_precision(precision):
        found = outputs(on_cuda(inputs, precision), backend=backend, reach=key_len, weights=weights.to(CUDA))
    errors = [relative_error(one, other) for one, other in zip(found, expected, strict=True)]
    assert max(errors) < ERRORS[precision], errors


@pytest.mark.parametrize(("precision", "lowest", "largest"), [("fp32", 0.0, 3e-6), ("tf32", 3e-5, 3e-3)])
def test_products_round_as_their_precision_says(precision, lowest, largest):
    left, right = draw(512, 640), draw(640, 384, seed=4)
    with autocast(CUDA, precision):
        product = left.float().to(CUDA) @ right.float().to(CUDA)
    assert lowest <= relative_error(product, left @ right) < largest


@pytest.mark.parametrize(("precision", "lowest", "largest"), [("fp32", 0.0, 1e-5), ("tf32", 3e-5, 3e-3)])
def test_an_lstm_rounds_as_its_precision_says(precision, lowest, largest):
    lstm, rows = torch.nn.LSTM(256, 256).double(), draw(7, 64, 256)
    expected = lstm(rows)[0]
    with autocast(CUDA, precision):
        found = copy.deepcopy(lstm).float().to(CUDA)(rows.float().to(CUDA))[0]
    assert lowest <= relative_error(found, expected) < largest


def gradients(model, tokens, *, mem_len, precision):
    """The mean loss of the second of two segments, and the gradient of each parameter."""
    first, second, targets = (part.to(model.device) for part in tokens)
    products = in_precision(precision)
    with products:
        with autocast(model.device, precision if precision != "fp64" else "fp32"):
            memory = model(first, model.first_memory(len(first), mem_len), mem_len=mem_len)[1]
            loss = model.objective(second, targets.to(model.targets_device), memory, Objective(mem_len=mem_len))[0]
        loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("seg_len", [70, 150, 512])
@pytest.mark.parametrize(("precision", "largest"), [("fp32", 1e-3), ("tf32", 3e-2), ("bf16", 0.2)])
@pytest.mark.parametrize("changed", [{}, {"cutoffs": (101, 307), "div_val": 2}], ids=str)
def test_gradients_of_a_step_with_padded_rows_are_those_of_float64(changed, precision, largest, seg_len):
    make = {**ODD, **changed, "vocab_size": 1_009, "std": 0.1}
    tokens = draw_tokens(2, 3 * seg_len, vocab_size=1_009).split(seg_len, dim=1)
    loss, expected = gradients(small_model(**make), tokens, mem_len=seg_len, precision="fp64")
    model = small_model(**make).float().to(CUDA)
    found, grads = gradients(model, tokens, mem_len=seg_len, precision=precision)
    assert found.item() == pytest.approx(loss.item(), rel=largest)
    errors = {name: relative_error(gradient, expected[name]) for name, gradient in grads.items()}
    assert max(errors.values()) < largest, errors


def test_the_gradient_of_an_adaptive_embedding_is_that_of_float64():
    changed = {"vocab_size": 1_009, "cutoffs": (101, 307), "div_val": 2}
    tokens = draw_tokens(7, 513, vocab_size=1_009)
    tokens[:, ::3] = 5  # a frequent word
    expected, model = (small_model(**changed).embedding for _ in range(2))
    model = model.float().to(CUDA)
    weights = draw(*tokens.shape, expected.d_model)
    (expected(tokens) * weights).sum().backward()
    (model(tokens.to(CUDA)) * weights.float().to(CUDA)).sum().backward()
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert relative_error(parameter.grad, other.grad) < 1e-5


@pytest.mark.parametrize(("precision", "largest"), [("fp32", 1e-5), ("tf32", 3e-3), ("bf16", 2e-2), ("fp16", 1e-2)])
def test_losses_of_a_softmax_and_their_gradients_are_those_of_float64(precision, largest):
    tensors = [draw(300, 41), draw(5_003, 41, seed=4), draw(5_003, seed=5)]
    chosen = torch.arange(300) * 17 % 5_003

    def run(device, dtype):
        given = [(0.3 * tensor).to(device, dtype).requires_grad_() for tensor in tensors]
        weights = draw(300, seed=7).to(device, dtype)
        losses = token_losses(*given, chosen.to(device), spare=SpareGradient())
        total = total_loss(*given, chosen.to(device), weights=weights, spare=SpareGradient())
        return [losses, total, *torch.autograd.grad(total, given)]

    expected = run(torch.device("cpu"), torch.float64)
    with in_precision(precision), autocast(CUDA, precision):
        found = run(CUDA, torch.float32)
    errors = [relative_error(one, other) for one, other in zip(found, expected, strict=True)]
    assert max(errors) < largest, errors


POSITIONS = {**builders.POSITIONS, "learned": {"position": "learned", "n_positions": 64}}
OF_READING = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 0.15}
"""Largest relative error of hidden states in each precision."""


@pytest.mark.parametrize("precision", OF_READING)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("lengths", [(16,), (16, 16, 16, 3, 1)], ids=str)
def test_segments_by_graphs_are_those_without_and_those_of_float64(position, precision, lengths):
    model, tokens = (small_model(**POSITIONS[position]), draw_tokens(B, 640))
    how = {"batch_size": B, "seg_len": 16, "mem_len": 100, "same_length": "m"}
    expected = read_parts(make_decoder(model, **how), tokens, lengths)
    on_device = copy.deepcopy(model).float().to(CUDA)
    decoders = [
        make_decoder(on_device, precision=precision, capture_graph=capture, **how)
        for capture in (None, tape.call_again)
    ]
    by_graphs, eager = (read_parts(decoder, tokens, lengths) for decoder in decoders)
    assert decoders[0].has_captured
    assert relative_error(by_graphs, eager) < 0.1 * OF_READING[precision]
    assert relative_error(by_graphs, expected) < OF_READING[precision]


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("precision", OF_READING)
@pytest.mark.parametrize("position", POSITIONS)
def test_single_tokens_across_two_slides_of_the_buffer_are_those_of_float64(position, precision, batch_size):
    model = small_model(**POSITIONS[position])
    how = {"batch_size": batch_size, "seg_len": 1, "mem_len": 40, "same_length": "m"}
    reference = make_decoder(model, **how)
    tokens = draw_tokens(batch_size, reference.capacity + 2 * reference.housekeeping_interval + 1)
    expected = read_parts(reference, tokens, (1,))
    decoder = make_decoder(copy.deepcopy(model).float().to(CUDA), precision=precision, **how)
    found = read_parts(decoder, tokens, (1,))
    assert decoder.has_captured
    assert relative_error(found, expected) < OF_READING[precision]


def test_reading_and_recorded_segments_do_not_wait_for_the_device():
    model, tokens = small_model(dtype=torch.float32).to(CUDA), draw_tokens(B, 16 * 40).to(CUDA)
    decoder = make_decoder(model, batch_size=B, seg_len=16, mem_len=100, precision="bf16")
    read_parts(decoder, tokens, (16,))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for part in tokens.split(16, dim=1):
            decoder.read(part)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_dynamic_evaluation_in_tf32_is_close_to_that_in_fp32():
    model = small_model(dtype=torch.float32).to(CUDA)
    ids = draw_tokens(1, 400)[0].numpy()
    rms = [torch.ones_like(parameter) for parameter in model.parameters()]
    settings, dynamic = EvalSettings(seg_len=16, mem_len=32, batch_size=1), DynamicSettings(lr=1e-3, decay=1e-3)
    of_fp32, of_tf32 = (
        score_dynamic(Stream(model.on(precision=precision), ids[:-1], ids[1:], settings), dynamic, rms).total_nats
        for precision in ("fp32", "tf32")
    )
    assert of_tf32 == pytest.approx(of_fp32, rel=1e-2)


def fails(tensor):
    raise RuntimeError("no kernel for this")


def waits(tensor):
    tensor.sum().item()


def hides_that_it_waits(tensor):
    with contextlib.suppress(RuntimeError):
        tensor.sum().item()


@pytest.mark.parametrize("run", [fails, waits, hides_that_it_waits])
def test_after_a_failed_capture_everything_goes_on_and_its_pool_takes_another_graph(run):
    capture = GraphPool()
    ones = torch.ones(1 << 20, device=CUDA)
    stream = torch.cuda.current_stream()
    before = capture(partial(functional.dropout, ones), CUDA)
    with pytest.raises(UsageError, match="cannot capture"):
        capture(partial(run, ones), CUDA, warm_up=0)
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    after = capture(partial(functional.dropout, ones), CUDA)
    for drop in (partial(functional.dropout, ones), before, after):
        torch.manual_seed(3)
        kept = drop().count_nonzero().item()
        assert 0.49 < kept / len(ones) < 0.51
        torch.manual_seed(4)
        assert drop().count_nonzero().item() != kept


def test_memory_of_a_failed_capture_is_free():
    ones = torch.ones(1 << 20, device=CUDA)
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    with pytest.raises(UsageError, match="cannot capture"):
        GraphPool()(lambda: waits(torch.cat([ones] * 50)), CUDA, warm_up=0)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_a_pool_whose_graphs_are_gone_takes_others():
    capture = GraphPool()
    ones = torch.ones(3, device=CUDA)
    replay = capture(lambda: ones + 1, CUDA)
    twos = replay()
    del replay
    torch.cuda.empty_cache()
    assert capture(lambda: ones + 2, CUDA)().tolist() == [3, 3, 3]
    assert twos.tolist() == [2, 2, 2]


def test_products_of_a_graph_are_the_same_after_other_graphs_are_gone():
    left, right = (torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for shape in ((64, 1 << 15), (1 << 15, 64)))
    multiply = partial(torch.mm, left, right)
    capture = GraphPool()
    replay, gone = (capture(multiply, CUDA) for _ in range(2))
    expected = replay().clone()
    del gone
    for _ in range(2 * STREAMS):
        GraphPool()(multiply, CUDA)()
    torch.cuda.empty_cache()
    filled = torch.full((1 << 28,), 3, dtype=torch.uint8, device=CUDA)  # among it the memory of what is gone
    assert torch.equal(replay(), expected)
    assert filled.eq(3).all()


def test_memory_of_a_reader_is_free_with_its_last_reference():
    model, tokens = small_model(dtype=torch.float32).to(CUDA), draw_tokens(B, 320)
    allocated = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):  # the first leaves a workspace
            decoder = make_decoder(model, batch_size=B, seg_len=16, mem_len=100, precision="bf16")
            read_parts(decoder, tokens, (16, 1))
            assert decoder.has_captured
            del decoder
            allocated.append(torch.cuda.memory_allocated())
    finally:
        gc.enable()
    assert allocated[1] == allocated[2]
