"""The suite notices what it is there for: each kind of failure."""

import signal

import pytest

from tests.faults import disk, mutations, process, table
from tests.faults.process import Ended, Kill
from tests.faults.table import Outcome

FINE = {
    **{"words": ("runs",), "code": 0, "signal": 0, "was_sent": False, "stdout": "", "stderr": "", "seconds": 0.1},
    **{"hung": False, "changes": 0},
}
ERROR = "preparing\nerror: no text; give another\n"


@pytest.mark.parametrize(
    ("ended", "kinds"),
    [
        ({}, []),
        ({"code": 1, "stderr": ERROR}, []),
        ({"code": 1, "stderr": "preparing\n"}, ["traceback"]),
        ({"code": 1, "stderr": 'Traceback (most recent call last):\n  File "a"\nValueError\n'}, ["traceback"]),
        ({"stderr": "Exception ignored in: <function File.__del__>\n"}, ["traceback"]),
        ({"hung": True, "signal": 9}, ["hang"]),
        ({"signal": 15}, ["signal"]),
        ({"signal": 9, "was_sent": True}, []),
    ],
)
def test_the_end_of_a_process_is_examined(ended, kinds):
    outcome = Outcome("kills", "train", "a")
    outcome.examine(Ended(**FINE | ended))
    assert [finding.kind for finding in outcome.findings] == kinds


def test_a_command_is_killed_before_a_change_of_a_file(tmp_path):
    (tmp_path / "text.txt").write_text("the fox jumps over the lazy dogs\n" * 50)
    whole = process.run("prepare", "text.txt", directory=tmp_path)
    assert whole.done
    assert whole.changes > 3
    stopped = process.run("prepare", "text.txt", "--name", "b", directory=tmp_path, kill=Kill(signal.SIGKILL, None, 2))
    assert (stopped.signal, stopped.was_sent) == (signal.SIGKILL, True)
    assert not (tmp_path / "data/b.h5").exists()


def test_a_disk_is_as_small_as_asked_and_vanishes(tmp_path):
    if not disk.can_mount(tmp_path):
        pytest.skip("no file system can be mounted here")

    def fill():
        disk.mount(tmp_path, 8 * disk.STEP)
        (tmp_path / "a").write_bytes(b"a" * 9 * disk.STEP)

    with pytest.raises(OSError, match="No space left on device"):
        disk.in_child(fill)
    assert list(tmp_path.iterdir()) == []


def test_files_that_a_failed_command_changed_or_left_are_findings():
    outcome, failed = Outcome("mutations", "run", "a"), Ended(**FINE | {"code": 1, "stderr": ERROR})
    mutations.examine_files({"a": b"1", "b": b"2", "c": b"3"}, {"a": b"1", "b": b"0", "d": b"4"}, failed, outcome)
    assert [(finding.kind, finding.detail.split(";")[0]) for finding in outcome.findings] == [
        (table.LOST, "txl runs: failed, and changed b, c"),
        (table.LEFTOVER, "txl runs: failed, and left d"),
    ]
