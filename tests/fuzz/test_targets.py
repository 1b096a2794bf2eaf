"""The targets of fuzzing accept what is valid, and notice what is neither accepted nor refused in one line."""

import pytest

from tests.faults.sample import build
from tests.fuzz import targets
from txlcli.errors import RunError


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return build(tmp_path_factory.mktemp("sample") / "sample").directory


@pytest.mark.slow
@pytest.mark.parametrize("name", targets.NAMES)
def test_a_target_reads_its_seeds_and_beginnings_of_them(sample, name):
    target = targets.named(name)
    seeds = target.seeds(sample)
    assert seeds
    assert all(len(seed) <= targets.MAX_BYTES for seed in seeds)
    with targets.opened(target, sample) as function:
        for seed in seeds:
            for end in (len(seed), len(seed) // 2, 1, 0):
                function(seed[:end])


def test_a_refusal_is_no_defect():
    @targets.refused
    def refuse(data):
        raise RunError("damaged")

    assert refuse(b"") is None


@pytest.mark.parametrize("error", [KeyError("a"), RunError(""), UnicodeDecodeError("utf-8", b"", 0, 1, "x")])
def test_another_exception_is_a_defect(error):
    @targets.refused
    def fail(data):
        raise error

    with pytest.raises((KeyError, ValueError)):
        fail(b"")
