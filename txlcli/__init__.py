"""Transformer-XL (Dai et al. 2019) as a command-line toolkit, and from Python: `load`, `open_store`, `make_model`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlcli.api import load, make_model, open_store

__version__ = "0.1.0"
__all__ = ["load", "make_model", "open_store"]


def __getattr__(name: str) -> Any:
    """Import the Python interface, and with it PyTorch, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("txlcli.api"), name)
