"""What is checked and measured on a device, a function each; `tests.gpu.stage` calls them in a process of their own."""

import collections
import functools
import gc
import importlib
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import torch

from tests.benchmarks.peer import compare
from tests.gpu.stage import Skip
from tests.gpu.test_cuda_steps import losses, start
from txlcli.config import recipe
from txlcli.core.kernels.device import check_precision, pick_device
from txlcli.core.measures.profiling import StepProfiler
from txlcli.core.measures.timing import measure, peak_flops_per_s
from txlcli.core.training.loop import new_model
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.speed import Bench
from txlcli.workflows.training.build import check_device

REPEAT = 3
COPIED_BYTES = {"cuda": 4 << 30, "cpu": 1 << 26}
NOT_FOR_TESTS = 3
"""Cores that the processes of the tests leave to others."""
LONG_RUN = {"cuda": ("train.compile=on",), "cpu": ()}
"""What `train.compile = "auto"` chooses for a run of more than some minutes."""
STEPS_OF_BF16 = 300
LARGEST_RATIO = 1.5
"""Of the error of a gradient in bf16 to autocast's: rounding differs by chance."""
MAX_KERNELS = 12
"""Kernels of a training step to list, those that take the most time."""
TOY_V = 509
TOY = (
    *("model.n_layers=2", "model.d_model=24", "model.n_heads=2", "model.d_head=12", "model.d_inner=40"),
    *("train.seg_len=8", "train.mem_len=8", "train.batch_size=3", "train.valid_seg_len=8"),
)
TOY_READING = ("eval.seg_len=8", "eval.mem_len=24", "eval.max_distance=12")


def copy_rate(device):
    """Bytes read and written per second by a copy of a large tensor."""
    size = COPIED_BYTES[device]
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    timing = measure(lambda: target.copy_(source), torch.device(device), tokens=1, repeat=5, steps=10)
    return {"bytes_per_s": 2e3 * size / timing.median}


def product_rate(device, precision):
    """Operations per second of a large matrix product."""
    check_precision(precision, torch.device(device))
    return {"flops_per_s": peak_flops_per_s(torch.device(device), precision)}


def run_tests(files, seconds):
    """Run files of tests in parallel processes; the result counts them, and has the end of what each failure says."""
    processes = max(1, (os.cpu_count() or 1) - NOT_FOR_TESTS)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "tests.xml"
        options = [
            "-q",
            "-n",
            f"{processes}",
            "-p",
            "no:cacheprovider",
            "-m",
            "slow or not slow",
            f"--junitxml={report}",
        ]
        command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if not report.exists():
            raise RuntimeError(f"pytest ended with {ended.returncode}: {(ended.stdout + ended.stderr)[-1000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    problems = [(case, problem) for case in cases for kind in ("failure", "error") for problem in case.iter(kind)]
    failed = {f"{case.get('classname')}::{case.get('name')}": (told.text or "")[-4000:] for case, told in problems}
    skipped = collections.Counter(reason.get("message") for case in cases for reason in case.iter("skipped"))
    yield {"passed": len(cases) - len(failed) - skipped.total(), "failed": failed, "skipped": dict(skipped)}
    if failed:
        raise AssertionError(f"{len(failed)} of {len(cases)} tests failed")
    if not cases:
        raise AssertionError("there are no tests")


@functools.cache
def peak(device, precision, repeat):
    """Rate of a large product, measured once in each process."""
    return peak_flops_per_s(device, precision, repeat=repeat)


def bench(name, changes, device_name, *, toy):
    """Return a bench of a recipe in bf16 with random weights; forget what earlier rows compiled."""
    gc.collect()
    if device_name == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()
    if toy:
        small = [*TOY, *TOY_READING, *(["model.cutoffs=[101, 307]"] if "wt103" in name else [])]
        changes = [*small, *(change for change in changes if "batch_size" not in change)]
    settings = recipe.load(name, ["train.precision=bf16", *changes])
    device, train, repeat = pick_device(device_name), settings.train, 1 if toy else REPEAT
    check_device(settings, device, processes=1)
    vocab_size = TOY_V if toy else settings.published.vocab_size
    model = new_model(settings.model, vocab_size, seed=train.seed, device=device)
    model.set_attention_backend(train.attention)
    of_machine = peak(device, train.precision, repeat)
    return Bench(model, settings, Reporter(), repeat=repeat, peak=of_machine)


def training(name, changes, device, toy):
    """Time optimizer steps, then list the kernels that take the most time of some."""
    timed = bench(name, (*LONG_RUN[device], *changes), device, toy=toy)
    yield {"recipe": name, "parameters": sum(parameter.numel() for parameter in timed.model.parameters())}
    yield asdict(timed.training())
    once = Bench(timed.model, timed.settings, Reporter(), repeat=1, peak=timed.peak)
    profiler = StepProfiler(on_cuda=device == "cuda", after=0, steps=1)
    profiler.on_step(0)
    once.training()
    profiler.on_step(1)
    profile = asdict(profiler.result)
    yield {"profiled_ms": profile["ms_per_step"], "profiled_kernels": profile["calls_per_step"]}
    yield {"kernels": profile["kernels"][:MAX_KERNELS]}


def first_gradient(device, *changes, dtype):
    """Return the gradient of the first step: what plain descent at a rate of 1 takes from the weights."""
    training = start(device, "train.optimizer=sgd", "train.lr=1.0", "train.clip=none", *changes, dtype=dtype)
    before, _, after = weights(training), training.update(), weights(training)
    return before - after


def weights(training):
    """Return all weights in float64."""
    return torch.cat([weight.detach().flatten() for weight in training.model.parameters()]).double().cpu()


def bf16_steps(device, toy):
    """Compare losses in bf16 by the default path with losses by autocast and in float64.

    The seeds of the weights show how much of a difference is chance. The first gradient is compared with the one of
    float64, too.
    """
    steps, seeds = (12, (5, 6)) if toy else (STEPS_OF_BF16, (5, 6, 7))
    options = [f"train.max_steps={steps}", "train.lr=1e-3"]
    whole = ["train.precision=bf16", "model.memory_start=zeros"]  # captured and compiled from the first step on
    paths = {
        "default": (device, [*whole, *LONG_RUN[device]], torch.float32),
        "autocast": (device, [*whole, "train.attention=reference"], torch.float32),
        "float64": ("cpu", ["model.memory_start=zeros"], torch.float64),
    }
    last, gradient = {}, {}
    for path, (place, changes, dtype) in paths.items():
        of_seeds = [losses(place, *options, *changes, dtype=dtype, seed=seed, steps=steps) for seed in seeds]
        last[path] = torch.stack(of_seeds)[:, -steps // 3 :].mean(1)
        gradient[path] = first_gradient(place, *changes, dtype=dtype)
        yield {f"losses_{path}": last[path].tolist()}
    exact, spread = gradient["float64"], float(last["float64"].std())
    errors = {path: float((found - exact).norm() / exact.norm()) for path, found in gradient.items()}
    difference = float((last["default"] - last["autocast"]).abs().mean())
    yield {"steps": steps, "difference_nats": difference, "spread_of_seeds_nats": spread, "gradient_errors": errors}
    if difference > spread or errors["default"] > LARGEST_RATIO * errors["autocast"]:
        raise AssertionError("bf16 is farther from float64 than by autocast, or than seeds are from each other")


def evaluation(name, batch_size, device, toy):
    """Time segments with a full memory."""
    return asdict(bench(name, (), device, toy=toy).evaluation(3 if toy else batch_size))


def single_tokens(name, mem_len, device, toy):
    """Time one token at a time with a full memory."""
    return asdict(bench(name, [f"eval.mem_len={mem_len}"], device, toy=toy).single_tokens())


def with_peer(name, comparison, device, toy):
    """Compare a row with Hugging Face's TransfoXL, in one precision of the peer."""
    try:
        importlib.import_module("tests.benchmarks.rows")
    except ImportError as error:
        raise Skip(f'the peer is not installed ({error}); pip install -e ".[peer]"') from error
    results = compare(name, comparison, pick_device(device), 1 if toy else REPEAT, quick=toy)
    return {"ratio": results[0]["ratio"], "results": results}
