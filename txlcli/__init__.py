"""Transformer-XL (Dai et al. 2019) as a command-line toolkit, and from Python: `load`, `open_store`, `make_model`."""

import importlib

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """Import the Python interface, and with it PyTorch, when it is first used; `__init__.pyi` has the types."""
    if name not in ("load", "make_model", "open_store"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("txlcli.api"), name)
