"""What can be known of `--device mps` without a GPU of Apple's: no operation needs what these GPUs lack.

They have no float64 and few operations on sparse tensors, and copy memory of the host that may be free again if a copy
is asynchronous. A fake device stands for one, in a process of its own: PyTorch must find it when it is loaded.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.device_cases import CASES
from tests.core.fake_apple import SOURCE
from tests.core.fake_cuda import build

ROOT = Path(__file__).parents[2]
QUICK = ["relative", "alibi", "t5", "rotary", "adaptive softmax", "recomputed layers", "measures", "generators"]

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
    compiler = build(library, SOURCE)
    assert not compiler.returncode, compiler.stderr
    command = [sys.executable, "-W", "ignore", "-m", "tests.core.fake_apple", str(library), *names]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr
    problems = json.loads(ended.stdout)
    assert problems == dict.fromkeys(names, ""), "\n".join(problems.values())
