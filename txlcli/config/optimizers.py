"""Traits of the optimizers, without torch: which settings apply to each."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OptimizerTraits:
    """Properties of one optimizer."""

    settings: frozenset[str] = frozenset()
    """Keys of [train] that apply to it, of those that do not apply to every optimizer."""


OF_GROUPS = frozenset({"weight_decay", "embedding_lr", "decay_norms"})
"""Settings of optimizers that divide the parameters into groups by `core.training.optimizer.parameter_groups`."""
OPTIMIZERS: dict[str, OptimizerTraits] = {
    "adam": OptimizerTraits(settings=OF_GROUPS | {"betas"}),
    "adamw": OptimizerTraits(settings=OF_GROUPS | {"betas"}),
    "lamb": OptimizerTraits(settings=OF_GROUPS | {"betas"}),
    "muon": OptimizerTraits(settings=OF_GROUPS | {"betas", "momentum"}),
    "sgd": OptimizerTraits(settings=OF_GROUPS | {"momentum"}),
}
"""Traits for each value of `train.optimizer`."""


def register_optimizer(name: str, traits: OptimizerTraits) -> None:
    """Add an optimizer, so that `train.optimizer` accepts its name."""
    if name in OPTIMIZERS:
        raise ValueError(f'the optimizer "{name}" is registered already')
    OPTIMIZERS[name] = traits
