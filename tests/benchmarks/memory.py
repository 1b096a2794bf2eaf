"""The most memory that training takes above what the model held before, in this process alone.

On CUDA it is the memory of tensors.

python -m tests.benchmarks.memory ROW txl|peer fp32|tf32|bf16 cpu|cuda [--quick]
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

CPU = torch.device("cpu")
STEPS = 2  # the second one finds a memory


def measure(row, contestant, precision, *, quick, device=CPU):
    """Bytes (before, peak) of a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", row, contestant, precision, device.type]
    done = subprocess.run([*command, *(["--quick"] if quick else [])], check=True, stdout=subprocess.PIPE)
    told = json.loads(done.stdout)
    return told["before_bytes"], told["peak_bytes"]


def held_bytes(device):
    """Bytes that the process has in memory; on CUDA, those of its tensors."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@contextmanager
def peak_memory(device):
    """Yield a list that holds the peak memory of the block in bytes after it; it stays empty if that is unknown.

    On CUDA it is the memory of tensors; on a CPU of the whole process (Linux only, if the mark can be reset).
    """
    peak_bytes = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak_bytes
        peak_bytes.append(torch.cuda.max_memory_allocated(device))
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        was_reset = True
    except OSError:
        was_reset = False
    yield peak_bytes
    if was_reset:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        peak_bytes += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]


def main():
    from tests.benchmarks import rows
    from tests.benchmarks.contestants import fresh_model, step_of

    name, contestant, precision, device_name, *options = sys.argv[1:]
    device = torch.device(device_name)
    row = rows.ROWS[name]
    if options == ["--quick"]:
        row = rows.quick(row)
    model = fresh_model(contestant, row.work, device)
    before = held_bytes(device)
    step = step_of(contestant, model, row.work)
    with peak_memory(device) as peak:
        for _ in range(STEPS):
            step(precision)
    if not peak:
        sys.exit("this system does not tell the peak of a process's memory; leave out the row")
    print(json.dumps({"before_bytes": before, "peak_bytes": peak[0]}))


if __name__ == "__main__":
    main()
