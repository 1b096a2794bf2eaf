"""Steps of training on a CUDA device: against float64 on the CPU, and each way to compute them against the plain one.

What needs no CUDA of its own also runs on a CPU, so that the tests themselves are tested.
"""

import contextlib

import pytest
import torch

from tests.gpu.small_runs import STEPS, losses, no_graph, start

ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=ON_CUDA)]
DROPOUT = ("model.dropout=0.2", "model.attention_dropout=0.2", "model.word_dropout=0.1")
ERRORS = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 1e-2}
"""Largest relative error of a loss after up to 20 steps."""


def assert_close(found, expected, largest):
    assert found.isfinite().all()
    assert expected[-1] < 0.95 * expected[0]  # it has learned
    assert ((found - expected) / expected).abs().max() < largest


@contextlib.contextmanager
def no_waiting():
    """Raise an error where the host waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def of_float64():
    return losses("cpu", dtype=torch.float64)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_twenty_steps_on_a_cpu_are_those_of_float64(backend, of_float64):
    assert_close(losses("cpu", f"train.attention={backend}"), of_float64, ERRORS["fp32"])


@ON_CUDA
@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_twenty_steps_are_those_of_float64_on_the_cpu(backend, precision, of_float64):
    found = losses("cuda", f"train.attention={backend}", f"train.precision={precision}")
    assert_close(found, of_float64, ERRORS[precision])


@ON_CUDA
def test_steps_of_lamb_are_those_of_a_cpu():
    assert_close(*(losses(device, "train.optimizer=lamb", "train.lr=0.05") for device in ("cuda", "cpu")), 1e-4)


@ON_CUDA
@pytest.mark.parametrize("recompute", ["false", "layers"])
def test_captured_steps_have_the_dropout_and_the_losses_of_eager_ones(recompute):
    captured = losses("cuda", *DROPOUT, f"train.recompute={recompute}", path=["captured"])
    assert_close(captured, losses("cuda", *DROPOUT, capture_graph=no_graph), 1e-4)


@pytest.mark.parametrize("recompute", ["true", "layers"])
@pytest.mark.parametrize("device", DEVICES)
def test_recomputed_steps_have_the_dropout_and_the_losses_of_saved_ones(device, recompute):
    saved = losses(device, *DROPOUT)
    assert_close(losses(device, *DROPOUT, f"train.recompute={recompute}"), saved, 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_another_seed_of_dropout_gives_losses_that_differ_more_than_the_tests_here_allow(device):
    one = losses(device, *DROPOUT)
    training = start(device, *DROPOUT)
    torch.manual_seed(6)
    other = torch.stack([training.update().loss for _ in range(STEPS)]).double().cpu()
    assert ((one - other) / one).abs().max() > 1e-3


@ON_CUDA
def test_compiled_steps_have_the_losses_of_eager_ones():
    pytest.importorskip("triton")
    compiled = losses("cuda", "train.compile=on", path=["compiled", "captured"])
    assert_close(compiled, losses("cuda", path=["not compiled"]), 1e-3)


@ON_CUDA
@pytest.mark.parametrize("optimizer", ["adam", "lamb", "muon", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_updates_do_not_wait_for_the_device(optimizer, precision):
    training = start("cuda", *DROPOUT, f"train.optimizer={optimizer}", f"train.precision={precision}")
    for _ in range(4):  # fills the memory, and captures
        training.update()
    torch.cuda.synchronize()
    with no_waiting():
        for _ in range(2):
            training.update()
