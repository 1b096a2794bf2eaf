"""Availability of torch.compile and of Triton's kernels."""

import warnings

import pytest
import torch

from txlcli.core.kernels.compilation import (
    MAX_FAILURES,
    check_compiler,
    compiled,
    gpu_problem,
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


def fails_to_compile():
    raise RuntimeError("Python.h:\nNo such file")


def is_missing():
    raise ModuleNotFoundError("triton")


@pytest.mark.parametrize(
    ("capability", "find_target", "width", "reason"),
    [
        *((capability, lambda: None, 128, None) for capability in ((8, 0), (9, 0), (12, 1))),
        ((9, 0), is_missing, 64, "pip install triton"),
        ((9, 0), fails_to_compile, 64, "(Python.h: No such file)"),
        ((7, 5), lambda: None, 64, "compute capability 7.5"),
        ((9, 0), lambda: None, 129, "at most 128 units, not 129"),
    ],
)
def test_kernels_of_triton_run_on_gpus_since_ampere_and_others_say_why_not(capability, find_target, width, reason):
    problem = gpu_problem(capability, find_target)
    found = portable_reason(CUDA, width, problem)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("interprets", "problem"), [("0", "they need a CUDA device"), ("1", None)])
def test_a_cpu_runs_kernels_of_triton_only_in_its_interpreter_and_nothing_is_said(monkeypatch, interprets, problem):
    monkeypatch.setenv("TRITON_INTERPRET", interprets)
    triton_problem.cache_clear()
    try:
        assert triton_problem(CPU) == problem
        assert portable_reason(CPU, 64, problem) is None
        fits = [runs_triton(CPU, torch.float32, 128), runs_triton(CPU, torch.float32, 129)]
        assert fits == [problem is None, False]
        assert not runs_triton(CPU, torch.float64, 64)
    finally:
        triton_problem.cache_clear()
