"""Availability of torch.compile, of FlexAttention, which needs it, and of Triton's kernels."""

import importlib.metadata

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
        check_attention("flex", CPU, d_head=64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_flex_attention_needs_a_compiler_for_the_device():
    with pytest.raises(UsageError) as caught:
        check_attention("flex", CUDA, d_head=64)
    assert str(caught.value).startswith("attention flex: PyTorch finds no working compiler for cuda (")
    assert str(caught.value).endswith("; install Triton, or take --attention auto")


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("kind", ["auto", "reference", "sdpa"])
def test_all_other_attention_needs_neither(kind):
    check_attention(kind, CPU, d_head=64)
    check_attention(kind, CUDA, d_head=64)


@pytest.fixture
def card(monkeypatch):
    """Pretend that there are a Triton and a GPU: set their versions."""

    def pretend(*, triton="3.7.1", capability=(9, 0)):
        def version(name):
            if triton is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return triton

        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)

    return pretend


@pytest.mark.parametrize("d_head", [16, 41, 128, None])
@pytest.mark.parametrize("triton", ["3.6.0", "3.10.1", "4.0"])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_kernels_of_triton_run_on_gpus_since_ampere(card, d_head, triton, capability):
    card(triton=triton, capability=capability)
    check_attention("triton", CUDA, d_head=d_head)


@pytest.mark.parametrize(
    ("device", "d_head", "found", "message"),
    [
        (CPU, 64, {}, "attention triton needs a CUDA device; take auto, reference or sdpa on a CPU"),
        (
            CUDA,
            64,
            {"triton": None},
            "attention triton needs the package triton; pip install triton, or take --attention auto",
        ),
        (
            CUDA,
            64,
            {"triton": "3.5.1"},
            "attention triton needs triton 3.6 or later, not 3.5.1; take --attention auto",
        ),
        (
            CUDA,
            64,
            {"capability": (7, 5)},
            "attention triton needs a GPU of compute capability 8.0 or higher, not 7.5; take --attention auto",
        ),
        (CUDA, 129, {}, "attention triton has heads of at most 128 units, not 129; take --attention auto"),
    ],
)
def test_what_the_kernels_of_triton_do_not_support_is_refused(card, device, d_head, found, message):
    card(**found)
    with pytest.raises(UsageError) as caught:
        check_attention("triton", device, d_head=d_head)
    assert str(caught.value) == message


def test_an_interpreter_runs_the_kernels_of_triton_on_a_cpu(card, monkeypatch):
    card()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_attention("triton", CPU, d_head=64)
