"""Maps a function over items in worker processes, results in order."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from txlcli.errors import TxlError
from txlcli.system import processors

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_BY_DEFAULT = 8  # a worker holds about 100 MB while it cuts a chunk into words; eight stay below 2 GiB
WAITING_PER_WORKER = 2

_function: Callable[[Any], Any]


def default_workers() -> int:
    """As many workers as there are processors to use, within what memory allows."""
    return min(processors.available(), MOST_BY_DEFAULT)


@contextmanager
def mapping(function: Callable[[Item], Result], workers: int) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
    """A map over items in `workers` processes (in this one where it is 1); results come in the order of the items.

    Raises:
        TxlError: a worker process died.
    """
    if workers == 1:
        yield lambda items: map(function, items)
        return
    # A fresh interpreter per worker: forking a process that runs threads (torch does) may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(function,)) as pool:
        try:
            yield lambda items: _in_order(pool, items, workers * WAITING_PER_WORKER)
        except BrokenProcessPool as error:
            raise TxlError("a worker process died, perhaps for lack of memory; try --workers 1") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin(function: Callable[[Any], Any]) -> None:
    global _function  # noqa: PLW0603 - sent once per process, not once per item
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Let a worker end whose parent was killed, which would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(item: Any) -> Any:
    return _function(item)


def _in_order(pool: ProcessPoolExecutor, items: Iterable[Item], most_waiting: int) -> Iterator[Any]:
    """Results in order, with a bounded number of items under way, so that memory stays bounded."""
    waiting: deque[Future[Any]] = deque()
    for item in items:
        if len(waiting) >= most_waiting:
            yield waiting.popleft().result()
        waiting.append(pool.submit(_call, item))
    while waiting:
        yield waiting.popleft().result()
