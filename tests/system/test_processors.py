"""The number of processors that this process may use."""

import os

from txlcli.system import processors


def test_only_processors_of_the_affinity_mask_are_counted(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert processors.available() == 3


def test_all_processors_are_counted_if_the_system_has_no_affinity_mask(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert processors.available() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors.available() == 1
