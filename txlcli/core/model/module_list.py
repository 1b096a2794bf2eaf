"""nn.ModuleList with the class of its modules, for type checkers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

Item = TypeVar("Item", bound=nn.Module)


class ModuleList(nn.ModuleList, Generic[Item]):
    """nn.ModuleList of modules of one class, so that callers need not assert it."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Item]: ...

        def __getitem__(self, number: int) -> Item: ...  # type: ignore[override]
