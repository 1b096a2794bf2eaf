"""GPUs are visible to tests that use them, and to no others."""

from pathlib import Path

import pytest

from tests.conftest import hides_gpus

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("arguments", "hidden"),
    [
        (["gpu"], False),
        (["gpu/test_cuda_core.py::test_a", "core/kernels"], False),
        (["gpu", "commands/test_train.py::test_a"], True),
        ([""], True),
    ],
)
def test_gpus_are_hidden_from_tests_that_expect_a_cpu(arguments, hidden):
    assert hides_gpus([str(HERE / argument) for argument in arguments]) is hidden
