"""GPUs are visible to tests that use them, and to no others."""

import subprocess
import sys
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


def test_pytest_hides_gpus_before_torch_is_imported(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    code = (
        "import os, sys, pytest\n"
        "class Report:\n"
        "    def pytest_sessionstart(self):\n"
        "        print('visible', repr(os.environ['CUDA_VISIBLE_DEVICES']), 'torch' in sys.modules)\n"
        "        pytest.exit('seen', returncode=0)\n"
        "pytest.main(['-q', '-s', '-n', '0', 'tests'], plugins=[Report()])\n"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=300, check=True)
    assert "visible '' False" in ended.stdout
