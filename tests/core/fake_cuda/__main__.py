"""Runs a group of checks and prints the result of each, or its traceback, as one JSON object."""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback

MAX_SECONDS = 1200


def main(library, group):
    """Load the helper library first: PyTorch queries the device when it is imported."""
    signal.alarm(MAX_SECONDS)  # the parent process may have ended
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    checks = importlib.import_module("tests.core.fake_cuda.checks").GROUPS[group]
    print(json.dumps({name: _outcome(check) for name, check in checks.items()}))
    sys.stdout.flush()
    os._exit(0)  # autograd's threads for the device never end


def _outcome(check):
    try:
        return check()
    except Exception:
        return traceback.format_exc()


main(*sys.argv[1:])
