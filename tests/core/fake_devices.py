"""Calls functions in processes with a fake device, which PyTorch must find when it is loaded.

python -m tests.core.fake_devices LIBRARY MODULE:FUNCTION ARGUMENTS
"""

import ctypes
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 1200


def build(library, source):
    """Compile a helper library in two seconds; return the ended compiler."""
    torch_dir = Path(importlib.util.find_spec("torch").origin).parent  # not imported: it looks for devices then
    include = [f"-I{torch_dir}/include", f"-I{torch_dir}/include/torch/csrc/api/include"]
    link = [f"-L{torch_dir}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch_dir}/lib"]
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", *include, str(source), "-o", str(library), *link]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def call(library, function, *arguments):
    """Call a function, `module:name`, in a new process; JSON must hold its arguments and its result."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.core.fake_devices", str(library), function]
    ended = subprocess.run([*command, json.dumps(arguments)], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(ended.stdout)


def outcomes(checks):
    """Return the result of each check by name, or its traceback."""
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        except Exception:
            found[name] = traceback.format_exc()
    return found


def main(library, function, arguments):
    """Load the helper library first, then the module, and print the result."""
    signal.alarm(MAX_SECONDS)  # the parent process may have ended
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    print(json.dumps(result), flush=True)
    os._exit(0)  # autograd's threads for the device never end


if __name__ == "__main__":
    main(*sys.argv[1:])
