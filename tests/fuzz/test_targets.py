"""The targets of fuzzing accept what is valid, and notice what is neither accepted nor refused in one line."""

import pytest

from tests.faults.sample import build
from tests.fuzz import targets


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
    with targets.working_directory() as work:
        function = target.reader(sample, work)
        assert any(map(function, seeds))
        for seed in seeds:
            for end in (len(seed), len(seed) // 2, 1, 0):
                function(seed[:end])
