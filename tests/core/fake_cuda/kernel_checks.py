"""What is tried of the kernels that PyTorch makes for the device, by group: each check gives facts for JSON."""

import dataclasses
from functools import partial

import torch
from torch._dynamo.utils import counters

from tests.core.device_cases import build, load, start
from tests.core.fake_cuda.device import CUDA
from tests.core.fake_cuda.triton_device import KERNELS, MODE, TWINS
from txlcli.core.kernels.attention_torch import flex
from txlcli.core.model import attention
from txlcli.core.reading.registry import make_reader

LANES, HEADS, WIDTH = 2, 2, 16


def _forget():
    torch._dynamo.reset()
    counters.clear()
    KERNELS.clear()


def _facts():
    """How many graphs were compiled, and the most shared memory that a kernel takes."""
    return {"graphs": counters["stats"]["unique_graphs"], "shared": max(size for _, size in KERNELS)}


def compiled_steps(case, *changes):
    """Of three training steps in bf16, the first of them with an empty memory."""
    _forget()
    settings = load(case, "model.attention_dropout=0", "train.precision=bf16", *changes)
    with MODE:
        training = start(settings, build(case, settings, CUDA))
        for _ in range(3):
            training.update()
    return _facts()


def memory_that_grows():
    """Of FlexAttention while segments of two lengths are read."""
    _forget()
    settings = load("relative", "train.attention=flex")
    how = dataclasses.replace(settings.eval, seg_len=20, mem_len=130)
    with MODE, torch.inference_mode():
        model = build("relative", settings, CUDA)
        model.attend_by("flex")
        reader = make_reader(model, how, batch_size=LANES, precision="bf16")
        for length in (*[20] * 10, 7, 20):
            reader.read(torch.zeros(LANES, length, dtype=torch.long, device=CUDA))
    return _facts()


ARGUMENTS = ("query", "key", "value", "content_bias", "position_bias", "position_key")


def differences(seg_len, key_len, reach, rows):
    """Of FlexAttention's output and gradients from attention written out, each relative to its largest number.

    Args:
        seg_len: L.
        key_len: K.
        reach: distances that are seen.
        rows: of position keys; none without.
    """
    _forget()
    torch.manual_seed(1)
    shapes = [(LANES, HEADS, seg_len), (LANES, HEADS, key_len), (LANES, HEADS, key_len)]
    shapes += [(HEADS,), (HEADS,), (HEADS, rows)] if rows else []
    here = [torch.randn(*shape, WIDTH).requires_grad_() for shape in shapes]
    there = [TWINS.pretend(tensor.detach(), requires_grad=True) for tensor in here]
    missing = [None] * (6 - len(shapes))

    def by(attend, *tensors):
        return attend(**dict(zip(ARGUMENTS, [*tensors, *missing], strict=True)), reach=reach, scale=1.0)

    expected = by(attention.attend, *here)
    # In one graph: between two of them autograd would add gradients that have no numbers.
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
"""Those of "numbers" want TRITON_INTERPRET=1."""
