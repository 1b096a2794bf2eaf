"""Checks of an architecture, an encoding or an optimizer, of txl or of your own, as scikit-learn's `check_estimator`.

A check builds a small model with random weights, trains it, saves it and reads with it. It raises a `ContractError` for
the first rule of `docs/extending.md` that the class breaks.
"""

from txlcli.config.model_settings import MODELS
from txlcli.config.traits import ENCODING_TRAITS, OPTIMIZERS
from txlcli.errors import UnknownNameError
from txlcli.testing.architecture import ArchitectureCheck
from txlcli.testing.encoding import EncodingCheck
from txlcli.testing.optimizer import OptimizerCheck
from txlcli.testing.rules import ContractError
from txlcli.testing.samples import SMALL, small_settings, small_train_settings

__all__ = ["ContractError", "check_architecture", "check_encoding", "check_optimizer"]


def check_architecture(name: str, **settings: object) -> None:
    """Check a registered architecture.

    Args:
        name: the value of `model.arch`.
        settings: of the small model that is checked. Those without a default must be given, unless txl has them, too.

    Raises:
        ContractError: a rule is broken, or the class raises an error, which is the cause.
        UnknownNameError: no such architecture is registered.
        UsageError: a setting is wrong, or asks for dropout.
    """
    if name not in MODELS:
        raise UnknownNameError("architecture", name, MODELS)
    ArchitectureCheck(name, small_settings(name, settings), settings).run()


def check_encoding(name: str, **settings: object) -> None:
    """Check a registered encoding in the model of the paper; see `check_architecture`."""
    if name not in ENCODING_TRAITS:
        raise UnknownNameError("encoding", name, ENCODING_TRAITS)
    given = {"position": name, **settings}
    if ENCODING_TRAITS[name].learned_vectors:
        given.setdefault("n_positions", SMALL["n_positions"])
    EncodingCheck(name, small_settings("transformer", given), settings).run()


def check_optimizer(name: str, **settings: object) -> None:
    """Check a registered optimizer on the weights of a small model.

    Args:
        name: the value of `train.optimizer`.
        settings: of [train], such as `momentum`; by default lr is 0.01, and weight_decay 0.1 if the optimizer has it.

    Raises:
        ContractError: a rule is broken, or the optimizer raises an error, which is the cause.
        UnknownNameError: no such optimizer is registered.
        UsageError: a setting is wrong, or belongs to other optimizers.
    """
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS)
    given = {"optimizer": name, **settings}
    if "weight_decay" in OPTIMIZERS[name]:
        given.setdefault("weight_decay", 0.1)
    OptimizerCheck(name, small_train_settings(**given), settings).run()
