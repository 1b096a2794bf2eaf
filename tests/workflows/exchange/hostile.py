"""Pickles that run code, and the marker file that shows if it ran."""

import builtins
import os
from pathlib import Path


class Calls:
    """An object that is pickled as a call of `function`, which unpickling would execute."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def touch(path):
    Path(path).touch()


MARKER = "marker"
HOSTILE = {
    "os.system": (Calls(os.system, f"touch {MARKER}"), f"{os.system.__module__}.system"),
    "eval": (Calls(eval, f"open({MARKER!r}, 'w')"), "builtins.eval"),
    "a_function_of_the_attacker": (Calls(touch, MARKER), "tests.workflows.exchange.hostile.touch"),
    "deep_in_a_dict": (
        {"idx2sym": ["a"], "sym2idx": [{"a": Calls(os.system, f"touch {MARKER}")}]},
        f"{os.system.__module__}.system",
    ),
    "getattr": (Calls(builtins.getattr, Calls(builtins.__import__, "os"), "system"), "builtins.getattr"),
}
"""Objects, and the name that the error message must contain."""

OF_PYTHON_2 = {"builtins": "__builtin__"}


def names(name):
    """Return the spellings of a name: protocols below 3 write those of Python 2, and PyTorch omits `builtins`."""
    module, _, rest = name.rpartition(".")
    return {name, f"{OF_PYTHON_2.get(module, module)}.{rest}", *([rest] if module == "builtins" else [])}
