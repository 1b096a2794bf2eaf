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


@pytest.mark.parametrize(
    ("device", "enabled", "environ"),
    [(CPU, True, {}), (CUDA, False, {}), (CUDA, True, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})],
)
def test_on_a_cpu_or_without_the_setting_nothing_changes_and_workspaces_of_the_user_are_kept(device, enabled, environ):
    before, given = settings_of_torch(), dict(environ)
    with deterministic_kernels(device, enabled=enabled, environ=given):
        assert given == environ
        assert (settings_of_torch() == before) != bool(environ)


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
