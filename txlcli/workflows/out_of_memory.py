"""The error after memory ran out, for all commands that forecast what would fit."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from txlcli.errors import TxlError
from txlcli.system.memory import format_size, is_out_of_memory, requested_size

USABLE = 0.8
"""Share of the memory that a forecast may fill; single operations need a workspace."""
MAX_SHOWN = 2
"""Largest number of suggestions."""


@contextmanager
def explained(explain: Callable[[str], TxlError]) -> Iterator[None]:
    """Raise what `explain` returns for `out of memory (tried to allocate ...)` if that happens in the block."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        error.__traceback__ = None  # which holds the tensors of the block
        raise explain(f"out of memory{requested_size(error)}") from error


def advice(
    subject: str, needed: int, available: int | None, ways: Iterable[Iterable[tuple[str, int]]], *, otherwise: str
) -> str:
    """Return what is needed, of how much, and the next step: options that fit, of at most MAX_SHOWN ways.

    Each way of needing less yields options with the bytes that they need, by a forecast; the first that fit are named.
    `available` is None if the system does not say. `otherwise` ends the sentence if none fits.
    """
    most = USABLE * min(available or needed, needed)
    of_ways = (next(((options, size) for options, size in way if size <= most), None) for way in ways)
    fitting = itertools.islice(filter(None, of_ways), MAX_SHOWN)
    named = [f"{options} (about {format_size(size)})" for options, size in fitting]
    needs = f"{subject} needs about {format_size(needed)}" + (f" of {format_size(available)}" if available else "")
    return f"{needs}; try {', or '.join(named)}" if named else f"{needs}, and {otherwise}"
