"""The options of a reproduction, and the directory of its report: what is accepted, and what killed processes left."""

import json
from pathlib import Path

import pytest

from txlcli.commands.reproduce import report_writer
from txlcli.errors import RunError, UnknownNameError, UsageError
from txlcli.workflows.reproduction import reproduce, scales
from txlcli.workflows.reproduction.items import ITEMS
from txlcli.workflows.reproduction.options import PAPER_ITEMS, REPRODUCIBLE, ReproduceOptions, select_items
from txlcli.workflows.workspace import Workspace


def begin(directory):
    workspace = Workspace(data_dir=directory / "data", runs_dir=directory / "runs")
    return reproduce.run([], ReproduceOptions(out=directory), scales.get("tiny"), workspace, report_writer())


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".reproduction.json.new"]])
def test_a_directory_that_a_killed_process_began_is_used(tmp_path, left):
    for name in left:
        (tmp_path / name).touch()
    assert begin(tmp_path).sections == {}
    assert json.loads((tmp_path / "reproduction.json").read_text())["scale"] == "tiny"
    assert not list(tmp_path.glob(".*.new"))
    (tmp_path / "half.png").touch()  # of a process that is killed in its first item
    assert begin(tmp_path).sections == {}


@pytest.mark.parametrize(
    ("name", "content", "error", "telling"),
    [
        ("text.txt", "", UsageError, "not a reproduction"),
        ("reproduction.json", '{"scale": "paper", "sections": {}}', UsageError, "at paper scale"),
        ("reproduction.json", '{"scale": "tiny", "sections": }', RunError, "damaged"),
        ("reproduction.json", '{"scale": "tiny", "sections": {"table4": 5}}', RunError, "damaged"),
        ("reproduction.json", '{"scale": "tiny", "sections": []}', RunError, "damaged"),
    ],
)
def test_a_directory_of_something_else_is_rejected(tmp_path, name, content, error, telling):
    (tmp_path / name).write_text(content)
    with pytest.raises(error, match=telling):
        begin(tmp_path)
    assert (tmp_path / name).read_text() == content


def test_items_are_selected_in_the_papers_order():
    assert select_items(["figure3", "table2", "table2"]) == ["table2", "figure3"]
    assert select_items(["all"]) == list(PAPER_ITEMS)
    assert select_items(["frontier", "all"]) == list(REPRODUCIBLE) == list(ITEMS)
    assert ReproduceOptions(scale="small").directory == Path("reproduction-small")


@pytest.mark.parametrize(("name", "likely"), [("tabel6", "table6"), ("figure1", "figure7")])
def test_unknown_items_are_rejected(name, likely):
    with pytest.raises(UnknownNameError, match=f'did you mean "{likely}"'):
        select_items([name])
