"""A CUDA device without a GPU: it has shapes, dtypes and strides, and runs no kernel."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("helper.cpp")


def problem():
    """Return why there cannot be a fake device here; None if it may be built."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "the fake device needs Linux and g++"
    return None if importlib.util.find_spec("triton") else "the fake device compiles kernels with Triton; install it"


def build(library, source=SOURCE):
    """Compile a helper library in two seconds; return the ended compiler."""
    torch_dir = Path(importlib.util.find_spec("torch").origin).parent  # not imported: it looks for devices then
    include = [f"-I{torch_dir}/include", f"-I{torch_dir}/include/torch/csrc/api/include"]
    link = [f"-L{torch_dir}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch_dir}/lib"]
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", *include, str(source), "-o", str(library), *link]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
