"""Kernels that clip, update and cast in one pass equal optimizers in float64, in Triton's interpreter.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

import dataclasses
import os

import pytest
import torch
from torch import nn

from tests.core.builders import V, draw_tokens, model_settings
from tests.core.training.test_optimizer import train_settings
from tests.extensions import registered_optimizer
from txlcli.core.architectures.registry import make_model
from txlcli.core.model.losses import Objective
from txlcli.core.training.distributed import SINGLE_PROCESS
from txlcli.core.training.large_updates import LargeUpdates
from txlcli.core.training.optimizer import OPTIMIZERS, make_optimizer
from txlcli.core.training.parallel import DataParallel
from txlcli.core.training.step import Batch, Step

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton interprets its kernels with TRITON_INTERPRET=1 only", allow_module_level=True)
pytest.importorskip("triton", reason="Triton's interpreter runs the kernels")

SHAPES = {"matrix": (70, 61), "other": (1, 3), "third": (2, 4099), "table": (71, 59), "small": (5,)}
MATRICES = ("matrix", "other", "third")
SIZES = (4288, 64, 8256)
FACTOR = 0.3


class Parameters(nn.Module):
    """Matrices in one buffer, whose rows are padded, and parameters of their own."""

    def __init__(self, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.buffer = torch.zeros(sum(SIZES), dtype=dtype)
        parts = dict(zip(MATRICES, self.buffer.split(SIZES), strict=True))
        for name, shape in SHAPES.items():
            value = 0.1 * torch.randn(shape, generator=generator).to(dtype)
            if name in MATRICES:
                value = parts[name][: value.numel()].view(shape).copy_(value)
            setattr(self, name, nn.Parameter(value))


def gradients(step, dtype):
    """Return gradients of each parameter; those of matrices have this dtype."""
    generator = torch.Generator().manual_seed(step)
    given = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return given | {name: given[name].to(dtype) for name in MATRICES}


def with_rates_on_the_device(optimizer):
    """Let kernels read the rates of an optimizer, as in a captured step."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"])


def in_float64(settings, dtype, steps):
    """Return the parameters, and the optimizer, after steps of PyTorch in float64."""
    module = Parameters(torch.float64)
    optimizer = make_optimizer(module, settings)
    for step in range(steps):
        for name, gradient in gradients(step, dtype).items():
            getattr(module, name).grad = FACTOR * gradient.double()
        optimizer.step()
    return module, optimizer


def in_one_pass(settings, dtype, steps):
    """Return the parameters, their optimizer and the copies of matrices after the same steps by kernels."""
    module = Parameters(torch.float32)
    optimizer = make_optimizer(module, settings)
    with_rates_on_the_device(optimizer)
    copies = torch.full_like(module.buffer, torch.nan, dtype=torch.float16)
    update = LargeUpdates(
        optimizer,
        OPTIMIZERS[settings.optimizer].update_large,
        [getattr(module, name) for name in MATRICES],
        buffer=module.buffer,
        copies=copies,
        large=4000,
    )
    update.rehearse()  # changes nothing
    flat = torch.zeros_like(module.buffer, dtype=dtype)
    for step in range(steps):
        given = gradients(step, dtype)
        for name, part in zip(MATRICES, flat.split(SIZES), strict=True):
            part[: given[name].numel()] = given[name].flatten()
            getattr(module, name).grad = torch.full(SHAPES[name], torch.nan)  # not read
        module.table.grad = given["table"]
        module.small.grad = given["small"]
        update.step(flat, torch.tensor(FACTOR))
        assert module.table.grad is not None
    return module, optimizer, copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1, "decay_norms": False},
        {"optimizer": "lamb", "weight_decay": 0.1, "decay_norms": False},
        {"optimizer": "lamb"},
    ],
    ids=str,
)
def test_weights_moments_and_copies_equal_those_in_float64(changed, dtype):
    settings = train_settings(lr=0.01, **changed)
    module, optimizer, copies = in_one_pass(settings, dtype, 3)
    exact, exact_optimizer = in_float64(settings, dtype, 3)
    for name in SHAPES:
        given = getattr(module, name)
        expected = getattr(exact, name)
        torch.testing.assert_close(given.double(), expected, rtol=2e-6, atol=2e-7)
        for key, value in exact_optimizer.state[expected].items():
            torch.testing.assert_close(optimizer.state[given][key].double(), value.double(), rtol=2e-6, atol=2e-7)
    torch.testing.assert_close(copies, module.buffer.half(), rtol=1e-3, atol=1e-7)


def taken_steps(optimizer, count, **changed):
    """Return a model after steps with copies of its matrices in bf16, and what took them."""
    settings = train_settings(optimizer=optimizer, lr=0.01, precision="bf16", attention="reference", **changed)
    torch.manual_seed(1)
    model = make_model(model_settings(), V).on(attention="reference").train()
    parallel = DataParallel(model, settings, SINGLE_PROCESS)
    step = Step(parallel, torch.bfloat16)
    with_rates_on_the_device(step.optimizer)
    lanes = 2 // settings.accumulate
    memories = [model.first_memory(lanes, 7) for _ in range(settings.accumulate)]
    for number in range(count):
        parts = draw_tokens(2, 6, seed=number).split(lanes)
        batches = [Batch(tokens[:, :-1], tokens[:, 1:], Objective(mem_len=settings.mem_len)) for tokens in parts]
        step.gradients(batches, memories)
        step.norm()
        step.update(lambda factor: 0.01 * factor)
    return model, step


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": "adam"},
        {"optimizer": "lamb"},
        {"optimizer": "adamw", "clip": None},
        {"optimizer": "adam", "accumulate": 2},
    ],
    ids=str,
)
def test_step_of_a_model_equals_that_of_an_optimizer_alone(changed):
    model, _ = taken_steps(count=1, **changed)
    entry = dataclasses.replace(OPTIMIZERS[changed["optimizer"]], update_large=None)
    with registered_optimizer("alone", entry):
        expected, _ = taken_steps(count=1, **changed | {"optimizer": "alone"})
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()), rtol=1e-5, atol=1e-6)


def test_restored_state_stays_in_the_buffers_of_the_kernels():
    model, step = taken_steps("adam", count=2)
    saved = step.parallel.gather_optimizer()
    saved = {name: tensor.clone() for name, tensor in saved.items()}
    other, resumed = taken_steps("adam", count=1)
    other.load_state_dict(model.state_dict())
    resumed.parallel.restore_optimizer(saved)
    for each in (step, resumed):
        each.weights.refresh()  # the interpreter rounds towards zero
        tokens = draw_tokens(2, 6, seed=3)
        memories = [each.model.first_memory(2, 7)]
        goal = Objective(mem_len=each.settings.mem_len)
        each.gradients([Batch(tokens[:, :-1], tokens[:, 1:], goal)], memories)
        each.norm()
        each.update(lambda factor: 0.01 * factor)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
