"""Availability of torch.compile and of Triton's kernels."""

import sys
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from txlcli.core.kernels.compilation import (
    MAX_FAILURES,
    check_compiler,
    compiled,
    portable_reason,
    runs_triton,
    triton_problem,
)
from txlcli.errors import UsageError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_compiler():
    torch._dynamo.reset()  # what was compiled before needs no compiler
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}):
        yield


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_error_names_it():
    with pytest.raises(UsageError, match=r"no working compiler for cpu .*; install g\+\+, or leave it out$"):
        check_compiler(CPU, "leave it out")


@pytest.mark.usefixtures("no_compiler")
def test_a_function_that_cannot_be_compiled_is_called_as_it_is_and_one_warning_says_why():
    function, three = compiled(torch.square), torch.tensor(3.0)
    for _ in range(MAX_FAILURES - 1):
        assert function(three) == 9  # without a warning, which would be an error
    with pytest.warns(UserWarning, match="^layers are not compiled, and take longer: .*no-such-compiler"):
        assert function(three) == 9
    assert function(three) == 9


def test_after_a_failure_of_the_compiler_the_next_call_and_the_next_model_try_again():
    compiles = []

    def cube(tensor):
        compiles.append(torch.compiler.is_compiling())
        return tensor**3

    function, two = compiled(cube), torch.tensor(2.0)
    torch._dynamo.reset()
    for failures in (1, MAX_FAILURES):
        without_compiler = {"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}
        with torch._inductor.config.patch(without_compiler), warnings.catch_warnings(action="ignore"):
            for _ in range(failures):
                assert function(two) == 8
        assert compiles.count(False) == failures
        check_compiler(CPU, "leave it out")
        compiles.clear()
        assert function(two) == 8
        assert compiles == [True]
        torch._dynamo.reset()
        compiles.clear()


class Gpu:
    """Pretends that a GPU has a compute capability, and that Triton is installed, or fails to compile."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def pretend(self, capability=(9, 0), *, has_triton=True, failure=None):
        triton_problem.cache_clear()
        driver = SimpleNamespace(active=Mock(get_current_target=Mock(side_effect=failure)))
        module = SimpleNamespace(driver=driver) if has_triton else None  # None lets an import fail
        self._monkeypatch.setitem(sys.modules, "triton.runtime.driver", module)
        self._monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        self._monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


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
        ({"has_triton": False}, 64, "pip install triton"),
        ({"failure": RuntimeError("Python.h:\nNo such file")}, 64, "(Python.h: No such file)"),
        ({"capability": (7, 5)}, 64, "compute capability 7.5"),
        ({}, 129, "at most 128 units, not 129"),
    ],
)
def test_a_gpu_without_the_kernels_of_triton_runs_the_portable_path_and_says_why(gpu, found, width, problem):
    gpu.pretend(**found)
    assert not runs_triton(CUDA, torch.float32, width)
    assert problem in portable_reason(CUDA, width)


def test_a_cpu_and_float64_have_no_kernels_of_triton_and_nothing_is_said(gpu):
    gpu.pretend()
    assert not runs_triton(CPU, torch.float32, 64)
    assert portable_reason(CPU, 64) is None
    assert not runs_triton(CUDA, torch.float64, 64)


def test_an_interpreter_runs_the_kernels_of_triton_on_a_cpu(gpu, monkeypatch):
    gpu.pretend()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert runs_triton(CPU, torch.float32, 64)
