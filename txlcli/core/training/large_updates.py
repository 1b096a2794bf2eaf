"""Updates of large parameters in one pass over memory each; an optimizer's own step updates the others.

Axes: n numbers of a buffer, p parameters in it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from txlcli.core.kernels.private import foreach
from txlcli.core.kernels.updates import FlatParameters, chunks_of, padded_numel

UpdateLarge = Callable[[FlatParameters, Tensor, Tensor, dict[str, Any]], None]
"""Updates parameters, given their gradients (n,), the factor (0-d) of these, and their group in the optimizer."""

LARGE = 1 << 20
"""Numbers from which a parameter is worth kernels of its own."""


class LargeUpdates:
    """Updates the matrices of the layers, which are one buffer, and other large parameters.

    The state of the optimizer for these parameters becomes views of this object's buffers.

    Args:
        optimizer: keeps exp_avg and exp_avg_sq of every parameter, and perhaps the number of its steps.
        update: the rule.
        matrices: parameters in the buffer, as `views_of` reads it.
        buffer: (n,) with their numbers.
        copies: (n,) of them in the dtype of products.
        large: numbers from which another parameter has kernels of its own.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        update: UpdateLarge,
        matrices: Sequence[Tensor],
        *,
        buffer: Tensor,
        copies: Tensor,
        large: int = LARGE,
    ) -> None:
        self._update = update
        self._optimizer = optimizer
        self._matrices = matrices
        self._groups = dict[Tensor, dict[str, Any]]()
        for group in optimizer.param_groups:
            self._groups |= dict.fromkeys(group["params"], group)
        self._of_matrices = self._flat(matrices, buffer, copies, list(map(padded_numel, matrices)))
        self._of_tables = dict[Tensor, FlatParameters]()
        for parameter in self._groups:
            if parameter.numel() >= large and parameter not in set(matrices):
                self._of_tables[parameter] = self._flat(
                    [parameter], parameter.detach().view(-1), None, [parameter.numel()]
                )

    def _flat(
        self, parameters: Sequence[Tensor], weights: Tensor, copies: Tensor | None, sizes: Sequence[int]
    ) -> FlatParameters:
        """Return parameters that lie one after another, and move their state to buffers of that layout."""
        chunks, firsts = chunks_of(sizes, weights.device)
        means = torch.zeros_like(weights)
        squares = torch.zeros_like(weights)
        of_optimizer = self._optimizer.state
        steps = weights.new_zeros(len(parameters)) if "step" in of_optimizer[parameters[0]] else None
        begin = 0
        for number, (parameter, size) in enumerate(zip(parameters, sizes, strict=True)):
            own = slice(begin, begin + parameter.numel())
            begin += size
            state = of_optimizer[parameter]
            state["exp_avg"] = means[own].view_as(parameter)
            state["exp_avg_sq"] = squares[own].view_as(parameter)
            if steps is not None:
                state["step"] = steps[number]
        return FlatParameters(
            weights=weights, means=means, squares=squares, copies=copies, steps=steps, chunks=chunks, firsts=firsts
        )

    @property
    def can_step(self) -> bool:
        """True if all matrices have a gradient; a kernel updates all of them together."""
        return all(matrix.grad is not None for matrix in self._matrices)

    @torch.no_grad()
    def step(self, gradients: Tensor, factor: Tensor) -> None:
        """Clip all gradients, and update all parameters of the optimizer.

        Args:
            gradients: (n,) of the matrices.
            factor: (0-d) of all gradients.
        """
        updated = [(self._of_matrices, gradients, self._groups[self._matrices[0]])]
        for table, flat in self._of_tables.items():
            if table.grad is not None:
                updated.append((flat, table.grad.flatten(), self._groups[table]))
        if self._of_matrices.steps is not None:  # likewise of the tables
            foreach.add_([flat.steps for flat, *_ in updated], 1)
        for flat, of_flat, group in updated:
            self._update(flat, of_flat, factor, group)
        hidden = {parameter: parameter.grad for parameter in [*self._matrices, *self._of_tables]}
        for parameter in hidden:
            parameter.grad = None  # so that the optimizer's own step leaves it out
        try:
            foreach.mul_([parameter.grad for parameter in self._groups if parameter.grad is not None], factor)
            self._optimizer.step()
        finally:
            for parameter, gradient in hidden.items():
                parameter.grad = gradient

    @torch.no_grad()
    def rehearse(self) -> None:
        """Let each kernel run before the first step, with gradients and a rate of zero; nothing has changed then.

        An error shows that a kernel does not run here.
        """
        for parameter, flat in [(self._matrices[0], self._of_matrices), *self._of_tables.items()]:
            zero = flat.weights.new_zeros(())
            group = {**self._groups[parameter], "lr": zero}
            if flat.steps is not None:
                flat.steps.fill_(1)  # a rate is divided by a bias that is zero before the first step
            for like in (flat.weights, flat.copies):
                if like is not None:
                    self._update(flat, torch.zeros_like(like), zero, group)
            for state in (flat.steps, flat.means, flat.squares):
                if state is not None:
                    state.zero_()
