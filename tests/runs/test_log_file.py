"""Tests of metrics.jsonl and evals.jsonl: checksums of lines, damage, lines that were cut."""

import json

import pytest

from txlcli.errors import RunError
from txlcli.runs import log_file
from txlcli.runs.log_file import read

REPORTS = ({"step": 1, "loss_nats": 2.5, "name": "é", "rows": [1, None]}, {"step": 2, "loss_nats": 1e-300})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log_file.append(path, REPORTS)
    return path


def outcome(path):
    try:
        return read(path)
    except RunError:
        return "rejected"


def test_reports_are_read_as_they_were_written(path):
    assert read(path) == REPORTS
    assert all("checksum" in json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("line", [json.dumps(REPORTS[0]), '{"step": 1, "checksum": "0123456789abcdef"}', "[]", "3", ""])
def test_a_line_without_its_checksum_is_damaged(path, line):
    path.write_text(log_file.to_line(REPORTS[0]) + line + "\n")
    with pytest.raises(RunError, match="line 2 is damaged"):
        read(path)


def test_a_changed_bit_of_a_line_never_gives_another_report(path):
    content = path.read_bytes()
    first, outcomes = content.index(b"\n"), []
    for place in range(first):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            outcomes.append(outcome(path))
    assert all(result in ("rejected", REPORTS) for result in outcomes)
    assert outcomes.count(REPORTS) <= 1  # 1e-300 may have become 1E-300


@pytest.mark.parametrize("length", [1, 9, 30, 60])
def test_a_line_that_another_process_could_not_finish_is_skipped_if_that_is_allowed(path, length):
    whole = log_file.to_line(REPORTS[0])
    path.write_text(f"{whole}{whole[:length]}")
    assert read(path) == REPORTS[:1]
    path.write_text(f"{whole[:length]}\n{whole}")
    assert read(path, skip_truncated=True) == REPORTS[:1]
    with pytest.raises(RunError, match="line 1 is damaged"):
        read(path)


def test_a_file_without_permission_is_not_called_damaged(tmp_path):
    with pytest.raises(RunError, match="Permission denied"), log_file.reading(tmp_path / "run.json"):
        raise PermissionError(13, "Permission denied")
