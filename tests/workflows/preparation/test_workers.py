"""Worker processes do not run the script that starts them again, exit when it is killed, and start no others."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from txlcli.workflows.preparation.numbered_text import map_in_order

JOB = """
import os, time

def number(_):
    time.sleep(0.2)
    return os.getpid()
"""
SCRIPT = """
import time
from job import number
from txlcli.workflows.preparation.numbered_text import map_in_order

processes = map_in_order(number, range(9), 2)
print(*{next(processes) for _ in range(8)}, flush=True)
time.sleep(600)
"""


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on Windows")
def test_workers_of_a_script_without_a_guard_exit_when_it_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "job.py").write_text(JOB)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    assert all(is_running(worker) for worker in workers)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 300
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < until, "workers outlived their parent"
        time.sleep(0.05)


def processes_of_two_jobs(_):
    return list(map_in_order(lambda _: os.getpid(), range(2), 2)), os.getpid()


def test_a_worker_of_a_pool_does_the_work_itself():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        ((processes, worker),) = pool.map(processes_of_two_jobs, [0])
    assert processes == [worker, worker]
