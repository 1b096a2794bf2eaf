"""The most memory that training takes above what the model held before, in this process alone.

python -m tests.benchmarks.memory ROW txl|peer fp32|bf16 [--quick]
"""

import json
import subprocess
import sys
from pathlib import Path

import torch

from txlcli.core.measures.timing import peak_memory

STEPS = 2  # the second one finds a memory


def measure(row, contestant, precision, *, quick):
    """Bytes (before, peak) of a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", row, contestant, precision]
    done = subprocess.run([*command, *(["--quick"] if quick else [])], check=True, stdout=subprocess.PIPE)
    told = json.loads(done.stdout)
    return told["before_bytes"], told["peak_bytes"]


def resident_bytes():
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def main():
    from tests.benchmarks import rows
    from tests.benchmarks.contestants import fresh_model, step_of

    name, contestant, precision, *options = sys.argv[1:]
    row = rows.ROWS[name]
    if options == ["--quick"]:
        row = rows.quick(row)
    model = fresh_model(contestant, row.work)
    before = resident_bytes()
    step = step_of(contestant, model, row.work)
    with peak_memory(torch.device("cpu")) as peak:
        for _ in range(STEPS):
            step(precision)
    if not peak:
        sys.exit("this system does not tell the peak of a process's memory; leave out the row")
    print(json.dumps({"before_bytes": before, "peak_bytes": peak[0]}))


if __name__ == "__main__":
    main()
