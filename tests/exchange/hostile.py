"""Pickles that run code, and the marker file that shows if it ran."""

import builtins
import copyreg
import os
from collections import Counter
from pathlib import Path


class Calls:
    """An object that is pickled as a call of `function`, which unpickling would execute."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class CountsAndCalls(Counter):
    """A subclass of Counter, which unpickling would have to import."""

    def __reduce__(self):
        return CountsAndCalls, (dict(self),)


def touch(path):
    Path(path).touch()


MARKER = "marker"
HOSTILE = {
    "os.system": (Calls(os.system, f"touch {MARKER}"), f"{os.system.__module__}.system"),
    "eval": (Calls(eval, f"open({MARKER!r}, 'w')"), "builtins.eval"),
    "a_function_of_the_attacker": (Calls(touch, MARKER), "tests.exchange.hostile.touch"),
    "deep_in_a_dict": (
        {"idx2sym": ["a"], "sym2idx": [{"a": Calls(os.system, f"touch {MARKER}")}]},
        f"{os.system.__module__}.system",
    ),
    "getattr": (Calls(builtins.getattr, Calls(builtins.__import__, "os"), "system"), "builtins.getattr"),
    "import": (Calls(builtins.__import__, "antigravity"), "builtins.__import__"),
    "a_class_like_Counter": (CountsAndCalls("ab"), "tests.exchange.hostile.CountsAndCalls"),
    "copyreg": (Calls(copyreg._reconstructor, Path, object, None), "copyreg._reconstructor"),
    "copyreg_extension": (Calls(copyreg.add_extension, "os", "system", 240), "copyreg.add_extension"),
    "an_argument_of_Counter": (Calls(Counter, Calls(os.system, f"touch {MARKER}")), f"{os.system.__module__}.system"),
}
"""Objects, and the name that the error message must contain."""

OF_PYTHON_2 = {"builtins": "__builtin__", "copyreg": "copy_reg"}


def names(name):
    """Return the spellings of a name: protocols below 3 write those of Python 2, and PyTorch omits `builtins`."""
    module, _, rest = name.rpartition(".")
    return {name, f"{OF_PYTHON_2.get(module, module)}.{rest}", *([rest] if module == "builtins" else [])}
