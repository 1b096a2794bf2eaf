"""Functions in the background: their order, their errors, and who waits."""

import threading

import pytest

from txlcli.system.background import BackgroundWriter


def test_functions_run_in_order_while_the_caller_continues():
    writer, released, ended = BackgroundWriter(), threading.Event(), []
    writer.start(lambda: ended.append("first" if released.wait(60) else "late"))
    writer.start(lambda: ended.append("second"))
    assert ended == []
    released.set()
    writer.wait()
    assert ended == ["first", "second"]


def test_an_error_is_raised_once_and_no_further_function_runs_before():
    writer, ended = BackgroundWriter(), []

    def fail():
        raise OSError("the disk is full")

    writer.start(fail)
    writer.start(lambda: ended.append("after the error"))
    writer.settle()
    with pytest.raises(OSError, match="the disk is full"):
        writer.raise_error()
    writer.raise_error()
    writer.start(lambda: ended.append("later"))
    writer.wait()
    assert ended == ["later"]
