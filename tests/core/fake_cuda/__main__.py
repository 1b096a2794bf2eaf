"""Runs a group of checks and prints what each gave, or its traceback, as one JSON object.

The modules are imported in the order that they are named in; the last one has the group.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback

MOST_SECONDS = 1200


def main(library, group, *modules):
    """Take the helper library first: PyTorch asks for the device as it is loaded."""
    signal.alarm(MOST_SECONDS)  # whoever started this may be gone
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    for name in modules:
        module = importlib.import_module(f"tests.core.fake_cuda.{name}")
    checks = module.GROUPS[group]
    print(json.dumps({name: _outcome(check) for name, check in checks.items()}))
    sys.stdout.flush()
    os._exit(0)  # the device's threads of autograd never end


def _outcome(check):
    try:
        return check()
    except Exception:
        return traceback.format_exc()


main(*sys.argv[1:])
