"""Tries a function on data of others in a child process with limits on time and memory: it may crash or never end."""

import os
import subprocess
import sys

MOST_SECONDS = 20
MOST_MEMORY = 2 << 30  # bytes of address space
_CODE = """
import importlib, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(sys.stdin.buffer.read())
"""


def failure(function: str, data: bytes, *, seconds: float = MOST_SECONDS, memory: int = MOST_MEMORY) -> str | None:
    """Call a function with data in a child process; return why it failed, or None.

    Args:
        function: its name, as "module:function".
        data: its argument.
        seconds: time limit.
        memory: limit of the child's address space, in bytes.
    """
    words = [sys.executable, "-P", "-c", _CODE, function, str(memory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    try:
        child = subprocess.run(words, input=data, capture_output=True, env=environment, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"takes more than {seconds:g} seconds"
    if child.returncode < 0:
        return f"ends the library by signal {-child.returncode}"
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    return (lines[-1] if lines else "no reason given")[:200] if child.returncode else None
