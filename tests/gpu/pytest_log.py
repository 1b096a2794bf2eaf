"""A pytest plugin that records every test when it begins and when it ends: one JSON object per line of a file."""

import json

import pytest

MAX_TEXT = 4000


def pytest_addoption(parser):
    parser.addoption("--log-tests", metavar="FILE", help="File for the beginning and the end of every test.")


def pytest_configure(config):
    """Log in the process that sees all reports: workers of xdist send theirs to it."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Log(config.getoption("--log-tests")))


class _Log:
    def __init__(self, path):
        self._path = path

    def _write(self, event, test, **facts):
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "test": test, **facts}) + "\n")

    def pytest_runtest_logstart(self, nodeid):
        self._write("started", nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._write("failed", report.nodeid, text=report.longreprtext[-MAX_TEXT:])
        elif report.skipped:
            self._write("skipped", report.nodeid, text=str(report.longrepr[-1]))
        if report.when == "teardown":
            self._write("ended", report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self._write("failed", report.nodeid, text=report.longreprtext[-MAX_TEXT:])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self._write("collected", None, count=len(ids))
