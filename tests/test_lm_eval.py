"""The wrapper around lm-evaluation-harness without that package; tests/peer/test_lm_eval.py has the rest."""

import subprocess
import sys


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    code = "import sys; sys.modules['lm_eval'] = None; from txlcli.lm_eval import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: lm-evaluation-harness cannot be imported (")
    assert line.endswith('run pip install "lm_eval>=0.4.13" first')
