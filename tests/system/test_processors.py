"""The number of processors that this process may use."""

import os

from txlcli.system import processors


def test_only_processors_of_the_affinity_mask_are_counted(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert processors.available() == 3
