"""Transformer-XL (Dai et al. 2019) as a command-line toolkit, and from Python: `prepare`, `train`, `load` ..."""

import importlib

from txlcli.system import processors

THREADS_SLEEP = processors.let_threads_sleep()  # here, since PyTorch may be imported on the next line
"""False if PyTorch was imported before."""

__version__ = "0.2.0"

__all__ = [
    "AttentionOptions",
    "DifferenceOptions",
    "ExportOptions",
    "PrepareOptions",
    "ProbeOptions",
    "ReclOptions",
    "ReportOptions",
    "SpeedOptions",
    "TrainOptions",
    "difference",
    "load",
    "make_model",
    "open_store",
    "prepare",
    "recl",
    "relative_attention",
    "train",
]


def __dir__() -> list[str]:
    """List the Python interface, which is imported when it is used."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    """Import the Python interface, and with it PyTorch, when it is first used; `__init__.pyi` has the types."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "txlcli.functional" if name == "relative_attention" else "txlcli.api"
    return getattr(importlib.import_module(module), name)
