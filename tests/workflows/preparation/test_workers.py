"""Worker processes end with the one that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, time
from txlcli.workflows.preparation.workers import mapping

def number(_):
    time.sleep(0.2)
    return os.getpid()

if __name__ == "__main__":
    with mapping(number, 2) as each:
        print(*set(each(range(8))), flush=True)
        time.sleep(600)
"""


def lives(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.skipif(sys.platform == "win32", reason="there a process cannot be killed in this way")
def test_workers_end_where_their_parent_was_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    assert all(lives(worker) for worker in workers)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 60
    while any(lives(worker) for worker in workers):
        assert time.monotonic() < until, "workers outlive their parent"
        time.sleep(0.05)
