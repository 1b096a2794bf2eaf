"""A sample of all faults with a fixed seed; `python -m tests.faults` injects all of them."""

import functools
from pathlib import Path

import pytest

from tests.faults import disk, hostile, mutations, races, suite
from tests.faults.jobs import JOBS
from tests.faults.kills import KillChain
from tests.faults.sample import build

pytestmark = pytest.mark.faults

AMOUNTS = suite.Amounts(seed=7, kills=50, mutations=20, disk_steps=3, races=2, formats=mutations.FORMATS)
NAMES = [job.name for job in JOBS]
ON_DISK = [name for name in NAMES if name != "reproduce"]
HOSTILE = list(dict.fromkeys(attack.target for attack in hostile.ATTACKS))
RACES = [target for target, *_ in races.PAIRS]


@pytest.fixture(scope="session")
def findings():
    """Return a function that injects faults of one kind into one target, and returns what it found."""
    with suite.work_directory() as name:
        directory = Path(name)
        sample = build(directory / "sample")

        @functools.cache
        def injections(fault):
            return suite.FAULTS[fault](sample, AMOUNTS)

        def inject(kind, fault, target=None):
            chosen = [one for one in injections(kind) if one.fault == fault and target in (None, one.target)]
            assert chosen
            outcomes = suite.run(chosen, directory, jobs=1)
            return [f"{one.name}: {found.kind}, {found.detail}" for one in outcomes for found in one.findings]

        yield inject


@pytest.mark.parametrize("command", [*NAMES, KillChain.target])
def test_a_killed_command_loses_nothing_and_the_next_one_completes_it(findings, command):
    assert findings("kills", "kills", command) == []


def test_sigterm_during_the_start_of_txl_is_one_line_and_143(findings):
    assert findings("kills", "kills", "start-up") == []


@pytest.mark.parametrize("format_", mutations.FORMATS)
def test_a_damaged_file_never_gives_another_result_without_an_error(findings, format_):
    assert findings("mutations", "mutations", format_) == []


@pytest.mark.parametrize("command", ON_DISK)
def test_a_full_disk_loses_nothing(findings, command):
    assert findings("disk", "full disk", command) == []


@pytest.mark.parametrize("command", ON_DISK)
def test_a_read_only_disk_is_an_error_of_one_line(findings, command, tmp_path):
    if not disk.can_mount(tmp_path):
        pytest.skip("no file system can be mounted here")
    assert findings("disk", "read-only disk", command) == []


@pytest.mark.parametrize("target", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(findings, target):
    assert findings("hostile", "hostile files", target) == []


@pytest.mark.parametrize("command", RACES)
def test_of_two_commands_that_write_the_same_file_neither_damages_it(findings, command):
    assert findings("races", "races", command) == []


def test_special_files_are_refused_before_they_are_read(findings):
    assert findings("special", "special files") == []
