"""How many processors this process may use."""

import os

from txlcli.system import processors


def test_those_that_the_system_lets_it_use_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert processors.available() == 3


def test_where_the_system_does_not_tell_all_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert processors.available() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors.available() == 1
