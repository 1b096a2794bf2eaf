"""The suite notices what it is there for: each kind of failure, and damage as opposed to an edit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.faults import disk, mutations, process, results, table
from tests.faults.damage import (
    damaged_bytes,
    damaged_toml,
    damaged_value,
    is_edit_of_card,
    is_edit_of_json,
    is_edit_of_lines,
    is_edit_of_toml,
    to_json,
)
from tests.faults.process import Ended, Kill
from tests.faults.table import Finding, Outcome

FINE = {
    **{
        "words": ("runs",),
        "code": 0,
        "signal": 0,
        "was_sent": False,
        "stdout": "",
        "stderr": "",
        "seconds": 0.1,
        "cpu_seconds": 0.1,
    },
    **{"peak_bytes": 1 << 20, "hung": False, "changes": 0},
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
        ({"signal": 11}, ["signal"]),
        ({"signal": 15}, ["signal"]),
        ({"signal": 9, "was_sent": True}, []),
        ({"peak_bytes": 3 << 30}, ["memory"]),
        ({"stdout": "the name is \x1b[31m"}, ["silent"]),
    ],
)
def test_the_end_of_a_process_is_examined(ended, kinds):
    outcome = Outcome("kills", "train", "a")
    outcome.examine(Ended(**FINE | ended))
    assert [finding.kind for finding in outcome.findings] == kinds


def test_the_table_counts_injections_and_not_findings():
    twice = Outcome("kills", "train", "a", [Finding(table.LOST, "x")] * 2, peak_bytes=3)
    none = Outcome("kills", "train", "b", peak_bytes=5)
    (row,) = table.rows_of([twice, none])
    assert (row.injections, row.counts[table.LOST], row.counts[table.SILENT], row.peak_bytes) == (2, 1, 0, 5)


def test_a_command_runs_in_a_directory_and_its_output_is_kept(tmp_path):
    ended = process.run("runs", "--json", directory=tmp_path)
    assert (ended.code, ended.stdout) == (1, "")
    assert ended.last_line.startswith("error: no run under runs; ")


def test_a_process_that_takes_too_long_is_ended(tmp_path):
    (tmp_path / "lines.txt").touch()
    ended = process.run("train", "enwik8", "--dry-run", directory=tmp_path, limit_s=0.01)
    assert ended.hung
    assert not ended.done


def test_the_time_without_a_processor_is_counted_for_children_too():
    processor = min(os.sched_getaffinity(0))
    code = f"import os, time; os.sched_setaffinity(0, [{processor}]); os.fork(); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as busy:
        busy.stdout.readline()
        time.sleep(1)
        waited = process.seconds_without_processor(busy.pid)
        os.killpg(busy.pid, signal.SIGKILL)
    assert waited > 0.7  # of two seconds that both wanted, one processor has one
    assert process.seconds_without_processor(busy.pid) == 0  # it has ended


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


CARD = b'{"step": 4, "loss_nats": 1.5, "names": ["a"]}'


@pytest.mark.parametrize(
    ("after", "is_edit"),
    [
        (b'{"step": 9, "loss_nats": 2, "names": ["b"]}', True),
        (b'{"step": 4.0, "loss_nats": 1.5, "names": ["a"]}', False),
        (b'{"step": true, "loss_nats": 1.5, "names": ["a"]}', False),
        (b'{"loss_nats": 1.5, "names": ["a"]}', False),
        (b'{"step": 4, "loss_nats": 1.5, "names": []}', False),
        (b'{"step": 4, "loss_nats": 1.5, "names"', False),
        (b"\xff", False),
    ],
)
def test_an_edit_keeps_keys_and_types(after, is_edit):
    assert is_edit_of_json(CARD, after) is is_edit


def test_a_card_is_edited_only_without_its_checksum():
    card = b'{"step": 4, "names": ["a"], "checksum": "0f"}'
    assert is_edit_of_card(card, b'{"step": 5, "names": ["a"]}')
    assert is_edit_of_card(card, b'{"step": 5}')
    assert not is_edit_of_card(card, b'{"step": 5, "names": ["a"], "checksum": "0f"}')
    assert not is_edit_of_card(card, b'{"step": "5", "names": ["a"]}')


def test_files_that_a_failed_command_changed_or_left_are_findings(tmp_path):
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


def test_an_edit_of_a_recipe_keeps_types_and_may_lack_keys():
    assert is_edit_of_toml(b"[train]\nlr = 3e-2\nseed = 7", b"[train]\nseed = 5")
    assert is_edit_of_toml(b"[train]\nlr = 3e-2", b"[train]\nlr = 7e-2")
    assert not is_edit_of_toml(b"[train]\nlr = 3e-2", b"[train]\nlp = 3e-2")


def test_missing_and_unfinished_last_lines_are_an_edit_and_a_damaged_line_is_not():
    before = CARD + b"\n" + CARD + b"\n"
    assert is_edit_of_lines(before, CARD + b"\n" + CARD[:9])
    assert not is_edit_of_lines(before, CARD[:9] + b"\n" + CARD + b"\n")


def test_every_mutation_of_bytes_can_be_repeated_and_most_change_the_content():
    content, others = bytes(range(256)) * 41, {"other": b"other"}
    made = [damaged_bytes(content, others, number, random.Random(number)) for number in range(100)]
    assert made == [damaged_bytes(content, others, number, random.Random(number)) for number in range(100)]
    assert sum(damaged != content for _, damaged in made) > 90
    assert {damaged for _, damaged in made} >= {content[: len(content) * tenth // 10] for tenth in range(10)}


def test_wrong_values_are_written_as_json_and_toml():
    made = [damaged_value(json.loads(CARD), number, random.Random(number)) for number in range(200)]
    texts = [to_json(value) for _, value in made]
    assert sum(len(text) > 4300 for text in texts) >= 1  # an integer that Python does not write
    assert sum(is_edit_of_json(CARD, text.encode()) for text in texts) < 70
    name, text = damaged_toml("[train]\nlr = 3e-2\n", random.Random(3))
    assert text.startswith("[train]")
    assert "3e-2" not in text
    assert name.startswith("lr")
