"""Deterministic kernels: the settings of PyTorch inside a block, and what is rejected. No GPU is needed."""

import pytest
import torch

from txlcli.core.kernels.determinism import check_deterministic, deterministic_kernels
from txlcli.errors import UsageError

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def settings_of_torch():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cuda.matmul.fp32_precision,
    )


def test_a_block_for_cuda_has_deterministic_kernels_and_restores_the_settings():
    before, environ = settings_of_torch(), {}
    with deterministic_kernels(CUDA, enabled=True, environ=environ):
        assert settings_of_torch() == (True, False, True, False, False, before[-1])
        assert environ == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert settings_of_torch() == before


@pytest.mark.parametrize(("device", "enabled"), [(CPU, True), (CUDA, False)])
def test_on_a_cpu_or_without_the_setting_nothing_changes(device, enabled):
    before, environ = settings_of_torch(), {}
    with deterministic_kernels(device, enabled=enabled, environ=environ):
        assert settings_of_torch() == before
    assert environ == {}


def test_the_workspaces_that_the_user_has_fixed_are_kept():
    environ = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    with deterministic_kernels(CUDA, enabled=True, environ=environ):
        assert environ == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}


def test_an_operation_without_a_deterministic_kernel_is_rejected_in_one_line():
    with pytest.raises(UsageError) as caught, deterministic_kernels(CUDA, enabled=True, environ={}):
        torch.zeros(5).put_(torch.tensor([1]), torch.ones(1))  # has none on a CPU either
    assert "put_ does not have a deterministic implementation" in str(caught.value)
    assert caught.value.exit_code == 2


def test_several_gpus_are_rejected():
    check_deterministic(CPU, processes=2)
    check_deterministic(CUDA, processes=1)
    with pytest.raises(UsageError, match=r"train\.deterministic is for one GPU"):
        check_deterministic(CUDA, processes=2)
