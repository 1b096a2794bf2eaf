"""What can be known of `--device mps` without a GPU of Apple's: no operation needs what these GPUs lack.

They have no float64 and few operations on sparse tensors, and copy memory of the host that may be free again if a copy
is asynchronous. A fake device stands for one, in a process of its own.
"""

import shutil
import sys

import pytest

from tests.core import fake_apple, fake_devices
from tests.core.device_cases import CASES

QUICK = ["relative", "alibi", "adaptive softmax", "measures", "generators"]

if sys.platform != "linux" or shutil.which("g++") is None:
    pytest.skip("the fake device needs Linux and g++", allow_module_level=True)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["noticed", *QUICK], id="some models"),
        pytest.param([case for case in CASES if case not in QUICK], id="all others", marks=pytest.mark.slow),
    ],
)
def test_an_apple_gpu_computes_every_operation(tmp_path, names):
    library = tmp_path / "libfakeapple.so"
    compiler = fake_devices.build(library, fake_apple.SOURCE)
    assert not compiler.returncode, compiler.stderr
    problems = fake_devices.call(library, "tests.core.fake_apple.checks:failures", names)
    assert not problems, "\n".join(problems)
