"""Stage A: do all kernels compute what they should, and what is the fastest that the card can do?

python -m tests.gpu.correctness [--device cuda|cpu] [--toy] [--only NAME] [--minutes 7] [--json FILE]

Rows: the rates of copies and of matrix products, a small training with an evaluation, and each test of `test_cuda_*.py`
by each attention backend. On a CPU, the tests of CUDA are skipped.
"""

import ast
import contextlib
import io
from pathlib import Path

import typer

from tests.gpu.stage import Device, JsonFile, Minutes, Only, Skip, Toy, new_stage

DIRECTORY = Path(__file__).parent
OF_BOTH_DEVICES = DIRECTORY / "test_cuda_steps.py"
"""Its tests that need no CUDA run on a CPU."""
COPIED_BYTES = {"cuda": 4 << 30, "cpu": 1 << 26}
PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}
BACKENDS = ("reference", "auto", "sdpa", "triton", "flex")
MAX_SECONDS = 120.0  # of a row of tests, compilation included


def copy_rate(device):
    """Bytes read and written per second by a copy of a large tensor."""
    import torch

    from txlcli.core.measures.timing import measure

    size = COPIED_BYTES[device]
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    timing = measure(lambda: target.copy_(source), torch.device(device), tokens=1, repeat=5, steps=10)
    return {"bytes_per_s": 2e3 * size / timing.median}


def product_rate(device, precision):
    """Operations per second of a large matrix product."""
    import torch

    from txlcli.core.kernels.device import check_precision
    from txlcli.core.measures.timing import peak_flops_per_s

    check_precision(precision, torch.device(device))
    return {"flops_per_s": peak_flops_per_s(torch.device(device), precision)}


def cases(files=None):
    """Each test of CUDA as `file::function`, with each of its attention backends, without importing them."""
    for file in sorted(DIRECTORY.glob("test_cuda_*.py")) if files is None else files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                has_backends = "backend" in {argument.arg for argument in node.args.args}
                yield from ((f"{file}::{node.name}", backend) for backend in (BACKENDS if has_backends else (None,)))


class Outcomes:
    """A plugin of pytest that tells how the tests have ended, after each of them."""

    def __init__(self, tell):
        self.passed, self.failed, self.skipped, self._tell = 0, {}, {}, tell

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("::")[2]
        if report.failed:
            self.failed[name] = report.longreprtext[-4000:]
        elif report.skipped:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        elif report.when == "call":
            self.passed += 1
        if report.when == "teardown":
            self._tell({"passed": self.passed, "failed": self.failed, "skipped": self.skipped})

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed[report.nodeid] = report.longreprtext[-4000:]
            self._tell({"failed": self.failed})


def run_tests(test, backend, tell):
    """Run a test function with all its parameters, or with those of an attention backend."""
    import pytest

    outcomes, text = Outcomes(tell), io.StringIO()
    options = [
        "-q",
        *["-n", "0", "-p", "no:cacheprovider"],
        "-m",
        "slow or not slow",
        *(["-k", backend] if backend else []),
    ]
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = pytest.main([*options, test], plugins=[outcomes])
    if outcomes.failed:
        raise AssertionError(f"{len(outcomes.failed)} of {outcomes.passed + len(outcomes.failed)} cases failed")
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise Skip(f"the test has no case of {backend}")
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest ended with {code!r}: {text.getvalue()[-1000:]}")
    if not outcomes.passed:
        raise Skip("; ".join(outcomes.skipped))


def small_run(device):
    """Train a small model for some steps, and read segments and single tokens with it, in every attention backend."""
    import torch

    from tests.core.builders import draw_tokens, make_decoder
    from tests.gpu.test_cuda_steps import DROPOUT, V, start

    found = {}
    for backend in ("auto", "sdpa", *(["triton"] if device == "cuda" else [])):
        training = start(device, *DROPOUT, f"train.attention={backend}")
        loss = [float(training.update()[0]) for _ in range(4)][-1]
        model = training.model.eval()
        for batch_size, seg_len in ((3, 16), (1, 1)):
            decoder = make_decoder(model, batch_size=batch_size, seg_len=seg_len, mem_len=40)
            tokens = draw_tokens(batch_size, 40 * seg_len + 40, vocab_size=V).to(device)
            for part in tokens.split(seg_len, dim=1):
                hidden = decoder.read(part)
            if not torch.isfinite(hidden).all():
                raise FloatingPointError(f"attention {backend}: hidden states are not finite")
        found[f"{backend}_loss_nats"] = loss
    return found


def main(
    json_file: JsonFile = Path("gpu-correctness.json"),
    device: Device = "cuda",
    toy: Toy = False,
    only: Only = None,
    minutes: Minutes = 7.0,
) -> None:
    """Check every kernel on a device, and measure its ceilings."""
    stage = new_stage("correctness", device=device, toy=toy, json_file=json_file, minutes=minutes, only=only)
    stage.run("copy", copy_rate, device=device)
    for precision in PRECISIONS[device]:
        stage.run(f"product, {precision}", product_rate, device=device, precision=precision)
    stage.run("small run", small_run, device=device)
    for test, backend in cases([OF_BOTH_DEVICES] if toy else None):
        row = test.partition("::")[2] + (f", {backend}" if backend else "")
        stage.run(row, run_tests, at_most_s=MAX_SECONDS, test=test, backend=backend)
    raise typer.Exit(stage.end())


if __name__ == "__main__":
    typer.run(main)
