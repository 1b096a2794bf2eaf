"""Recognizes errors that mean that memory ran out, and formats sizes."""

import re

LESS = "use a smaller batch size, shorter lengths or a smaller model"
"""The next step where no forecast says what would fit."""
LIBRARY_MESSAGES = frozenset(
    {
        "could not create a memory",
        "could not create a memory object",
        "could not create a primitive",
        "could not execute a primitive",
        "std::bad_alloc",
    }
)
"""Whole messages of PyTorch's RuntimeErrors for C++ code, oneDNN's above all, that does not say what it lacked."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if PyTorch or Python could not allocate memory.

    On a CPU PyTorch raises a plain RuntimeError, on CUDA an OutOfMemoryError. That class is recognized by its name,
    because the command line calls this function without loading PyTorch.
    """
    classes = {cls.__name__ for cls in type(error).__mro__}
    if classes & {"MemoryError", "OutOfMemoryError"}:
        return True
    message = str(error)
    return "can't allocate memory" in message or ("RuntimeError" in classes and message in LIBRARY_MESSAGES)


def requested_size(error: BaseException) -> str:
    """Return the size in such an error, as ` (tried to allocate 2.00 GiB)`, or an empty text."""
    size = re.search(r"(?:tried|unable) to allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
    if size is None:
        return ""
    amount = f"{size[1]} {size[2]}"
    if size[2] == "bytes":
        amount = format_size(float(size[1]))
    return f" (tried to allocate {amount})"


def format_size(size: float) -> str:
    """Return a number of bytes in GiB, or in MiB if it is less than one GiB."""
    if size >= 2**30:
        return f"{size / 2**30:,.2f} GiB"
    return f"{size / 2**20:,.1f} MiB"
