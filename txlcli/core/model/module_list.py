"""nn.ModuleList with the class of its modules, for type checkers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

Item_co = TypeVar("Item_co", bound=nn.Module, covariant=True)


class ModuleList(nn.ModuleList, Generic[Item_co]):
    """nn.ModuleList of modules of one class, so that callers need not assert it."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Item_co]: ...

        def __getitem__(self, number: int) -> Item_co: ...  # type: ignore[override]
