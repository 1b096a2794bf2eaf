"""A stand-in for a CUDA graph on a CPU: operators that are recorded once and called again on the same tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from txlcli.core.kernels.private import DispatchMode


class Recording(DispatchMode):
    """Runs and records the operators inside its block.

    A replay calls them on the same tensors, with the Python numbers of the recording.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _reads_values(func, args) or self._writes_through_mask(func, args):
            raise ValueError(
                "it reads the value of a tensor, as .item(), `if tensor`, alpha=tensor, nonzero(), tensor[mask] and "
                "tensor[mask] = tensor do"
            )
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace != "profiler":
            self._calls.append((func, args, kwargs, result))
        return result

    def _writes_through_mask(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return True for `tensor[mask] = tensor`, which waits for the device; `tensor[mask] = number` does not."""
        if func is not torch.ops.aten.index_put_.default:
            return False
        _, indices, values, *_ = args
        if not _has_mask(indices):
            return False
        if not self._calls:
            return True
        last_operator, _, _, last_result = self._calls[-1]
        is_number = last_operator is torch.ops.aten.lift_fresh.default and last_result is values
        return not is_number

    @torch.no_grad()
    def replay(self) -> None:
        """Call the operators again, and write what they return where the recording has it."""
        for func, args, kwargs, result in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():  # else a view, or a tensor that was changed in place
                    old.copy_(new)


def record(function: Callable[[], object]) -> Callable[[], None]:
    """Call a function, and return one that calls its operators again."""
    recording = Recording()
    with recording:
        function()
    return recording.replay


def _reads_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Return True if an operator waits for the device, since a number or a shape depends on the values of a tensor."""
    if func is torch.ops.aten.index.Tensor:
        _, indices = args
        return _has_mask(indices)
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Return True if one of the indices is a tensor of booleans."""
    return any(index is not None and index.dtype == torch.bool for index in indices)


def _tensors(result: object) -> list[Tensor]:
    """Return the tensors that an operator returned."""
    results = result if isinstance(result, list | tuple) else [result]
    return [each for each in results if isinstance(each, Tensor)]
