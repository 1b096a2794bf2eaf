"""Maps a function over items in worker processes, results in order."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from txlcli.errors import TxlError
from txlcli.system import processors

Item = TypeVar("Item")
Result = TypeVar("Result")

DEFAULT_LIMIT = 6  # a worker needs 250 MB to split a chunk into words; six and the first process stay below 2 GiB


def default_workers() -> int:
    """Return the number of available processors, limited so that memory suffices."""
    return min(processors.available(), DEFAULT_LIMIT)


@contextmanager
def mapping(function: Callable[[Item], Result], workers: int) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
    """Yield a map over items that runs in `workers` processes (in this one if 1) and keeps the order of the items."""
    if workers == 1:
        yield lambda items: map(function, items)
        return
    # A fresh interpreter per worker: forking a process that runs threads, as torch does, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_initialize) as pool:
        try:
            yield lambda items: pool.map(function, items)
        except BrokenProcessPool as error:
            raise TxlError("a worker process died, possibly because memory ran out; try `workers` 1") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _initialize() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent process is killed; otherwise the worker would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
