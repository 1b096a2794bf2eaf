"""A list of modules that tells a type checker what they are."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


class ModuleList(nn.ModuleList, Generic[Kind]):
    """nn.ModuleList of modules of one class, so that callers need not assert their type."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Kind]: ...

        def __getitem__(self, number: int) -> Kind: ...  # type: ignore[override]
