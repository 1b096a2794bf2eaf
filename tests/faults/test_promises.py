"""A sample of all faults with a fixed seed; `python -m tests.faults` injects more of them."""

import functools
from pathlib import Path

import pytest

from tests.faults import disk, mutations, races, suite
from tests.faults.jobs import JOBS
from tests.faults.sample import build

pytestmark = pytest.mark.faults

AMOUNTS = suite.Amounts(seed=7, kills=22, mutations=6, disks=2, races=1)
NAMES = [job.name for job in JOBS]


@pytest.fixture(scope="session")
def findings():
    """Return a function that injects faults of one kind into one target, and returns what it found."""
    with suite.work_directory() as name:
        directory = Path(name)
        sample = build(directory / "sample")

        @functools.cache
        def injections(fault):
            return suite.FAULTS[fault](sample, AMOUNTS)

        def inject(fault, target):
            chosen = [injection for injection in injections(fault) if injection.target == target]
            assert chosen
            outcomes = suite.run(chosen, directory, jobs=1)
            return [
                f"{outcome.name}: {found.kind}, {found.detail}" for outcome in outcomes for found in outcome.findings
            ]

        yield inject


@pytest.mark.parametrize("command", NAMES)
def test_a_killed_command_loses_nothing_and_the_next_one_completes_it(findings, command):
    assert findings("kills", command) == []


@pytest.mark.parametrize("format_", mutations.FORMATS)
def test_a_damaged_file_never_gives_another_result_without_an_error(findings, format_):
    assert findings("mutations", format_) == []


@pytest.mark.parametrize("command", NAMES)
def test_a_full_disk_loses_nothing(findings, command, tmp_path):
    if not disk.can_mount(tmp_path):
        pytest.skip("no file system can be mounted here")
    assert findings("disk", command) == []


@pytest.mark.parametrize("command", [target for target, *_ in races.PAIRS])
def test_of_two_commands_that_write_the_same_file_neither_damages_it(findings, command):
    assert findings("races", command) == []
