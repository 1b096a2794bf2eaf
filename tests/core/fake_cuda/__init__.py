"""A CUDA device without a GPU: it has shapes, dtypes and strides, and runs no kernel."""

import importlib.util
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("helper.cpp")


def problem():
    """Return why there cannot be a fake device here; None if it may be built."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "the fake device needs Linux and g++"
    return None if importlib.util.find_spec("triton") else "the fake device compiles kernels with Triton; install it"
