"""Availability of torch.compile, of FlexAttention, which needs it, and of Triton's kernels."""

import pytest
import torch

from txlcli.core.kernels.compilation import Toolchain, check_attention, check_compiler
from txlcli.core.kernels.triton_launch import check_shape
from txlcli.errors import UsageError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_compiler():
    torch._dynamo.reset()  # what was compiled before needs no compiler
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}):
        yield


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_error_names_it():
    with pytest.raises(UsageError) as caught:
        check_compiler(CPU, "compile", "leave it out")
    assert str(caught.value).startswith("compile: PyTorch finds no working compiler for cpu (")
    assert str(caught.value).endswith("; install g++, or leave it out")


def test_flex_attention_is_for_cuda_only():
    message = "attention flex needs a CUDA device; take auto, reference or sdpa on a CPU"
    with pytest.raises(UsageError, match=f"^{message}$"):
        check_attention("flex", CPU, d_head=64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_flex_attention_needs_a_compiler_for_the_device():
    with pytest.raises(UsageError) as caught:
        check_attention("flex", CUDA, d_head=64)
    assert str(caught.value).startswith("attention flex: PyTorch finds no working compiler for cuda (")
    assert str(caught.value).endswith("; install Triton, or take --attention auto")


def machine(triton="3.7.1", capability=(9, 0), **more):
    return Toolchain(triton, capability, **more)


@pytest.mark.parametrize("d_head", [16, 41, 128, None])
@pytest.mark.parametrize("triton", ["3.6.0", "3.10.1", "4.0"])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_kernels_of_triton_run_on_gpus_since_ampere(d_head, triton, capability):
    check_attention("triton", CUDA, d_head=d_head, toolchain=machine(triton, capability))


@pytest.mark.parametrize(
    ("found", "d_head", "message"),
    [
        (machine(capability=None), 64, "needs a CUDA device; take auto, reference or sdpa on a CPU"),
        (machine(triton=None), 64, "needs the package triton; pip install triton, or take --attention auto"),
        (machine(triton="3.5.1"), 64, "needs triton 3.6 or later, not 3.5.1; take --attention auto"),
        (
            machine(capability=(7, 5)),
            64,
            "needs a GPU of compute capability 8.0 or higher, not 7.5; take --attention auto",
        ),
        (machine(), 129, "has heads of at most 128 units, not 129; take --attention auto"),
    ],
)
def test_what_the_kernels_of_triton_do_not_support_is_rejected(found, d_head, message):
    with pytest.raises(UsageError) as caught:
        check_attention("triton", CUDA, d_head=d_head, toolchain=found)
    assert str(caught.value) == f"attention triton {message}"
    assert caught.value.exit_code == 2
    check_attention("auto", CUDA, d_head=d_head, toolchain=found)  # works without any kernel


def test_an_interpreter_runs_the_kernels_of_triton_on_a_cpu():
    check_attention("triton", CPU, d_head=64, toolchain=machine(capability=None, interprets=True))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 3, 5, 129), torch.float32, "has heads of at most 128 units, not 129; take auto"),
        ((2, 3, 5, 16), torch.float64, "computes in float32, bfloat16 or float16, not in torch.float64; take auto"),
        (
            (8192, 8, 1, 16),
            torch.float16,
            "takes at most 65,535 lanes times heads at once, not 8192 x 8; take auto, or smaller batches",
        ),
    ],
    ids=["width", "dtype", "lanes"],
)
def test_a_shape_that_the_kernels_of_triton_do_not_support_is_rejected(shape, dtype, message):
    with pytest.raises(UsageError) as caught:
        check_shape(torch.empty(shape, dtype=dtype, device="meta"))
    assert str(caught.value) == f"attention triton {message}"


def test_the_largest_shapes_of_the_kernels_of_triton_are_accepted():
    check_shape(torch.empty(65_535, 1, 1, 128, dtype=torch.bfloat16, device="meta"))
