"""Devices and precisions: which are selected, which are rejected."""

import pytest
import torch

from txlcli.config import recipe
from txlcli.core.architectures.registry import make_model
from txlcli.core.kernels.device import (
    STATM,
    available_bytes,
    check_free_memory,
    check_precision,
    check_tf32,
    describe,
    describe_precision,
    float64_device,
    own_gpu,
    pick_device,
    used_by_others,
    useful_threads,
)
from txlcli.core.kernels.modes import autocast, float32_products, threads
from txlcli.errors import UsageError
from txlcli.system.launcher import Place
from txlcli.system.memory import is_out_of_memory

CPU, CUDA, MPS = (torch.device(name) for name in ("cpu", "cuda", "mps"))


def test_auto_is_cuda_where_it_is_available_and_cuda_is_rejected_elsewhere():
    if torch.cuda.is_available():
        assert pick_device("auto") == pick_device("cuda") == CUDA
        assert describe(CUDA)
    else:
        assert pick_device("auto").type != "cuda"
        with pytest.raises(UsageError, match="no CUDA device"):
            pick_device("cuda")


@pytest.mark.parametrize(("visible", "expected"), [(None, ["0", "1", "2"]), ("7,GPU-5,2", ["7", "GPU-5", "2"])])
def test_each_process_of_a_machine_sees_its_own_gpu(visible, expected):
    places = [Place(world_size=6, rank=3 + rank, local_rank=rank, local_world_size=3) for rank in range(3)]
    assert [own_gpu(place, 3, visible) for place in places] == expected


def test_more_processes_than_gpus_are_rejected():
    with pytest.raises(UsageError, match=r"4 processes need 4 CUDA devices, and this machine has 2"):
        own_gpu(Place(world_size=8, rank=5, local_rank=1, local_world_size=4), 2, None)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has a GPU of Apple's")
def test_a_gpu_of_apples_is_rejected_if_there_is_none_and_computes_in_fp32():
    with pytest.raises(UsageError, match="no GPU of Apple's"):
        pick_device("mps")
    check_precision("fp32", MPS)
    assert [float64_device(device).type for device in (MPS, CPU)] == ["cpu", "cpu"]
    assert "Apple" in describe(MPS)
    assert used_by_others(MPS) == 0


@pytest.mark.parametrize(
    ("model", "tokens", "most"),
    [("stdlib", 1, 1), ("stdlib", 38, 2), ("stdlib", 64, 3), ("enwik8", 1, 2), ("enwik8", 4, 3)],
)
def test_few_tokens_of_a_small_model_use_few_threads(model, tokens, most):
    with torch.device("meta"):
        made = make_model(recipe.load(model).model, 256)
    before = torch.get_num_threads()
    with threads(3):
        assert useful_threads(made, tokens) == most
        with threads(1):
            assert useful_threads(made, tokens) == torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("check", "arguments", "telling"),
    [
        (pick_device, ["gpu"], 'did you mean "cuda"'),
        (check_precision, ["fp8", CPU], "known: fp32, tf32, bf16, fp16"),
        *((check_precision, [precision, CPU], f"{precision} needs a CUDA device") for precision in ("fp16", "tf32")),
        *((check_precision, [precision, MPS], f"{precision} needs a CUDA device") for precision in ("fp16", "tf32")),
        (check_precision, ["bf16", MPS], "needs a CPU or a CUDA device"),
        (check_tf32, [(7, 5)], r"8\.0 or higher, not 7\.5"),
    ],
)
def test_unknown_devices_and_precisions_that_a_device_does_not_have_are_rejected(check, arguments, telling):
    with pytest.raises(UsageError, match=telling):
        check(*arguments)


def test_recent_gpus_have_every_precision():
    check_precision("fp16", CUDA)
    for capability in ((8, 0), (12, 0)):
        check_tf32(capability)


def float32_settings():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return matmul.fp32_precision, matmul.allow_tf32, torch.get_float32_matmul_precision(), cudnn.allow_tf32


def test_float32_products_use_tf32_inside_a_block_only():
    before = float32_settings()
    block = autocast(CUDA, "tf32")
    for _ in range(2):
        with block:
            assert float32_settings() == ("tf32", True, "high", True)
            with autocast(CUDA, "fp32"):
                assert float32_settings() == ("ieee", False, "highest", False)  # cuDNN's LSTM uses TF32 by default
            with block:
                assert float32_settings() == ("tf32", True, "high", True)
    assert float32_settings() == before


@pytest.mark.parametrize(("device", "precision"), [(CPU, "fp32"), (CUDA, "bf16"), (CUDA, "fp16")])
def test_other_precisions_leave_the_products_of_float32_alone(device, precision):
    before = float32_settings()
    with float32_products(device, precision):
        assert float32_settings() == before


def test_more_than_a_cpu_has_free_is_rejected():
    check_free_memory(3 << 30, CPU, free=lambda: 3 << 30)
    check_free_memory(7 << 30, CPU, free=lambda: None)
    check_free_memory(7 << 30, CUDA, free=lambda: 3 << 30)  # CUDA raises an error of its own
    with pytest.raises(MemoryError, match=r"^tried to allocate 3\.5 GiB, of 3\.0 GiB that are free$") as caught:
        check_free_memory(7 << 29, CPU, free=lambda: 3 << 30)
    assert is_out_of_memory(caught.value)


@pytest.mark.skipif(not STATM.exists(), reason="only Linux has /proc/meminfo")
def test_memory_is_read_from_linux_and_what_the_process_holds_is_available():
    check_free_memory(1, CPU)
    with pytest.raises(MemoryError):
        check_free_memory(1 << 60, CPU)
    before = available_bytes(CPU, free=lambda: 1 << 30)
    held = torch.ones(64 << 20)  # 256 MiB
    assert available_bytes(CPU, free=lambda: 1 << 30) - before > 200 << 20
    assert held.numel() == 64 << 20


@pytest.mark.parametrize(
    ("precision", "device", "has_bf16", "is_told"),
    [("bf16", CPU, False, True), ("bf16", CPU, True, False), ("fp32", CPU, False, False), ("bf16", CUDA, False, False)],
)
def test_a_processor_without_bf16_instructions_is_told(precision, device, has_bf16, is_told):
    shown = describe_precision(precision, device, lambda: has_bf16)
    assert shown.startswith(precision)
    assert ("no bf16 instructions" in shown) == is_told
