"""Layers that the backward pass computes again from their inputs, with the same random numbers."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from txlcli.core.kernels.private import DispatchMode, changes_input

Result = TypeVar("Result")


def recomputed(function: Callable[..., Result], *inputs: object, keeps_random_numbers: bool) -> Result:
    """Call a function of tensors, of which only the inputs are kept for the backward pass.

    The backward pass calls it again and repeats its random numbers: from the state of PyTorch's generator, or, with
    `keeps_random_numbers`, from copies. A CUDA graph needs copies, since no state can be read or set in a capture, and
    so do Apple's GPUs, whose state PyTorch's checkpoints do not set.
    """
    options: dict[str, Any] = {}
    if keeps_random_numbers:
        copies: list[Tensor] = []
        contexts = (_RandomNumbers(copies, is_repeated=False), _RandomNumbers(copies, is_repeated=True))
        options = {"preserve_rng_state": False, "context_fn": lambda: contexts}
    result: Result = checkpoint(function, *inputs, use_reentrant=False, **options)
    return result


class _RandomNumbers(DispatchMode):
    """Keeps the results of random operators, or returns them instead of calling the operators."""

    def __init__(self, copies: list[Tensor], *, is_repeated: bool) -> None:
        super().__init__()
        self._copies = copies
        self._is_repeated = is_repeated

    def __torch_dispatch__(self, operator: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in operator.tags:
            return operator(*args, **(kwargs or {}))
        has_mask = operator is torch.ops.aten.native_dropout.default
        if not self._is_repeated:
            result = operator(*args, **(kwargs or {}))
            self._copies.append(result[1] if has_mask else result.clone())
            return result
        copy = self._copies.pop(0)
        if has_mask:
            hidden, rate, _ = args
            return (hidden * copy).mul_(1 / (1 - rate)), copy
        if changes_input(operator):
            return args[0].copy_(copy)
        return copy
