"""Checks of the kernels that PyTorch compiles for the fake device, by group: each returns a result for JSON."""

import dataclasses
from functools import partial

import torch
from torch._dynamo.utils import counters

from tests.core.attention_cases import call
from tests.core.device_cases import build, load, start
from tests.core.fake_cuda.device import CUDA
from tests.core.fake_cuda.triton_device import KERNELS, MODE, TWINS
from txlcli.core.kernels.attention_torch import flex
from txlcli.core.model import attention
from txlcli.core.reading.registry import make_reader

BATCH_SIZE, HEADS, WIDTH = 2, 2, 16


def _reset():
    torch._dynamo.reset()
    counters.clear()
    KERNELS.clear()


def _compiled():
    """Return the number of compiled graphs, and the largest shared memory of a kernel."""
    return {"graphs": counters["stats"]["unique_graphs"], "shared": max(size for _, size in KERNELS)}


def compiled_steps(case, *changes):
    """Compile three training steps in bf16, the first with an empty memory."""
    _reset()
    settings = load(case, "model.attention_dropout=0", "train.precision=bf16", *changes)
    with MODE:
        training = start(settings, build(case, settings, CUDA))
        for _ in range(3):
            training.update()
    return _compiled()


def memory_that_grows():
    """Compile FlexAttention for a growing memory and segments of two lengths."""
    _reset()
    settings = load("relative", "train.attention=flex")
    eval_settings = dataclasses.replace(settings.eval, seg_len=20, mem_len=130)
    with MODE, torch.inference_mode():
        model = build("relative", settings, CUDA)
        model.set_attention_backend("flex")
        reader = make_reader(model, eval_settings, batch_size=BATCH_SIZE, precision="bf16")
        for length in (*[20] * 10, 7, 20):
            reader.read(torch.zeros(BATCH_SIZE, length, dtype=torch.long, device=CUDA))
    return _compiled()


ARGUMENTS = ("query", "key", "value", "content_bias", "position_bias", "position_key")


def differences(seg_len, key_len, reach, rows):
    """Return how far FlexAttention's output and gradients are from the default attention, relative to their maxima.

    Args:
        seg_len: L.
        key_len: K.
        reach: n, distances scored.
        rows: of position keys; 0 for no position scores.
    """
    _reset()
    torch.manual_seed(1)
    shapes = [(BATCH_SIZE, HEADS, seg_len), (BATCH_SIZE, HEADS, key_len), (BATCH_SIZE, HEADS, key_len)]
    shapes += [(HEADS,), (HEADS,), (HEADS, rows)] if rows else []
    here = [torch.randn(*shape, WIDTH).requires_grad_() for shape in shapes]
    there = [TWINS.pretend(tensor.detach(), requires_grad=True) for tensor in here]
    missing = [None] * (6 - len(shapes))

    def by(attend, *tensors):
        return call(attend, **dict(zip(ARGUMENTS, [*tensors, *missing], strict=True)), reach=reach)

    expected = by(attention.attend, *here)
    # In one graph: between two graphs autograd would add gradients that have no data.
    found = torch.compile(lambda *inputs: by(flex, *inputs), fullgraph=True)(*there)
    weights = torch.randn(expected.shape)
    wanted = [expected, *torch.autograd.grad(expected, here, weights)]
    given = [found, *torch.autograd.grad(found, there, TWINS.pretend(weights))]
    return [
        ((TWINS.numbers(one) - other).abs().max() / other.abs().max()).item()
        for one, other in zip(given, wanted, strict=True)
    ]


GROUPS = {
    "machine code": {
        "compiled": partial(compiled_steps, "relative", "train.compile=true"),
        "flex": partial(compiled_steps, "relative", "train.attention=flex"),
        "both": partial(compiled_steps, "relative", "train.attention=flex", "train.compile=true"),
        "both, regularised": partial(compiled_steps, "regularised", "train.attention=flex", "train.compile=true"),
        "memory that grows": memory_that_grows,
    },
    "numbers": {
        "memory": partial(differences, 130, 270, 270, 270),
        "far distances share a row": partial(differences, 130, 270, 200, 180),
        "no memory": partial(differences, 150, 150, 150, 150),
        "no positions": partial(differences, 130, 200, 200, 0),
    },
}
"""The group "numbers" needs TRITON_INTERPRET=1."""
