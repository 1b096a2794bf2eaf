"""Optimizers by name, and the parameter groups that each makes of a model.

A factory divides the parameters into named groups. The peak learning rate of a group is train.lr times the group's
factor. To add an optimizer, call `register_optimizer`.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from txlcli.config import traits
from txlcli.config.model_settings import ModelSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import make_model
from txlcli.core.kernels.private import foreach, tensors_without_data, without_capture_warning
from txlcli.core.kernels.updates import FlatParameters
from txlcli.core.training.large_updates import UpdateLarge
from txlcli.errors import RecipeError, reason_of, shortened

MUON_MOMENTUM = 0.95
"""Momentum of Muon where train.momentum is 0."""
LAMB_EPS = 1e-6
LAMB_MAX_WEIGHT_NORM = 10.0
"""Largest norm of a weight that scales its update."""
ROW = 64
"""Numbers that LAMB scales together on a GPU; each tensor begins with a new row of them."""


@dataclass(frozen=True)
class OptimizerEntry:
    """An optimizer that train.optimizer can name; `txlcli.testing.check_optimizer` checks it."""

    make: Callable[[nn.Module, TrainSettings], Optimizer]
    """Make the optimizer of a model: its groups come from `parameter_group` and hold all parameters, its step needs no
    closure, and its state is tensors. A ValueError says that it cannot train the model.

    With train.parallel = "zero" the model is a `ModelPart`, and a group may be empty."""
    state_tensors: Callable[[str, torch.Size, TrainSettings], int]
    """Return the number of tensors of a parameter's shape that the optimizer keeps, given the parameter's name and
    shape. Forecasts of memory use it."""
    capturable: bool = False
    """True if a CUDA graph can capture its step, which then waits for nothing and reads learning rates from tensors."""
    update_large: UpdateLarge | None = None
    """Update parameters as its step does, in one pass over memory; for optimizers that can be captured."""


class ModelPart(nn.Module):
    """The parameters of a model that one process updates, under their names in the model."""

    def __init__(self, own: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self._own = own

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters by name."""
        yield from self._own.items()


def parameter_group(name: str, parameters: Iterable[Tensor], *, lr_factor: float = 1.0) -> dict[str, Any]:
    """Return a parameter group whose peak learning rate is `lr_factor` times train.lr."""
    return {"name": name, "params": list(parameters), "lr_factor": lr_factor}


def parameter_groups(model: nn.Module, settings: TrainSettings) -> list[dict[str, Any]]:
    """Return groups of the parameters of a model for train.embedding_lr and train.decay_norms.

    The groups depend on the settings alone; in a part of a model, some may be empty.
    """
    groups = dict[tuple[float, bool], dict[str, Any]]()  # by the factor of the rate, and by decay
    for factor in (1.0, settings.embedding_lr):
        groups[factor, True] = parameter_group(f"lr x {factor:g}", [], lr_factor=factor)
        if not settings.decay_norms:
            without_decay = parameter_group(f"lr x {factor:g}, no decay", [], lr_factor=factor)
            groups[factor, False] = {**without_decay, "weight_decay": 0.0}
    for name, parameter in model.named_parameters():
        factor = settings.embedding_lr if name.startswith("embedding.") else 1.0
        is_matrix = parameter.dim() > 1 and not name.endswith(("_bias", "_biases"))
        groups[factor, is_matrix or settings.decay_norms]["params"].append(parameter)
    return list(groups.values())


def make_optimizer(model: nn.Module, settings: TrainSettings) -> Optimizer:
    """Make the optimizer that train.optimizer names."""
    try:
        optimizer = OPTIMIZERS[settings.optimizer].make(model, settings)
        grouped = set(parameters_of(optimizer))
        missing = [name for name, parameter in model.named_parameters() if parameter not in grouped]
        if missing:
            raise ValueError(f"it has no group for {shortened(', '.join(missing))}")
        if any("lr_factor" not in group for group in optimizer.param_groups):
            raise ValueError("it has a group without lr_factor; make all groups with parameter_group")
    except ValueError as error:
        raise RecipeError(
            f'train.optimizer = "{settings.optimizer}" cannot train this model: {reason_of(error)}; use another, such '
            'as "adamw"',
            setting="train.optimizer",
        ) from error
    return optimizer


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of all groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


def set_rates(optimizer: Optimizer, rate_of: Callable[[float], float]) -> None:
    """Set the learning rate of each group, given a function of its factor.

    A rate that is a tensor, which a CUDA graph reads, is changed in place.
    """
    for group in optimizer.param_groups:
        rate = rate_of(group["lr_factor"])
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def check_trainable(model: ModelSettings, vocab_size: int, settings: TrainSettings) -> None:
    """Reject what `make_optimizer` rejects; nothing is allocated."""
    with tensors_without_data():
        make_optimizer(make_model(model, vocab_size), settings)


class Lamb(Optimizer):
    """LAMB (You et al. 2020) in NVIDIA's variant: without bias correction, with the norm of a weight limited to 10.

    The update of a parameter w is Adam's, u = m / (sqrt(v) + eps) + weight_decay * w, scaled to the norm of w:
    w -= lr * min(|w|, 10) / (|u| + eps) * u. If |w| or |u| is 0, u is not scaled. The norms stay on the device.

    A step overwrites the gradients: their memory holds the updates. In fp16, torch.amp.GradScaler waits for the device
    at each step to decide whether to skip it.
    """

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        defaults = {"lr": settings.lr, "weight_decay": settings.weight_decay, "betas": settings.betas}
        super().__init__(parameter_groups(model, settings), defaults)
        self._owners: dict[tuple[int, ...], Tensor] = {}  # by the rows of each weight: the weight of each row
        _allocate(self, "exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; closures are not supported."""
        for group in self.param_groups:
            weights = [parameter for parameter in group["params"] if parameter.grad is not None]
            if weights and _launches_kernels(group):
                self._update_all(weights, group)
            else:  # a tensor that fits into the cache is read again from there
                for weight in weights:
                    self._update(weight, weight.grad, group)

    def _update_all(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Do what `_update` does in a few kernels for all weights; a rate that is a tensor may be on the device."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        means = [self.state[weight]["exp_avg"] for weight in weights]
        squares = [self.state[weight]["exp_avg_sq"] for weight in weights]
        beta_1, beta_2 = group["betas"]
        foreach.mul_(means, beta_1)
        foreach.add_(means, gradients, alpha=1 - beta_1)
        foreach.mul_(squares, beta_2)
        foreach.addcmul_(squares, gradients, gradients, value=1 - beta_2)
        counts = tuple(-(-weight.numel() // ROW) for weight in weights)
        rows = weights[0].new_empty(sum(counts), ROW)
        updates = []
        for part, weight in zip(rows.split(counts), weights, strict=True):
            updates.append(part.flatten()[: weight.numel()].view_as(weight))
        foreach.copy_(updates, squares)
        rows.sqrt_().add_(LAMB_EPS).reciprocal_()
        foreach.mul_(updates, means)
        if group["weight_decay"]:
            foreach.add_(updates, weights, alpha=group["weight_decay"])
        weight_norms = torch.stack(foreach.norm(weights))
        update_norms = torch.stack(foreach.norm(updates))
        ratios = weight_norms.clamp(max=LAMB_MAX_WEIGHT_NORM) / (update_norms + LAMB_EPS)
        ratios = torch.where((weight_norms > 0) & (update_norms > 0), ratios, 1.0) * group["lr"]
        rows.mul_(ratios[self._owners_of_rows(weights, counts), None])
        foreach.sub_(weights, updates)

    def _owners_of_rows(self, weights: list[Tensor], counts: tuple[int, ...]) -> Tensor:
        """Return the number of the weight that each row belongs to, given the rows of each weight."""
        if counts not in self._owners:
            numbers = []
            for number, count in enumerate(counts):
                numbers.append(weights[0].new_full((count,), number, dtype=torch.long))
            self._owners[counts] = torch.cat(numbers)
        return self._owners[counts]

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        mean = self.state[weight]["exp_avg"]
        mean_square = self.state[weight]["exp_avg_sq"]
        beta_1, beta_2 = group["betas"]
        mean.mul_(beta_1).add_(gradient, alpha=1 - beta_1)
        mean_square.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        update = torch.sqrt(mean_square, out=gradient).add_(LAMB_EPS)
        torch.div(mean, update, out=update)
        if group["weight_decay"]:
            update.add_(weight, alpha=group["weight_decay"])
        weight_norm = weight.norm()
        update_norm = update.norm()
        ratio = weight_norm.clamp(max=LAMB_MAX_WEIGHT_NORM) / (update_norm + LAMB_EPS)
        ratio = torch.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)
        weight.addcmul_(update, ratio, value=-group["lr"])


def _update_large_by_lamb(flat: FlatParameters, gradients: Tensor, factor: Tensor, group: dict[str, Any]) -> None:
    """Do what `Lamb` does, by kernels of Triton."""
    from txlcli.core.kernels import updates_triton  # noqa: PLC0415 - PyTorch for CPUs has no Triton

    decay = group["weight_decay"]
    moments = flat.means, flat.squares
    totals = updates_triton.lamb_moments(
        flat.weights, gradients, *moments, flat.chunks, flat.firsts, factor, list(group["betas"]), LAMB_EPS, decay
    )
    updates_triton.lamb(
        flat.weights, *moments, flat.copies, flat.chunks, totals, group["lr"], LAMB_EPS, decay, LAMB_MAX_WEIGHT_NORM
    )


def _launches_kernels(group: dict[str, Any]) -> bool:
    """Return True if a step should treat the parameters of a group together: on a GPU, and in a captured step."""
    return isinstance(group["lr"], Tensor) or any(parameter.is_cuda for parameter in group["params"])


def _make_sgd(model: nn.Module, settings: TrainSettings) -> Optimizer:
    sgd = torch.optim.SGD(
        parameter_groups(model, settings),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    if settings.momentum:  # the fused kernel fails where a weight has its first gradient after the first step
        _allocate(sgd, "momentum_buffer")
    return sgd


def _make_adam(cls: type[torch.optim.Adam], model: nn.Module, settings: TrainSettings) -> Optimizer:
    """Adam with an L2 penalty in the gradient, or AdamW with decoupled weight decay (Loshchilov and Hutter 2019)."""
    beta_1, beta_2 = settings.betas
    adam = cls(
        parameter_groups(model, settings),
        lr=settings.lr,
        betas=(beta_1, beta_2),
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=any(parameter.is_cuda for parameter in model.parameters()),
    )
    without_capture_warning(adam)
    _allocate(adam, "exp_avg", "exp_avg_sq")
    for parameter, state in adam.state.items():
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return adam


def _update_large_by_adam(flat: FlatParameters, gradients: Tensor, factor: Tensor, group: dict[str, Any]) -> None:
    """Do what an optimizer of `_make_adam` does, by a kernel of Triton."""
    from txlcli.core.kernels import updates_triton  # noqa: PLC0415 - PyTorch for CPUs has no Triton

    assert flat.steps is not None
    updates_triton.adam(
        flat.weights, gradients, flat.means, flat.squares, flat.copies, flat.chunks, flat.steps, factor, group["lr"],
        list(group["betas"]), group["eps"], group["weight_decay"], group["decoupled_weight_decay"],
    )  # fmt: skip


def _allocate(optimizer: Optimizer, *names: str) -> None:
    """Allocate zeros of the shape of each parameter before the first step.

    The first step would allocate them in the gaps that a backward pass leaves in memory. This way it leaves none, and a
    model that is too large fails before it reads a text.
    """
    for parameter in parameters_of(optimizer):
        optimizer.state[parameter] = {name: torch.zeros_like(parameter) for name in names}


class MuonWithAdamW(Optimizer):
    """PyTorch's Muon for matrices, which on a GPU treats all matrices of a shape at once, and AdamW for the rest.

    In fp16, torch.amp.GradScaler waits for the device at each step to decide whether to skip it.
    """

    def __init__(self, muon: torch.optim.Muon, adamw: Optimizer) -> None:
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._muon = muon
        self._adamw = adamw
        self.state: defaultdict[Any, Any] = defaultdict(dict, {**muon.state, **adamw.state})
        muon.state = self.state
        adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; closures are not supported."""
        self._adamw.step()
        (group,) = self._muon.param_groups
        if not _launches_kernels(group):
            self._muon.step()
            return
        by_shape = defaultdict[torch.Size, list[Tensor]](list)
        for matrix in group["params"]:
            if matrix.grad is not None:
                by_shape[matrix.shape].append(matrix)
        for matrices in by_shape.values():
            self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        buffers = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        foreach.lerp_(buffers, gradients, 1 - group["momentum"])
        updates = torch.stack(foreach.lerp(gradients, buffers, group["momentum"]))  # Nesterov's
        updates = orthogonalized(updates, group["ns_coefficients"], steps=group["ns_steps"], eps=group["eps"])
        rate = 0.2 * math.sqrt(max(matrices[0].shape)) * group["lr"]  # "match_rms_adamw"
        foreach.mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        foreach.sub_(matrices, list((updates * rate).unbind()))


def orthogonalized(matrices: Tensor, coefficients: tuple[float, float, float], *, steps: int, eps: float) -> Tensor:
    """Return matrices (n, rows, columns) whose singular values are close to 1, by Newton-Schulz iterations in bf16."""
    a, b, c = coefficients
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if is_tall else matrices).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


def _make_muon(model: nn.Module, settings: TrainSettings) -> Optimizer:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for all other parameters.

    Both have the same learning rate and decoupled weight decay: the update of a matrix is scaled to the root mean
    square of AdamW's (`match_rms_adamw`, Liu et al. 2025). Muon has Nesterov momentum.
    """
    matrices = list[nn.Parameter]()
    others = dict[str, nn.Parameter]()
    for name, parameter in model.named_parameters():
        if _is_layer_matrix(name, parameter.shape):
            matrices.append(parameter)
        else:
            others[name] = parameter
    if not matrices and not isinstance(model, ModelPart):
        raise ValueError("it is for matrices, and the model has none in its layers")
    muon = torch.optim.Muon(
        [parameter_group("matrices of the layers", matrices)],
        lr=settings.lr,
        momentum=settings.momentum or MUON_MOMENTUM,
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    _allocate(muon, "momentum_buffer")
    return MuonWithAdamW(muon, _make_adam(torch.optim.AdamW, ModelPart(others), settings))


def _is_layer_matrix(name: str, shape: torch.Size) -> bool:
    """Return True for the weights of attention (W_kR, too), feed-forward and recurrent layers."""
    return name.startswith(("layers.", "encoding.w_k_position.")) and len(shape) == 2


def _two_states(name: str, shape: torch.Size, settings: TrainSettings) -> int:
    return 2


def _sgd_states(name: str, shape: torch.Size, settings: TrainSettings) -> int:
    return 1 if settings.momentum else 0


def _muon_states(name: str, shape: torch.Size, settings: TrainSettings) -> int:
    return 1 if _is_layer_matrix(name, shape) else 2


_make_plain_adam = functools.partial(_make_adam, torch.optim.Adam)
_make_adamw = functools.partial(_make_adam, torch.optim.AdamW)

OPTIMIZERS = {
    "adam": OptimizerEntry(_make_plain_adam, _two_states, capturable=True, update_large=_update_large_by_adam),
    "adamw": OptimizerEntry(_make_adamw, _two_states, capturable=True, update_large=_update_large_by_adam),
    "lamb": OptimizerEntry(Lamb, _two_states, capturable=True, update_large=_update_large_by_lamb),
    "muon": OptimizerEntry(_make_muon, _muon_states, capturable=True),
    "sgd": OptimizerEntry(_make_sgd, _sgd_states, capturable=True),
}
"""Optimizers by the name that train.optimizer gives them."""


def register_optimizer(name: str, entry: OptimizerEntry, settings: frozenset[str] = frozenset()) -> None:
    """Add an optimizer, so that train.optimizer accepts its name; `settings` are the keys of `config.traits`."""
    traits.register(traits.OPTIMIZERS, name, settings)
    OPTIMIZERS[name] = entry
