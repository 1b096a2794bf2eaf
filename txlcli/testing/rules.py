"""The rules of a check: each is tried, and the one that is broken is named."""

from collections.abc import Callable

from torch import Tensor, nn

from txlcli.errors import TxlError, reason_of


class ContractError(TxlError):
    """A class breaks a rule that training or readers rely on."""

    def __init__(self, name: str, rule: str, found: str) -> None:
        self.name = name
        self.rule = rule
        self.found = found
        super().__init__(f'"{name}" breaks a contract: {rule}; {found}; see docs/extending.md')


class Rules:
    """The rules of a class that is registered under a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def attempt(self, check: Callable[..., object], rule: str, *arguments: object) -> None:
        """Run a check with arguments; an error of the class that is checked breaks this rule."""
        try:
            check(*arguments)
        except TxlError:
            raise
        except Exception as error:
            raise ContractError(self.name, rule, f"{type(error).__name__}: {reason_of(error)}") from error

    def require(self, is_kept: bool, rule: str, found: str) -> None:
        """Raise a ContractError unless a rule is kept."""
        if not is_kept:
            raise ContractError(self.name, rule, found)

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
