"""Streams and CUDA graphs of the fake device, with the states in which PyTorch leaves a capture that fails.

`capture_end` of a capture that CUDA has found invalid raises before it closes the pool of memory, that of pinned
memory, and the capture of the random generator, as in PyTorch 2.11. Nothing in Python closes the second one. A graph
that is gone frees the workspace that its stream has for products, as in PyTorch 2.13; streams are handed out in turn.
"""

import contextlib
from collections import Counter

import torch

WAITS = "CUDA error: operation not permitted when stream is capturing"
INVALID = "CUDA error: operation failed due to a previous error during capture"


class Device:
    """What the driver, the allocator and the random generator know of captures."""

    def __init__(self):
        self.stream = None
        """The current stream; None for the default one."""
        self.capture = None
        """The graph that is captured on the current stream."""
        self.is_invalid = False
        self.open_pools, self.users_of_pool, self._pools = set(), {}, 0
        self.open_pinned_pools = set()
        self.generator_captures = False
        self.freed_workspaces = Counter()
        """By the number of the stream."""

    @property
    def is_clean(self):
        return self.stream is None and self.capture is None and not self.open_pools and not self.generator_captures

    @property
    def pools_in_use(self):
        return {pool for pool, users in self.users_of_pool.items() if users}

    def wait(self):
        """Let the host wait, which no capture survives."""
        if self.capture is not None:
            self.is_invalid = True
            raise RuntimeError(WAITS)

    def sample(self):
        """Use the random generator, which must be in a capture exactly if the stream is."""
        if self.generator_captures != (self.capture is not None):
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    def enter_pool(self, pool):
        """Allocate from a pool from now on."""
        if pool in self.open_pools | self.open_pinned_pools:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        assert self.users_of_pool.get(pool) != 0, "the last graph of this pool is gone"
        self.users_of_pool[pool] = self.users_of_pool.get(pool, 0) + 1
        self.open_pools.add(pool)
        self.open_pinned_pools.add(pool)

    def end_pool(self, _, pool):
        if pool not in self.open_pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open_pools.remove(pool)

    def release_pool(self, _, pool):
        self.users_of_pool[pool] -= 1

    def new_pool(self):
        self._pools += 1
        return (0, self._pools)

    @contextlib.contextmanager
    def use(self, stream):
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before


DEVICE = Device()


STREAMS = 32


class Stream:
    """A stream that runs everything at once."""

    _made = 0

    def __init__(self, device):
        assert device.type == "cuda"
        self.number = Stream._made % STREAMS
        Stream._made += 1

    def wait_stream(self, other):
        """Do nothing: the other one has run."""


DEFAULT_STREAM = Stream(torch.device("cuda"))


class Graph:
    """A graph without kernels."""

    def __init__(self):
        self._pool, self._stream, self._has_ended = None, None, False
        self._freed_before = 0

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert capture_error_mode == "thread_local"
        assert DEVICE.stream is not None, "CUDA graphs must be captured on a non-default stream."
        assert DEVICE.capture is None
        self._pool, self._stream = pool or DEVICE.new_pool(), DEVICE.stream
        DEVICE.enter_pool(self._pool)
        DEVICE.capture, DEVICE.generator_captures = self, True

    def capture_end(self):
        """End the capture, or raise if it is invalid."""
        assert DEVICE.stream is self._stream
        DEVICE.capture = None
        if DEVICE.is_invalid:
            DEVICE.is_invalid = False
            raise RuntimeError(INVALID)
        DEVICE.open_pools.remove(self._pool)
        DEVICE.open_pinned_pools.remove(self._pool)
        DEVICE.generator_captures, self._has_ended = False, True
        self._freed_before = DEVICE.freed_workspaces[self._stream.number]

    def replay(self):
        assert self._has_ended
        assert DEVICE.freed_workspaces[self._stream.number] == self._freed_before, "its workspace is gone"

    def __del__(self):
        if self._has_ended:
            DEVICE.freed_workspaces[self._stream.number] += 1
            DEVICE.release_pool(0, self._pool)
