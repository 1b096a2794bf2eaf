"""Runs a group of checks and prints what each gave, or its traceback, as one JSON object."""

import ctypes
import json
import os
import signal
import sys
import traceback

MOST_SECONDS = 300


def main(library, group):
    """Take the helper library first: PyTorch asks for the device as it is loaded."""
    signal.alarm(MOST_SECONDS)  # whoever started this may be gone
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    from tests.core.fake_cuda.checks import GROUPS

    print(json.dumps({name: _outcome(check) for name, check in GROUPS[group].items()}))
    sys.stdout.flush()
    os._exit(0)  # the device's threads of autograd never end


def _outcome(check):
    try:
        return check()
    except Exception:
        return traceback.format_exc()


main(*sys.argv[1:])
