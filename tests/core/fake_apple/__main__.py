"""Runs checks by name on the fake device and prints the traceback of each that fails, or "", as one JSON object."""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback

MAX_SECONDS = 600


def main(library, *names):
    """Load the helper library first: PyTorch asks for devices when it is imported."""
    signal.alarm(MAX_SECONDS)  # the parent process may have ended
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    check = importlib.import_module("tests.core.fake_apple.checks").check
    print(json.dumps({name: _problem(check, name) for name in names}))
    sys.stdout.flush()
    os._exit(0)  # autograd's threads for the device never end


def _problem(check, name):
    try:
        check(name)
    except Exception:
        return traceback.format_exc()
    return ""


main(*sys.argv[1:])
