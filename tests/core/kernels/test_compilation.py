"""Availability of torch.compile and of FlexAttention, which needs it."""

import pytest
import torch

from txlcli.core.kernels.compilation import check_attention, check_compiler
from txlcli.errors import UsageError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_compiler():
    torch._dynamo.reset()  # what was compiled before needs no compiler
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}):
        yield


def test_a_machine_with_a_compiler_is_accepted():
    check_compiler(CPU, "compile", "leave it out")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_error_names_it():
    with pytest.raises(UsageError) as caught:
        check_compiler(CPU, "compile", "leave it out")
    assert str(caught.value).startswith("compile: PyTorch finds no working compiler for cpu (")
    assert str(caught.value).endswith("; install g++, or leave it out")


def test_flex_attention_is_for_cuda_only():
    message = "attention flex needs a CUDA device; take auto, reference or sdpa on a CPU"
    with pytest.raises(UsageError, match=f"^{message}$"):
        check_attention("flex", CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_flex_attention_needs_a_compiler_for_the_device():
    with pytest.raises(UsageError) as caught:
        check_attention("flex", CUDA)
    assert str(caught.value).startswith("attention flex: PyTorch finds no working compiler for cuda (")
    assert str(caught.value).endswith("; install Triton, or take --attention auto")


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("kind", ["auto", "reference", "sdpa"])
def test_all_other_attention_needs_neither(kind):
    check_attention(kind, CPU)
    check_attention(kind, CUDA)
