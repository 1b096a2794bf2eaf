"""Availability of torch.compile and of Triton's kernels."""

import importlib.metadata
import importlib.util
import shutil
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from txlcli.core.kernels.compilation import check_compiler, compiled, portable_reason, runs_triton, triton_problem
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
        check_compiler(CPU, "leave it out")
    assert str(caught.value).startswith("compile: PyTorch finds no working compiler for cpu (")
    assert str(caught.value).endswith("; install g++, or leave it out")


@pytest.mark.usefixtures("no_compiler")
def test_a_function_that_cannot_be_compiled_is_called_as_it_is_and_one_warning_says_why():
    function, three = compiled(torch.square), torch.tensor(3.0)
    with pytest.warns(UserWarning, match="^layers are not compiled, and take longer: .*no-such-compiler"):
        assert function(three) == 9
    assert function(three) == 9  # without another warning, which would be an error


class Gpu:
    """Pretends that a GPU has a compute capability, and which packages and programs are installed."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def pretend(self, capability=(9, 0), *, triton="3.6.0", compilers=("gcc",), given=None, failure=None):
        triton_problem.cache_clear()
        replace = self._monkeypatch.setattr
        driver = SimpleNamespace(active=Mock(get_current_target=Mock(side_effect=failure)))
        self._monkeypatch.setitem(sys.modules, "triton.runtime.driver", SimpleNamespace(driver=driver))
        self._monkeypatch.delenv("CC", raising=False)
        if given is not None:
            self._monkeypatch.setenv("CC", given)
        self._monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        replace(torch.cuda, "get_device_capability", lambda _: capability)
        replace(importlib.util, "find_spec", lambda _: triton)
        replace(importlib.metadata, "version", lambda _: triton)
        replace(shutil, "which", lambda name: name if name in compilers else None)


@pytest.fixture
def gpu(monkeypatch):
    yield Gpu(monkeypatch)
    triton_problem.cache_clear()


@pytest.mark.parametrize("width", [16, 41, 128])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_kernels_of_triton_run_on_gpus_since_ampere(gpu, width, capability):
    gpu.pretend(capability)
    assert runs_triton(CUDA, torch.bfloat16, width)
    assert portable_reason(CUDA, width) is None


@pytest.mark.parametrize(
    ("found", "width", "problem"),
    [
        ({"triton": None}, 64, "Triton is not installed; pip install triton"),
        ({"triton": "3.5.1"}, 64, "Triton 3.5.1 is installed, and they need 3.6; pip install -U triton"),
        ({"compilers": ("cc",)}, 64, "Triton finds no C compiler (gcc, clang); install gcc, or set CC"),
        ({"given": "/no/cc"}, 64, "Triton finds no C compiler (/no/cc); install gcc, or set CC"),
        (
            {"failure": RuntimeError("Python.h:\nNo such file")},
            64,
            "Triton cannot compile here (Python.h: No such file); it needs gcc, and Python's headers (python3-dev)",
        ),
        ({"capability": (7, 5)}, 64, "the GPU has compute capability 7.5, and they need 8.0"),
        ({}, 129, "they have heads of at most 128 units, not 129"),
    ],
)
def test_a_gpu_without_the_kernels_of_triton_runs_the_portable_path_and_says_why(gpu, found, width, problem):
    gpu.pretend(**found)
    assert not runs_triton(CUDA, torch.float32, width)
    assert (
        portable_reason(CUDA, width)
        == f"attention without Triton's kernels, which takes longer and more memory: {problem}"
    )


def test_a_cpu_and_float64_have_no_kernels_of_triton_and_nothing_is_said(gpu):
    gpu.pretend()
    assert not runs_triton(CPU, torch.float32, 64)
    assert portable_reason(CPU, 64) is None
    assert not runs_triton(CUDA, torch.float64, 64)


def test_an_interpreter_runs_the_kernels_of_triton_on_a_cpu(gpu, monkeypatch):
    gpu.pretend()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert runs_triton(CPU, torch.float32, 64)
