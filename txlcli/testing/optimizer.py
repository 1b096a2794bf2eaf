"""The contract of an optimizer, tried on the weights of a small model.

In all rules but that of a training run, the gradient of a weight is the weight itself: so no weight depends on another.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from txlcli.config.train_settings import TrainSettings
from txlcli.core.kernels.private import tensors_without_data
from txlcli.core.model.base import LanguageModel
from txlcli.core.training.optimizer import OPTIMIZERS, ModelPart, parameters_of, set_rates
from txlcli.testing.recording import record
from txlcli.testing.rules import Rules
from txlcli.testing.samples import STEPS, small_model, small_settings, whole_and_resumed

ROUNDING = 1e-6
"""Largest change of a weight that an optimizer computes from an average, such as a schedule-free one, and rounds."""


class OptimizerCheck(Rules):
    """The rules of an optimizer, one method each."""

    def __init__(self, name: str, settings: TrainSettings, given: Mapping[str, object]) -> None:
        super().__init__(name, given)
        self.settings = settings
        self.entry = OPTIMIZERS[name]
        self.model_settings = small_settings("transformer", {})

    def run(self) -> None:
        """Check all rules."""
        self.attempt(self.check_groups, "an optimizer is made from a model and the settings of [train]")
        rule = "an optimizer is made before its weights have values, as `txl train --dry-run` makes it"
        self.attempt(self.check_without_data, rule)
        self.attempt(self.check_direction, "a step updates weights by their gradients, without a closure")
        self.attempt(self.check_repetition, "a step is taken again")
        self.attempt(self.check_rates, "a step works at a rate of 0")
        self.attempt(self.check_whole_rate, "a step works at any rate")
        self.attempt(self.check_missing_gradients, "a step passes over weights whose `grad` is None")
        self.attempt(self.check_state, "the state of a weight is a dict, and state_tensors returns a number")
        self.attempt(self.check_resuming, "a training run is saved and resumed")
        rule = 'with train.parallel = "zero", the model is some of the parameters (ModelPart), and a group may be empty'
        self.attempt(self.check_parts, rule)
        rule = "with capturable=True, a CUDA graph can capture a step, whose rates are tensors"
        self.attempt(self.check_capture, rule)

    def model(self) -> LanguageModel:
        """Return a model with random weights, the same ones each time."""
        return small_model(self.model_settings)

    def optimizer(self, model: nn.Module, settings: TrainSettings | None = None) -> Optimizer:
        """Return the optimizer of a model, with the highest rates of the schedule."""
        optimizer = self.entry.make(model, settings or self.settings)
        rule = "each group is made with parameter_group, and has a rate lr, which is set before each step"
        for group in optimizer.param_groups:
            for key in ("lr_factor", "lr"):
                self.require(key in group, rule, f"a group has no {key}, but {', '.join(group)}")
        self.set_rates(optimizer)
        return optimizer

    def set_rates(self, optimizer: Optimizer, share: float = 1.0) -> None:
        """Set the rate of each group to a share of its highest, as a training step does."""
        set_rates(optimizer, lambda factor: share * factor * self.settings.lr)

    def check_groups(self) -> None:
        """Check that the groups hold each parameter once."""
        model = self.model()
        grouped = list(parameters_of(self.optimizer(model)))
        rule = "the groups hold each parameter of the model once, and nothing else"
        for name, parameter in model.named_parameters():
            count = sum(other is parameter for other in grouped)
            self.require(count == 1, rule, f"{name} is in them {count} times")
        others = len(grouped) - len(list(model.parameters()))
        self.require(others == 0, rule, f"they hold {others} other tensors")

    def check_without_data(self) -> None:
        """Check that an optimizer is made of parameters that have a shape only."""
        with tensors_without_data():
            self.optimizer(self.model())

    def check_direction(self) -> None:
        """Check that a step moves each weight against its gradient, in place."""
        model = self.model()
        before = weights_of(model)
        places = {name: weight.data_ptr() for name, weight in model.named_parameters()}
        take_steps(model, self.optimizer(model), 1)
        for name, weight in model.named_parameters():
            rule = "a step changes a weight in place, since txl keeps views of it"
            self.require(weight.data_ptr() == places[name], rule, f"{name} has another tensor after a step")
            gradient = before[name]
            change = weight.detach() - before[name]
            ascent = float((change * gradient).sum())
            rule = "a step moves each weight that has a gradient, against this gradient"
            self.require(ascent < 0, rule, f"the change of {name} times its gradient is {ascent:.1e}")

    def check_repetition(self) -> None:
        """Check that steps draw no random numbers."""
        expected = self.model()
        take_steps(expected, self.optimizer(expected))
        given = self.model()
        take_steps(given, self.optimizer(given))
        rule = "a step draws no random numbers: several processes take it alike, each with random numbers of its own"
        self.require_same_weights(given, expected, rule)

    def check_rates(self) -> None:
        """Check that the weights of a group stay while the rate of the group is 0."""
        rule = (
            'a step multiplies its changes, weight decay too, by the rate of the group, group["lr"]: at 0, weights stay'
        )
        n_groups = len(self.optimizer(self.model()).param_groups)
        for number in range(n_groups):
            model = self.model()
            optimizer = self.optimizer(model)
            group = optimizer.param_groups[number]
            before = [weight.detach().clone() for weight in group["params"]]
            group["lr"] = 0.0
            take_steps(model, optimizer)
            for weight, expected in zip(group["params"], before, strict=True):
                self.require_equal(weight, expected, rule, atol=ROUNDING)

    def check_whole_rate(self) -> None:
        """Check that a step depends neither on train.lr nor on lr_factor, but for the rate of the group."""
        expected = self.model()
        take_steps(expected, self.optimizer(expected))
        given = self.model()
        optimizer = self.optimizer(given, dataclasses.replace(self.settings, lr=2 * self.settings.lr))
        for group in optimizer.param_groups:
            group["lr_factor"] *= 2
        take_steps(given, optimizer)
        rule = 'group["lr"] is the rate of a step, in which the schedule and lr_factor are; a step reads no train.lr'
        self.require_same_weights(given, expected, rule)

    def check_missing_gradients(self) -> None:
        """Check that a weight stays while it has no gradient, and moves once it has one."""
        model = self.model()
        optimizer = self.optimizer(model)
        before = weights_of(model)
        set_gradients(model)
        idle = dict(list(model.named_parameters())[::2])
        for weight in idle.values():
            weight.grad = None
        optimizer.step()
        for name, weight in idle.items():
            rule = f"a weight without a gradient stays, and does not decay either ({name})"
            self.require_equal(weight, before[name], rule, atol=0.0)
        take_steps(model, optimizer, 1)
        for name, weight in idle.items():
            rule = "a weight that has its first gradient after the first step moves from then on"
            self.require(not torch.equal(weight, before[name]), rule, f"{name} stays")

    def check_state(self) -> None:
        """Check that the state is what a checkpoint can hold, and as large as `state_tensors` says."""
        model = self.model()
        optimizer = self.optimizer(model)
        take_steps(model, optimizer)
        for name, weight in model.named_parameters():
            kept = 0
            for key, value in optimizer.state.get(weight, {}).items():
                if value is None:
                    continue
                rule = "the state of a weight is tensors of its shape, or of one number without an axis"
                self.require(isinstance(value, Tensor), rule, f'"{key}" of {name} is of type {type(value).__name__}')
                is_like_weight = value.shape == weight.shape
                found = f'"{key}" of {name} has the shape {tuple(value.shape)}, not {tuple(weight.shape)}'
                self.require(is_like_weight or value.dim() == 0, rule, found)
                kept += is_like_weight
            declared = self.entry.state_tensors(name, weight.shape, self.settings)
            rule = "state_tensors returns the number of tensors of the shape of a weight that are kept"
            self.require(kept == declared, rule, f"{kept} of {name}, not {declared}")

    def check_resuming(self) -> None:
        """Check that a resumed training run equals an uninterrupted one."""
        with tempfile.TemporaryDirectory() as directory:
            whole, resumed = whole_and_resumed(Path(directory), self.model_settings, self.settings)
        rule = (
            "a resumed training run equals an uninterrupted one: what an optimizer keeps is in state[weight], not in "
            "itself, in a group or under other keys"
        )
        self.require_same_weights(resumed.model, whole.model, rule)

    def check_parts(self) -> None:
        """Check that a weight is updated alone, as the process that owns it does, as it is with all others."""
        expected = self.model()
        take_steps(expected, self.optimizer(expected))
        rule = (
            'with train.parallel = "zero", a weight is updated without the others as it is with them, or `make` raises '
            "a ValueError for a ModelPart"
        )
        given = dict(self.model().named_parameters())
        try:
            self.entry.make(ModelPart(given), self.settings)
        except ValueError:
            return  # txl rejects train.parallel = "zero"
        for name, weight in given.items():
            part = ModelPart({name: weight})
            take_steps(part, self.optimizer(part))
        self.require_same_weights(ModelPart(given), expected, rule, atol=1e-5)

    def check_capture(self) -> None:
        """Check that a step that is replayed equals an eager one, if the entry is capturable."""
        if not self.entry.capturable:
            return
        for group in self.optimizer(self.model()).param_groups:
            if "capturable" in group and not group.get("fused"):
                return  # PyTorch's own, whose step on a GPU is another one
        by_number = self.after_schedule(rates_are_tensors=False)
        by_tensor = self.after_schedule(rates_are_tensors=True)
        rule = "with capturable=True, a step whose rates are tensors equals one whose rates are numbers"
        self.require_same_weights(by_tensor, by_number, rule, atol=0.1 * self.settings.lr)  # products may be bf16
        replayed = self.after_schedule(rates_are_tensors=True, replays=True)
        rule = (
            "with capturable=True, a step that a CUDA graph replays equals an eager one: what changes from step to "
            "step, such as their number, is a tensor that is changed in place"
        )
        self.require_same_weights(replayed, by_tensor, rule)

    def after_schedule(self, *, rates_are_tensors: bool, replays: bool = False) -> LanguageModel:
        """Return a model after steps with falling rates, of which those from the third on may be replays."""
        model = self.model()
        optimizer = self.optimizer(model)
        if rates_are_tensors:
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros(())
        gradients = list(weights_of(model).values())  # a graph reads them in one place
        step: Callable[[], object] = optimizer.step
        for number in range(STEPS):
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.grad = gradient.copy_(weight.detach())
            self.set_rates(optimizer, 1 / (1 + number))
            if replays and number == 1:
                step = record(step)
            else:
                step()
        return model


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the weights by name."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def set_gradients(model: nn.Module) -> None:
    """Let the gradient of each weight be the weight, as that of half the sum of squares."""
    for weight in model.parameters():
        weight.grad = weight.detach().clone()


def take_steps(model: nn.Module, optimizer: Optimizer, count: int = STEPS) -> None:
    """Take steps in which every weight has a gradient."""
    for _ in range(count):
        set_gradients(model)
        optimizer.step()
