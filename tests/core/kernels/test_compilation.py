"""Availability of torch.compile, of FlexAttention, which needs it, and of Triton's kernels."""

import importlib.util

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
    assert str(caught.value).endswith("; install Triton, or take `attention` auto")


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that a GPU has a compute capability, and that Triton is installed or not."""

    def pretend(capability=(9, 0), *, triton=True):
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: triton or None)

    return pretend


@pytest.mark.parametrize("d_head", [16, 41, 128, None])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_kernels_of_triton_run_on_gpus_since_ampere(gpu, d_head, capability):
    gpu(capability)
    check_attention("triton", CUDA, d_head=d_head)


@pytest.mark.parametrize(
    ("device", "found", "d_head", "message"),
    [
        (CPU, {}, 64, "needs a CUDA device; take auto, reference or sdpa on a CPU"),
        (CUDA, {"triton": False}, 64, "needs the package triton; pip install triton, or take `attention` auto"),
        (
            CUDA,
            {"capability": (7, 5)},
            64,
            "needs a GPU of compute capability 8.0 or higher, not 7.5; take `attention` auto",
        ),
        (CUDA, {}, 129, "has heads of at most 128 units, not 129; take `attention` auto"),
    ],
)
def test_what_the_kernels_of_triton_do_not_support_is_rejected(gpu, device, found, d_head, message):
    gpu(**found)
    with pytest.raises(UsageError) as caught:
        check_attention("triton", device, d_head=d_head)
    assert str(caught.value) == f"attention triton {message}"
    assert caught.value.exit_code == 2
    check_attention("auto", device, d_head=d_head)  # works without any kernel


def test_an_interpreter_runs_the_kernels_of_triton_on_a_cpu(gpu, monkeypatch):
    gpu()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_attention("triton", CPU, d_head=64)
