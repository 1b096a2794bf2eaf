"""Traits of the optimizers, without torch: which settings apply to each."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OptimizerTraits:
    """Properties of one optimizer."""

    settings: frozenset[str] = frozenset()
    """Keys of [train] that apply to it, of those that do not apply to every optimizer."""


OPTIMIZERS: dict[str, OptimizerTraits] = {
    "adam": OptimizerTraits(settings=frozenset({"betas", "weight_decay"})),
    "adamw": OptimizerTraits(settings=frozenset({"betas", "weight_decay"})),
    "lamb": OptimizerTraits(settings=frozenset({"betas", "weight_decay"})),
    "muon": OptimizerTraits(settings=frozenset({"betas", "momentum", "weight_decay"})),
    "sgd": OptimizerTraits(settings=frozenset({"momentum", "weight_decay"})),
}
"""Traits for each value of `train.optimizer`."""


def register_optimizer(name: str, traits: OptimizerTraits) -> None:
    """Add an optimizer, so that `train.optimizer` accepts its name."""
    if name in OPTIMIZERS:
        raise ValueError(f'the optimizer "{name}" is registered already')
    OPTIMIZERS[name] = traits
