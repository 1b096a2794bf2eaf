"""Optimizers against their update rules and against PyTorch's, from parameter groups to resumed runs."""

import math

import pytest
import torch
from torch import nn

from tests.core.builders import V, model_settings, rnn_settings
from tests.core.training.runs import assert_equal, losses_of, new_training, reports_of, run, weights
from tests.extensions import registered_optimizer
from txlcli.config import traits
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import new_model
from txlcli.core.measures.forecast import state_bytes
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import optimizer_tensors
from txlcli.core.training.distributed import SINGLE_PROCESS
from txlcli.core.training.optimizer import OPTIMIZERS, OptimizerEntry, make_optimizer, parameter_group
from txlcli.core.training.parallel import DataParallel
from txlcli.core.training.schedule import scheduled_lr
from txlcli.core.training.step import Step
from txlcli.errors import RecipeError, TrainingError

CPU = torch.device("cpu")
MODELS = {
    "transformer": model_settings(cutoffs=(5, 11), div_val=2, tie_biases=False),
    "lstm": rnn_settings("lstm"),
    "qrnn": rnn_settings("qrnn"),
}


def train_settings(**changed):
    return TrainSettings(**{"seg_len": 5, "mem_len": 7, "batch_size": 2, "max_steps": 100, "lr": 0.8, **changed})


def updates(gradients, **changed):
    """Return a weight that starts at 1 after each of these gradients, at the rate 0.8."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    optimizer = make_optimizer(module, train_settings(**changed))
    given = []
    for gradient in gradients:
        module.weight.grad = torch.full((1, 1), float(gradient))
        optimizer.step()
        given.append(module.weight.item())
    return given


SECOND = 0.8 * (-0.21 / 0.19) / math.sqrt(0.009999 / (1 - 0.999**2))
BY_HAND = [
    ({"optimizer": "sgd"}, [1, 0.5], [0.2, -0.2], 1e-6),
    # Velocities 1 and 0.5 x 1 + 1 = 1.5.
    ({"optimizer": "sgd", "momentum": 0.5}, [1, 1], [0.2, -1.0], 1e-6),
    # Weight decay is added to the gradient: 0.25 + 0.5 x 1 = 0.75.
    ({"optimizer": "sgd", "weight_decay": 0.5}, [0.25], [0.4], 1e-6),
    # m = 0.1, v = 0.001, both corrected to 1; then m = 0.09 - 0.3 over 1 - 0.81, v = 0.000999 + 0.009 over 1 - 0.999^2.
    ({"optimizer": "adam"}, [1, -3], [0.2, 0.2 - SECOND], 1e-5),
    # Decoupled; the update of Adam's first step is 1 for every gradient: 1 - 0.8 x 0.5 x 1 - 0.8.
    ({"optimizer": "adamw", "weight_decay": 0.5}, [0.25], [-0.2], 1e-6),
]


@pytest.mark.parametrize(("changed", "gradients", "expected", "rel"), BY_HAND)
def test_the_first_steps_by_hand(changed, gradients, expected, rel):
    assert updates(gradients, **changed) == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_embedding_has_its_own_rate_and_gains_and_biases_do_not_decay(optimizer):
    settings = train_settings(optimizer=optimizer, weight_decay=0.5, embedding_lr=2.0, decay_norms=False)
    for changed in ({"position": "t5", "tie_embeddings": False}, {}):
        model, kinds = new_model(model_settings(**changed), V, seed=1, device=CPU), {}
        for group in make_optimizer(model, settings).param_groups:
            kinds |= {id(parameter): (group["lr_factor"], group["weight_decay"]) for parameter in group["params"]}
        for name, parameter in model.named_parameters():
            factor, decay = (
                2.0 if name.startswith("embedding.") else 1.0,
                0.0 if "norm." in name or "bias" in name else 0.5,
            )
            assert kinds[id(parameter)] == (factor, decay), name


def test_muon_rejects_a_model_without_matrices_in_its_layers():
    with pytest.raises(RecipeError, match=r'^train\.optimizer = "muon" .*: it is for matrices, .*"adamw"$') as caught:
        make_optimizer(nn.Linear(2, 3), train_settings(optimizer="muon"))
    assert caught.value.exit_code == 2


def take_steps(model, step, count=3):
    """Call `step` after random gradients of all parameters; return the parameters by name."""
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        step()
    return dict(model.named_parameters())


def with_tensor_rates(optimizer):
    """Let an optimizer read its rates from tensors, as captured steps do: it then treats all weights together."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
    return optimizer


def by_optimizer_step(*, together=False, **changed):
    """Return the parameters after clipped steps of a double model with the schedule of `train_settings`."""
    settings = train_settings(lr=0.01, clip=0.5, schedule="constant", **changed)
    model = new_model(model_settings(), V, seed=1, device=CPU).double()
    train_step = Step(DataParallel(model, settings, SINGLE_PROCESS))
    if together:
        with_tensor_rates(train_step.optimizer)

    def step():
        train_step.norm()
        train_step.update(lambda factor: 0.01 * factor)

    return take_steps(model, step)


def by_torch(make_optimizers):
    """Return the parameters after the same steps with PyTorch's own optimizers."""
    model = new_model(model_settings(), V, seed=1, device=CPU).double()
    optimizers = make_optimizers(model)

    def step():
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for optimizer in optimizers:
            optimizer.step()

    return take_steps(model, step)


def test_adamw_is_pytorchs():
    expected = by_torch(lambda model: [torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.3)])
    for name, parameter in by_optimizer_step(optimizer="adamw", weight_decay=0.3).items():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-12, atol=1e-14)


def lamb_by_loop(weight, gradients, *, lr, weight_decay):
    """Return the numbers of one weight after steps of LAMB, number by number, as You et al. and NVIDIA state it."""
    mean, square = [0.0] * len(weight), [0.0] * len(weight)
    for gradient in gradients:
        mean = [0.9 * m + 0.1 * g for m, g in zip(mean, gradient, strict=True)]
        square = [0.999 * v + 0.001 * g * g for v, g in zip(square, gradient, strict=True)]
        update = [m / (math.sqrt(v) + 1e-6) for m, v in zip(mean, square, strict=True)]
        update = [u + weight_decay * w for u, w in zip(update, weight, strict=True)]
        weight_norm, update_norm = math.hypot(*weight), math.hypot(*update)
        ratio = min(weight_norm, 10.0) / (update_norm + 1e-6) if weight_norm > 0 and update_norm > 0 else 1.0
        weight = [w - lr * ratio * u for w, u in zip(weight, update, strict=True)]
    return weight


@pytest.mark.parametrize("scale", [0.0, 0.3, 40.0], ids=["zero", "norm below 10", "norm above 10"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
@pytest.mark.parametrize("prepare", [lambda optimizer: optimizer, with_tensor_rates], ids=["alone", "together"])
def test_lamb_equals_a_loop_over_numbers_in_float64(scale, weight_decay, prepare):
    generator = torch.Generator().manual_seed(3)
    module = nn.Linear(5, 3).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    given = {
        name: [torch.randn(one.shape, generator=generator, dtype=torch.float64) for _ in range(4)]
        for name, one in module.named_parameters()
    }
    expected = {
        name: lamb_by_loop(
            one.flatten().tolist(), [g.flatten().tolist() for g in given[name]], lr=0.8, weight_decay=weight_decay
        )
        for name, one in module.named_parameters()
    }
    optimizer = prepare(make_optimizer(module, train_settings(optimizer="lamb", weight_decay=weight_decay, lr=0.8)))
    for number in range(4):
        for name, parameter in module.named_parameters():
            parameter.grad = given[name][number].clone()
        optimizer.step()
    for name, parameter in module.named_parameters():
        assert parameter.flatten().tolist() == pytest.approx(expected[name], rel=1e-12, abs=1e-14)


def test_lamb_trains_a_parameter_without_a_gradient_no_step():
    module = nn.Linear(2, 3)
    before = module.bias.clone()
    optimizer = make_optimizer(module, train_settings(optimizer="lamb"))
    module.weight.grad = torch.ones(3, 2)
    optimizer.step()
    assert torch.equal(module.bias, before)


@pytest.mark.parametrize(("momentum", "expected_momentum", "together"), [(0.0, 0.95, False), (0.8, 0.8, True)])
def test_muon_is_pytorchs_with_adamw_for_the_rest(momentum, expected_momentum, together):
    def make_optimizers(model):
        named = list(model.named_parameters())
        matrices = [one for name, one in named if name.startswith(("layers.", "encoding.w_k")) and one.dim() == 2]
        others = [one for name, one in named if not any(one is matrix for matrix in matrices)]
        decay = {"lr": 0.01, "weight_decay": 0.3}
        muon = torch.optim.Muon(matrices, momentum=expected_momentum, adjust_lr_fn="match_rms_adamw", **decay)
        return muon, torch.optim.AdamW(others, **decay)

    expected, changed = by_torch(make_optimizers), {"optimizer": "muon", "weight_decay": 0.3, "momentum": momentum}
    exact = {"rtol": 0, "atol": 2e-4} if together else {"rtol": 1e-12, "atol": 1e-14}  # bf16, summed otherwise
    for name, parameter in by_optimizer_step(**changed, together=together).items():
        torch.testing.assert_close(parameter, expected[name], **exact)


def test_in_fp16_a_skipped_step_changes_neither_weights_nor_state_of_muon(tmp_path):
    training = new_training(tmp_path, optimizer="muon", precision="fp16", valid=False)
    training.model.layers[0].attention.w_q.weight.register_hook(lambda gradient: gradient * math.inf)
    before = weights(training)
    training.update()
    assert all(torch.equal(weight, before[name]) for name, weight in weights(training).items())
    assert not any(value.any() for state in training.parallel.optimizer.state.values() for value in state.values())


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": "adam"},
        {"optimizer": "adamw"},
        {"optimizer": "lamb"},
        {"optimizer": "muon"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_stated_state_is_what_an_optimizer_keeps(model, changed):
    settings, model = train_settings(**changed), new_model(model, V, seed=1, device=CPU)
    optimizer = make_optimizer(model, settings)
    take_steps(model, optimizer.step, count=1)
    kept = optimizer_tensors(dict(model.named_parameters()), optimizer)
    forecast = state_bytes(model.settings, V, settings).optimizer
    assert forecast == sum(one.nbytes for name, one in kept.items() if not name.endswith(".step"))


class SignDescent(torch.optim.Optimizer):
    """Steps in the direction of the sign of the mean gradient, as an optimizer of another package would."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 0.1)
                parameter.sub_(mean.sign(), alpha=group["lr"])


def make_sign_descent(model, settings):
    named = list(model.named_parameters())
    return SignDescent(
        [
            parameter_group("embedding", [one for name, one in named if name.startswith("embedding.")], lr_factor=0.25),
            parameter_group("others", [one for name, one in named if not name.startswith("embedding.")]),
        ]
    )


@pytest.fixture
def sign_descent():
    """An optimizer that another package registers."""
    with registered_optimizer("sign", OptimizerEntry(make_sign_descent, lambda *_: 1)):
        yield {"optimizer": "sign", "lr": 0.001, "schedule": "cosine", "warmup_steps": 2, "clip": None}


def test_an_optimizer_from_outside_trains_and_resumes(tmp_path, sign_descent):
    whole = new_training(tmp_path / "whole", max_steps=6, valid=False, **sign_descent)
    reports = run(whole)
    assert reports[3].loss_nats < reports[0].loss_nats  # the same segment in the next epoch
    run(new_training(tmp_path / "parts", max_steps=6, valid=False, **sign_descent), until=3)
    resumed = new_training(tmp_path / "parts", max_steps=6, valid=False, **sign_descent)
    saved = checkpoint.load(resumed.saver.last_path)
    resumed.model.load_state_dict(saved.group("model"))
    resumed.restore(saved)
    assert losses_of(run(resumed)) == losses_of(reports[3:])
    assert_equal(weights(resumed), weights(whole))
    forecast = state_bytes(whole.model.settings, V, whole.settings).optimizer
    assert forecast == sum(4 * one.numel() for one in whole.model.parameters())


def test_the_rate_of_a_group_is_its_factor_of_the_scheduled_rate(tmp_path, sign_descent):
    training = new_training(tmp_path, valid=False, **sign_descent)
    before = weights(training)
    for report in reports_of(training):
        rate = scheduled_lr(training.settings, report.step)
        assert report.lr == rate
        after = weights(training)
        for name, factor in (("embedding.tables.0", 0.25), ("softmax.biases.0", 1.0)):
            assert (after[name] - before[name]).abs().max().item() == pytest.approx(factor * rate, rel=1e-3)
        before = after


FAULTY = {
    "it has no group for weight, bias": lambda _: SignDescent([parameter_group("none", [torch.zeros(1)])]),
    "it has no group for bias": lambda model: SignDescent([parameter_group("weight", [model.weight])]),
    "a group without lr_factor": lambda model: SignDescent(model.parameters()),
    "Muon only supports 2D parameters": lambda model: torch.optim.Muon([parameter_group("all", model.parameters())]),
}


@pytest.mark.parametrize("reason", FAULTY)
def test_an_optimizer_that_cannot_take_a_parameter_is_rejected(reason):
    entry = OptimizerEntry(lambda model, _: FAULTY[reason](model), lambda *_: 1)
    with registered_optimizer("faulty", entry), pytest.raises(RecipeError) as refused:
        make_optimizer(nn.Linear(2, 3), train_settings(optimizer="faulty"))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (1, "as int; a checkpoint holds tensors only"),
        (
            torch.ones(5),
            "in the shape (5,); a checkpoint holds state in the shape of the weight, (3, 2), or one number",
        ),
    ],
)
def test_state_that_a_checkpoint_cannot_hold_is_rejected(kept, reason):
    class Keeping(SignDescent):
        def step(self, closure=None):
            super().step()
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["kept"] = kept

    module = nn.Linear(2, 3)
    optimizer = Keeping([parameter_group("all", module.parameters())])
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(TrainingError) as refused:
        optimizer_tensors(dict(module.named_parameters()), optimizer)
    assert str(refused.value) == f'the optimizer keeps "kept" of weight {reason}'


def test_both_tables_of_optimizers_have_the_same_names():
    assert OPTIMIZERS.keys() == traits.OPTIMIZERS.keys()
