"""Checks of an architecture or an encoding, of txl or of your own, as scikit-learn's `check_estimator` checks a class.

A check builds a small model with random weights, trains it, saves it and reads with it. It raises a `ContractError` for
the first rule of `docs/extending.md` that the class breaks.
"""

from txlcli.config.model_settings import MODELS
from txlcli.config.traits import ENCODING_TRAITS
from txlcli.errors import UnknownNameError
from txlcli.testing.architecture import ArchitectureCheck
from txlcli.testing.encoding import EncodingCheck
from txlcli.testing.rules import ContractError
from txlcli.testing.samples import SMALL, small_settings

__all__ = ["ContractError", "check_architecture", "check_encoding"]


def check_architecture(name: str, **settings: object) -> None:
    """Check a registered architecture.

    Args:
        name: the value of `model.arch`.
        settings: of the small model that is checked. Those without a default must be given, unless txl has them, too.

    Raises:
        ContractError: a rule is broken, or the class raises an error, which is the cause.
        UnknownNameError: no such architecture is registered.
        UsageError: a setting asks for dropout.
    """
    if name not in MODELS:
        raise UnknownNameError("architecture", name, MODELS)
    ArchitectureCheck(name, small_settings(name, settings)).run()


def check_encoding(name: str, **settings: object) -> None:
    """Check a registered encoding in the model of the paper; see `check_architecture`."""
    if name not in ENCODING_TRAITS:
        raise UnknownNameError("encoding", name, ENCODING_TRAITS)
    given = {"position": name, **settings}
    if ENCODING_TRAITS[name].learned_vectors:
        given.setdefault("n_positions", SMALL["n_positions"])
    EncodingCheck(name, small_settings("transformer", given)).run()
