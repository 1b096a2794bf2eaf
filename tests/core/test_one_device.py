"""A training step and the reading of a segment stay on the model's device and never wait for its numbers.

The meta device stands for an accelerator: it knows shapes and no numbers, so that whoever asks for one fails, and an
operation on tensors of two devices is rejected here. Number formats and random numbers it cannot show;
test_fake_cuda.py shows more of them where there is a compiler.
"""

import contextlib

import pytest
import torch

from tests.core.device_cases import CASES, OneDevice, build, load, read, start
from tests.samples import sampled

META = torch.device("meta")


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch):
    """The meta device has none."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)


def train_and_read(case):
    """Two steps, then segments and one token."""
    settings = load(case)
    model = build(case, settings, META)
    with OneDevice():
        training = start(settings, model)
        for group in training.parallel.optimizer.param_groups:
            group["fused"] = None  # there is no fused step for it, and others count steps on the host
        for state in training.parallel.optimizer.state.values():
            state["step"] = torch.zeros(())
        for _ in range(2):
            training.update()
        return read(settings, model)


@pytest.mark.parametrize("case", sampled(3, CASES))
def test_training_and_reading_never_leave_the_device_or_wait_for_it(case):
    reader, hidden = train_and_read(case)
    assert {hidden.device, reader.log_probs(hidden[None]).device} == {META}


def test_two_devices_are_noticed():
    with OneDevice(), pytest.raises(AssertionError, match="mixes"):
        torch.zeros(3, device=META)[torch.arange(2)]


def test_a_number_that_is_asked_for_is_noticed():
    with pytest.raises((NotImplementedError, RuntimeError)):
        float(torch.zeros((), device=META))
