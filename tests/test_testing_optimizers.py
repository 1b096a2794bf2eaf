"""The check of optimizers: all of txl pass, and wrong ones from outside the package do not.

The right one from outside the package is that of docs/extending.md, which test_extending.py checks.
"""

import pytest
import torch

from tests.extensions import registered_optimizer
from txlcli.core.training.optimizer import ModelPart, OptimizerEntry, parameter_group
from txlcli.errors import UnknownNameError, UsageError
from txlcli.testing import ContractError, check_optimizer

SETTINGS = [
    {"name": "adam"},
    {"name": "adamw", "embedding_lr": 2.0, "decay_norms": False},
    {"name": "lamb"},
    {"name": "muon"},
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_optimizer_keeps_the_contract(settings):
    check_optimizer(**settings)


def groups_of(model):
    """Return the softmax, which has a higher rate, and all other parameters."""
    softmax = []
    others = []
    for name, parameter in model.named_parameters():
        if name.startswith("softmax."):
            softmax.append(parameter)
        else:
            others.append(parameter)
    return [parameter_group("softmax", softmax, lr_factor=2.0), parameter_group("others", others)]


class Momentum(torch.optim.Optimizer):
    """Gradient descent with momentum and decoupled weight decay, which keeps the contract."""

    def __init__(self, groups, settings):
        super().__init__(groups, {"lr": settings.lr})
        self.settings = settings

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def update(self, parameter, group):
        """Update a parameter that has a gradient."""
        parameter.mul_(1 - group["lr"] * self.decay)
        parameter.sub_(self.velocity(parameter) * group["lr"])

    decay = 0.1

    def velocity(self, parameter):
        """Return the sum of gradients."""
        state = self.state[parameter]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        return state["velocity"].mul_(0.9).add_(parameter.grad)


class Ascends(Momentum):
    def update(self, parameter, group):
        parameter.add_(self.velocity(parameter) * group["lr"])


class NeedsClosure(Momentum):
    def step(self, closure):
        closure()
        super().step()


class Replaces(Momentum):
    def update(self, parameter, group):
        parameter.data = parameter.data - self.velocity(parameter) * group["lr"]


class DecaysAtFullRate(Momentum):
    def update(self, parameter, group):
        parameter.mul_(1 - 0.01 * self.decay)
        parameter.sub_(self.velocity(parameter) * group["lr"])


class RateOfFirstGroup(Momentum):
    def update(self, parameter, group):
        super().update(parameter, self.param_groups[0])


class RateOfSettings(Momentum):
    def update(self, parameter, group):
        parameter.sub_(self.velocity(parameter) * self.settings.lr * group["lr"])


class AddsNoise(Momentum):
    def update(self, parameter, group):
        parameter.sub_((self.velocity(parameter) + 0.1 * torch.randn_like(parameter)) * group["lr"])


class FactorTwice(Momentum):
    def update(self, parameter, group):
        super().update(parameter, {"lr": group["lr"] * group["lr_factor"]})


class NeedsGradients(Momentum):
    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.update(parameter, group)


class DecaysWithoutGradient(Momentum):
    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * self.decay)
        super().step()


class BeginsWithFirstGradients(Momentum):
    """Keeps a sum for the parameters that have a gradient in the first step alone."""

    def step(self):
        if not self.state:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.state[parameter]["velocity"] = torch.zeros_like(parameter)
        super().step()

    def update(self, parameter, group):
        if parameter in self.state:
            super().update(parameter, group)


class CountsInNumbers(Momentum):
    def velocity(self, parameter):
        self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1
        return super().velocity(parameter)


class KeepsRows(Momentum):
    def velocity(self, parameter):
        self.state[parameter]["rows"] = parameter.grad.flatten(1).mean(1) if parameter.dim() > 1 else parameter.grad
        return super().velocity(parameter)


class TwoTensors(Momentum):
    def velocity(self, parameter):
        self.state[parameter].setdefault("first", parameter.detach().clone())
        return super().velocity(parameter)


class KeepsInItself(Momentum):
    def __init__(self, groups, settings):
        super().__init__(groups, settings)
        self.velocities = {}

    def velocity(self, parameter):
        before = self.velocities.setdefault(parameter, torch.zeros_like(parameter))
        super().velocity(parameter)
        return before.mul_(0.9).add_(parameter.grad)


class LooksAhead(Momentum):
    """Every third step goes halfway back to the weights three steps before, which it keeps in itself."""

    def __init__(self, groups, settings):
        super().__init__(groups, settings)
        self.steps = 0
        self.slow = {}
        for group in groups:
            self.slow |= {parameter: parameter.detach().clone() for parameter in group["params"]}

    @torch.no_grad()
    def step(self):
        super().step()
        self.steps += 1
        if self.steps % 3 == 0:
            for parameter, slow in self.slow.items():
                slow.lerp_(parameter, 0.5)
                parameter.copy_(slow)


class CountsInGroup(Momentum):
    def update(self, parameter, group):
        group["updates"] = group.get("updates", 0) + 1
        parameter.sub_(self.velocity(parameter) * group["lr"] / group["updates"])


class NormOfAll(Momentum):
    @torch.no_grad()
    def step(self):
        gradients = []
        for group in self.param_groups:
            gradients += [parameter.grad for parameter in group["params"] if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        for gradient in gradients:
            gradient.div_(norm)
        super().step()


class NeedsTwoGroups(Momentum):
    def __init__(self, groups, settings):
        self.dtype = groups[0]["params"][0].dtype
        super().__init__(groups, settings)


class ReadsWeights(Momentum):
    def __init__(self, groups, settings):
        self.size = float(groups[0]["params"][0].detach().norm())
        super().__init__(groups, settings)


BROKEN = [
    (Ascends, "against this gradient"),
    (NeedsClosure, "without a closure; TypeError"),
    (Replaces, "changes a weight in place"),
    (DecaysAtFullRate, "weight decay too"),
    (RateOfFirstGroup, "rate of the group"),
    (AddsNoise, "draws no random numbers"),
    (RateOfSettings, "a step reads no train.lr"),
    (FactorTwice, "in which the schedule and lr_factor are"),
    (NeedsGradients, "passes over weights whose `grad` is None"),
    (DecaysWithoutGradient, "does not decay either"),
    (BeginsWithFirstGradients, "first gradient after the first step"),
    (CountsInNumbers, 'the state of a weight is tensors .*"step" of .* is of type int'),
    (KeepsRows, 'the state of a weight is tensors .*"rows" of'),
    (TwoTensors, "state_tensors returns .* 2 of .*, not 1"),
    (KeepsInItself, "a resumed training run"),
    (LooksAhead, "a resumed training run"),
    (CountsInGroup, "a resumed training run"),
    (NormOfAll, 'parallel = "zero", a weight is updated without the others'),
    (NeedsTwoGroups, "a group may be empty; IndexError"),
    (ReadsWeights, "before its weights have values"),
]


class ScheduleFree(Momentum):
    """Keeps the weights of gradient descent, z, and evaluates near their average (Defazio et al. 2024).

    Without a step, z and the average give the weights up to rounding.
    """

    def update(self, parameter, group):
        state = self.state[parameter]
        if not state:
            state["z"] = parameter.detach().clone()
            state["total"] = torch.zeros(())
        z = state["z"]
        average = (parameter - 0.1 * z) / 0.9
        state["total"] += group["lr"] ** 2
        z.sub_(parameter.grad * group["lr"])
        if group["lr"]:
            average.lerp_(z, float(group["lr"] ** 2 / state["total"]))
        parameter.copy_(0.1 * z + 0.9 * average)


def test_weights_may_be_rounded_at_a_rate_of_0():
    with registered_optimizer("own", entry_of(ScheduleFree)):
        check_optimizer("own")


def entry_of(cls, *, capturable=False):
    """Return the entry of an optimizer that keeps one tensor for each weight."""

    def make(model, settings):
        return cls(groups_of(model), settings)

    return OptimizerEntry(make, lambda *_: 1, capturable=capturable)


@pytest.mark.parametrize(("cls", "word"), BROKEN)
def test_a_wrong_optimizer_breaks_the_contract(cls, word):
    with registered_optimizer("own", entry_of(cls)), pytest.raises(ContractError, match=word):
        check_optimizer("own")


class CountsForReplays(Momentum):
    """Divides by the number of the step, which a tensor counts."""

    def velocity(self, parameter):
        step = self.state[parameter].setdefault("step", torch.zeros((), device=parameter.device))
        step.add_(1)
        return super().velocity(parameter) / step


class CountsByReading(CountsForReplays):
    def velocity(self, parameter):
        return super().velocity(parameter) * min(1.0, self.state[parameter]["step"].item())


class CountsByMask(CountsForReplays):
    def velocity(self, parameter):
        velocity = super().velocity(parameter)
        return velocity / max(1, len(velocity[velocity.isnan()]))


class WritesTensorByMask(CountsForReplays):
    def velocity(self, parameter):
        velocity = super().velocity(parameter).clone()
        velocity[velocity.isnan()] = velocity.new_zeros(1)
        return velocity


class WritesNumberByMask(CountsForReplays):
    def velocity(self, parameter):
        velocity = super().velocity(parameter).clone()
        velocity[velocity.isnan()] = 0.0
        return velocity


class ReplacesState(Momentum):
    def velocity(self, parameter):
        state = self.state[parameter]
        state["velocity"] = 0.9 * state.get("velocity", 0.0) + parameter.grad
        return state["velocity"]


@pytest.mark.parametrize("cls", [Momentum, CountsForReplays, WritesNumberByMask])
def test_an_optimizer_from_outside_that_can_be_captured_keeps_the_contract(cls):
    with registered_optimizer("own", entry_of(cls, capturable=True)):
        check_optimizer("own")


@pytest.mark.parametrize(
    ("cls", "word"),
    [
        (CountsByReading, "reads the value of a tensor"),
        (CountsByMask, "reads the value of a tensor"),
        (WritesTensorByMask, "reads the value of a tensor"),
        (ReplacesState, "changed in place"),
    ],
)
def test_an_optimizer_that_cannot_be_captured_may_not_declare_it(cls, word):
    with registered_optimizer("own", entry_of(cls)):
        check_optimizer("own")
    with registered_optimizer("own", entry_of(cls, capturable=True)), pytest.raises(ContractError, match=word):
        check_optimizer("own")


def test_the_step_of_pytorchs_nadam_on_a_gpu_is_not_tried():
    def make(model, settings):
        return torch.optim.NAdam(groups_of(model), lr=settings.lr)

    entry = OptimizerEntry(make, lambda *_: 2, capturable=True)
    with registered_optimizer("own", entry):
        check_optimizer("own")


def of_groups(change):
    """Return the entry of `Momentum` with groups that a function changes in place, given the parameters."""

    def make(model, settings):
        groups = groups_of(model)
        change(groups, list(model.parameters()))
        return Momentum(groups, settings)

    return OptimizerEntry(make, lambda *_: 1)


def leave_out(groups, parameters):
    del groups[1]["params"][0]


def repeat(groups, parameters):
    groups[1]["params"].append(groups[1]["params"][0])


def add_a_copy(groups, parameters):
    groups[0]["params"].append(parameters[0].detach().clone())


def drop_factor(groups, parameters):
    del groups[1]["lr_factor"]


GROUPS = [
    (leave_out, r"hold each parameter .* 0 times"),
    (repeat, r"hold each parameter .* 2 times"),
    (add_a_copy, "1 other tensors"),
    (drop_factor, "made with parameter_group"),
]


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize(("change", "word"), GROUPS)
def test_groups_that_do_not_hold_each_parameter_once_break_the_contract(change, word):
    with registered_optimizer("own", of_groups(change)), pytest.raises(ContractError, match=word):
        check_optimizer("own")


def test_an_optimizer_that_needs_all_gradients_may_reject_a_part_of_the_model():
    def make(model, settings):
        if isinstance(model, ModelPart):
            raise ValueError("it needs the gradients of all parameters")
        return NormOfAll(groups_of(model), settings)

    with registered_optimizer("own", OptimizerEntry(make, lambda *_: 1)):
        check_optimizer("own")


def test_an_unknown_optimizer_and_a_setting_of_another_one_are_refused():
    with pytest.raises(UnknownNameError, match='unknown optimizer "adan"; did you mean'):
        check_optimizer("adan")
    with pytest.raises(UsageError, match="momentum"):
        check_optimizer("adam", momentum=0.9)
    with pytest.raises(UsageError, match='no key "momentun"; did you mean "momentum"'):
        check_optimizer("sgd", momentun=0.9)


def test_a_setting_may_be_a_list_as_in_a_recipe():
    check_optimizer("adam", betas=[0.9, 0.95])
