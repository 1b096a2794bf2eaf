"""Recognizes errors that mean that memory ran out."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if PyTorch or Python could not allocate memory.

    On a CPU PyTorch raises a plain RuntimeError, on CUDA an OutOfMemoryError. That class is recognized by its name,
    because the command line calls this function without loading PyTorch.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)
