"""The suite notices what it is there for: each kind of failure."""

import signal

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.faults import disk, mutations, process, results, table
from tests.faults.damage import is_cut
from tests.faults.process import Ended, Kill
from tests.faults.table import Finding, Outcome

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


def test_the_table_counts_injections_and_not_findings():
    twice = Outcome("kills", "train", "a", [Finding(table.LOST, "x")] * 2)
    assert table.rows([twice, Outcome("kills", "train", "b")]) == [["kills", "train", 2, 1, 0, 0, 0, 0, 0]]


def test_a_command_runs_in_a_directory_and_its_output_is_kept(tmp_path):
    ended = process.run("runs", "--json", directory=tmp_path)
    assert (ended.code, ended.stdout) == (1, "")
    assert ended.last_line.startswith("error: no run under runs; ")


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


def test_times_are_no_part_of_a_result():
    first = results.stable('{"loss_nats": 1.5, "seconds": 3, "rows": [{"tokens_per_s": 7}]}\ntext\n')
    assert first == results.stable('{"loss_nats": 1.5, "seconds": 4, "rows": [{"tokens_per_s": 8}]}\ntext\n')
    assert first != results.stable('{"loss_nats": 1.25, "seconds": 3, "rows": [{"tokens_per_s": 7}]}\ntext\n')


def test_files_that_a_failed_command_changed_or_left_are_findings():
    outcome, failed = Outcome("mutations", "run", "a"), Ended(**FINE | {"code": 1, "stderr": ERROR})
    mutations.examine_files({"a": b"1", "b": b"2", "c": b"3"}, {"a": b"1", "b": b"0", "d": b"4"}, failed, outcome)
    assert [(finding.kind, finding.detail.split(";")[0]) for finding in outcome.findings] == [
        (table.LOST, "txl runs: failed, and changed b, c"),
        (table.LEFTOVER, "txl runs: failed, and left d"),
    ]


def test_written_weights_are_compared_and_not_their_times(tmp_path):
    for name, value, saved in (("a", 1.5, "1"), ("b", 1.5, "2"), ("c", 2.5, "1")):
        save_file({"w": np.full(3, value, np.float32)}, tmp_path / f"{name}.safetensors", {"saved": saved})
    first, same, other = (results.written(tmp_path / f"{name}.safetensors") for name in "abc")
    assert first == same
    assert first != other


def test_only_missing_and_unfinished_last_lines_are_cut():
    lines = b'{"a": 1}\n{"a": 2}\n'
    assert is_cut(lines, lines[:-1])
    assert is_cut(lines, lines[:12])
    assert not is_cut(lines, lines[:3] + lines[9:])
