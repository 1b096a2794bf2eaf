"""Tells whether an error is one of memory that ran out."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch or Python found no room.

    On a CPU PyTorch raises a plain RuntimeError, on CUDA an OutOfMemoryError, told by its name: the command line asks
    without loading PyTorch.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)
