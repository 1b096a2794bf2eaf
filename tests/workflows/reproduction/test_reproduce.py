"""The directory of a report: which directories are accepted, and what a killed process left in them."""

import json

import pytest

from txlcli.errors import UsageError
from txlcli.workflows.reproduction.reproduce import reproduce


def begin(directory):
    return reproduce([], directory, "tiny", lambda: None, lambda sections: {"report.md": "empty"})


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".reproduction.json.new"]])
def test_a_directory_that_a_killed_process_began_is_used(tmp_path, left):
    for name in left:
        (tmp_path / name).touch()
    assert begin(tmp_path) == []
    assert json.loads((tmp_path / "reproduction.json").read_text())["scale"] == "tiny"
    assert not list(tmp_path.glob(".*.new"))


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "text.txt").touch()
    with pytest.raises(UsageError, match="exists and is not a reproduction; give another --out"):
        begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
