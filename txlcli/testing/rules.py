"""The rules of a check: each is tried, and the one that is broken is named."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from txlcli.config.recipe import format_value
from txlcli.errors import TxlError, reason_of


class ContractError(TxlError):
    """A class breaks a rule that training or readers rely on."""

    def __init__(self, name: str, rule: str, found: str, settings: Mapping[str, object] | None = None) -> None:
        self.name = name
        self.rule = rule
        self.found = found
        subject = f'"{name}"'
        if settings:
            subject += " with " + ", ".join(f"{key} = {format_value(value)}" for key, value in settings.items())
        super().__init__(f"{subject} breaks a contract: {rule}; {found}; see docs/extending.md")


class Rules:
    """The rules of a class that is registered under a name, tried with settings that a user gave."""

    def __init__(self, name: str, given: Mapping[str, object]) -> None:
        self.name = name
        self.given = given

    def attempt(self, check: Callable[..., object], rule: str, *arguments: object) -> None:
        """Run a check with arguments; an error of the class that is checked breaks this rule."""
        try:
            check(*arguments)
        except TxlError:
            raise
        except Exception as error:
            raise self.broken(rule, f"{type(error).__name__}: {reason_of(error)}") from error

    def broken(self, rule: str, found: str) -> ContractError:
        """Return the error that a rule is broken."""
        return ContractError(self.name, rule, found, self.given)

    def require(self, is_kept: bool, rule: str, found: str) -> None:
        """Raise a ContractError unless a rule is kept."""
        if not is_kept:
            raise self.broken(rule, found)

    def require_equal(self, given: Tensor, expected: Tensor, rule: str, *, atol: float = 1e-9) -> None:
        """Raise a ContractError unless two tensors are equal up to rounding."""
        self.require(given.shape == expected.shape, rule, f"shape {tuple(given.shape)}, not {tuple(expected.shape)}")
        difference = (given - expected).detach()
        error = float(difference.abs().max()) if difference.numel() else 0.0
        self.require(error <= atol, rule, f"the largest difference is {error:.1e}")

    def require_same_weights(self, given: nn.Module, expected: nn.Module, rule: str, *, atol: float = 0.0) -> None:
        """Raise a ContractError unless two models have the same weights."""
        weights = dict(expected.named_parameters())
        for name, weight in given.named_parameters():
            self.require_equal(weight, weights[name], f"{rule} ({name})", atol=atol)
