"""What is checked and measured on a device, a function each; `tests.gpu.stage` calls them in a process of their own."""

import collections
import functools
import gc
import importlib
import time
from dataclasses import asdict
from unittest import mock

import torch

from tests.core import tape
from tests.gpu.small_runs import losses, no_graph, start, zipf_ids
from tests.gpu.stage import Skip, cause
from txlcli.config import recipe
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels import compilation
from txlcli.core.kernels.cuda_graph import GraphPool
from txlcli.core.kernels.device import check_precision, pick_device
from txlcli.core.measures.cost import step_flops_per_token
from txlcli.core.measures.profiling import StepProfiler
from txlcli.core.measures.timing import MIN_STEPS, measure, peak_flops_per_s
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.errors import UsageError
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.speed import Bench

REPEAT = 3
COPIED_BYTES = {"cuda": 4 << 30, "cpu": 1 << 26}
LONG_RUN = {"cuda": ("train.compile=on",), "cpu": ()}
"""What `train.compile = "auto"` chooses for a run of more than some minutes."""
STEPS_OF_BF16 = 300
LARGEST_RATIO = 1.5
"""Of the error of a gradient in bf16 to autocast's: rounding differs by chance."""
SMOKE_STEPS = 6
LARGEST_ERROR = {"loss": 1e-2, "gradient norm": 5e-2}
"""Relative differences of two ways to compute the same steps in bf16."""
WARM_UP_STEPS = 3
"""With a full memory: one compiles and captures the gradients, one captures the update, one replays both."""
PROFILED_STEPS = 3
MAX_KERNELS, PRINTED_KERNELS = 40, 8
"""Kernels of a training step to record and to print, those that take the most time."""
TOY_V = 509
TOY = (
    *("model.n_layers=2", "model.d_model=24", "model.n_heads=2", "model.d_head=12", "model.d_inner=40"),
    *("train.seg_len=8", "train.mem_len=8", "train.batch_size=3", "train.valid_seg_len=8"),
)
TOY_READING = ("eval.seg_len=8", "eval.mem_len=24", "eval.max_distance=12")
KINDS = {
    "Inductor": ("triton_",),
    "attention": ("forward_kernel", "backward_of_", "token_kernel", "combine_kernel"),
    "products": ("gemm", "nvjet", "cutlass", "cublas", "xmma"),
    "copies and fills": ("Memcpy", "Memset", "copy", "fill"),
}
"""Parts of the names of kernels, by kind; the first that fits counts."""


def copy_rate(device):
    """Bytes read and written per second by a copy of a large tensor."""
    size = COPIED_BYTES[device]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros(size, dtype=torch.uint8, device=device)
    timing = measure(lambda: target.copy_(source), torch.device(device), tokens=1, repeat=5, steps=10)
    return {"bytes_per_s": 2e3 * size / timing.median}


def product_rate(device, precision):
    """Operations per second of a large matrix product."""
    check_precision(precision, torch.device(device))
    return {"flops_per_s": peak(torch.device(device), precision, REPEAT)}


@functools.cache
def peak(device, precision, repeat):
    """Rate of a large product, measured once in each process."""
    return peak_flops_per_s(device, precision, repeat=repeat)


class Captures(tape.Graphs):
    """Makes the graphs of a training run, and keeps why one could not be made."""

    def __init__(self, capture_graph):
        super().__init__(capture_graph)
        self.failures = []

    def __call__(self, run, device, **options):
        try:
            return super().__call__(run, device, **options)
        except UsageError as error:
            self.captured -= 1
            self.failures += cause(error)
            raise


def captures_of(device):
    """Return what captures the graphs of a training run by default; on a CPU a stand-in calls the function again."""
    return Captures(GraphPool() if device.type == "cuda" else tape.call_again)


def forget_compiled(device):
    """Forget what earlier rows compiled and allocated."""
    gc.collect()
    if device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def settings_of(name, changes, *, toy):
    """Return a recipe in bf16 with changes, and its vocabulary size; small ones for a toy."""
    if toy:
        cutoffs = ["model.cutoffs=[101, 307]"] if "wt103" in name else []
        changes = [*TOY, *TOY_READING, *cutoffs, *(change for change in changes if "batch_size" not in change)]
    settings = recipe.load(name, ["train.precision=bf16", *changes])
    return settings, TOY_V if toy else settings.published.vocab_size


def make_training(settings, vocab_size, device, capture_graph, steps):
    """Return a training run with random weights on random tokens that suffice for so many steps."""
    train = settings.train
    check_precision(train.precision, device)
    ids = zipf_ids(vocab_size, train.batch_size * (train.seg_len * (steps + 1) + train.reread_len) + 1)
    model = new_model(settings.model, vocab_size, seed=train.seed, device=device)
    return Training(model, train, TrainingSegments(ids, train), capture_graph=capture_graph)


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def filling_steps(train):
    """Return the number of steps before the memory is full."""
    return -(-(train.mem_len + train.reread_len) // train.seg_len)


def path_of(training, captures):
    """Return which path the steps take, and why it is not the default one."""
    facts = {"path": training.path, "graphs": captures.captured, "replays": captures.replays}
    fell_back = [*training.notes, *captures.failures]
    return facts | ({"fell_back": fell_back} if fell_back else {})


def first_steps(name, changes, device):
    """Compile and capture what `training` times, for the compiler's cache on disk, with a quarter of the memory."""
    place = pick_device(device)
    torch.cuda.set_per_process_memory_fraction(0.25)
    settings, vocab_size = settings_of(name, [*LONG_RUN[device], *changes], toy=False)
    warm_up = filling_steps(settings.train) + 1
    training = make_training(settings, vocab_size, place, captures_of(place), warm_up)
    for _ in range(warm_up):
        training.update()


def smoke(device, toy):
    """Compare a few steps of enwik8 with two layers by the default path with eager ones and with the definition.

    Compiled, captured, in bf16, without dropout; the memory is full from the first step on.
    """
    place = pick_device(device)
    changes = ["model.n_layers=2", "model.dropout=0.0", "model.memory_start=zeros"]
    changes += ["train.lr=1e-3", "train.warmup_steps=0"]
    paths = {
        "default": (LONG_RUN[device], captures_of(place)),
        "eager": (("train.compile=off",), Captures(no_graph)),
        "reference": (("train.compile=off", "train.attention=reference"), Captures(no_graph)),
    }
    found, facts = {}, {}
    for path, (of_path, captures) in paths.items():
        forget_compiled(place)
        settings, vocab_size = settings_of("enwik8", [*changes, *of_path], toy=toy)
        training = make_training(settings, vocab_size, place, captures, SMOKE_STEPS)
        began = time.monotonic()
        steps = []
        for step in range(SMOKE_STEPS):
            result = training.update()
            steps.append([float(result.loss), float(result.grad_norm)])
            if step == 0:
                yield {f"first_step_s_{path}": round(time.monotonic() - began, 2)}
        found[path] = torch.tensor(steps)  # (steps, 2)
        if not found[path].isfinite().all():
            raise AssertionError(f"losses and norms of gradients are not finite, {path}: {steps}")
        yield {f"steps_{path}": steps}
        if path == "default":
            facts = path_of(training, captures)
            yield facts
        del training
    errors = {
        f"{what} from {path}": float(((found["default"] - found[path]) / found[path]).abs().max(0).values[column])
        for path in ("eager", "reference")
        for column, what in enumerate(LARGEST_ERROR)
    }
    yield {"largest_error": errors["loss from eager"], "errors": errors}
    yield {"lines": [", ".join(f"{what} {error:.1e}" for what, error in errors.items())]}
    wrong = [what for what, error in errors.items() if not error < LARGEST_ERROR[what.partition(" from ")[0]]]
    if wrong:
        raise AssertionError(f"different in bf16: {', '.join(wrong)}")
    if "fell_back" in facts:
        raise AssertionError(f"the default path was not taken: {facts['fell_back'][0]}")


def training(name, changes, device, toy, compiler_options=None):
    """Time optimizer steps of the default path after all captures, then list the kernels of exactly three replays.

    Compiler options replace those of the program.
    """
    place = pick_device(device)
    forget_compiled(place)
    settings, vocab_size = settings_of(name, [*LONG_RUN[device], *changes], toy=toy)
    train, captures = settings.train, captures_of(place)
    repeat, count = (1, 1) if toy else (REPEAT, MIN_STEPS)
    warm_up = filling_steps(train) + WARM_UP_STEPS
    with mock.patch.dict(compilation.COMPILER_OPTIONS, compiler_options or {}):
        timed = make_training(settings, vocab_size, place, captures, warm_up + repeat * count + PROFILED_STEPS)
        parameters = sum(parameter.numel() for parameter in timed.model.parameters())
        yield {"recipe": name, "parameters": parameters}
        began = time.monotonic()
        for _ in range(warm_up):
            timed.update()
        synchronize(place)
    yield {"warm_up_s": round(time.monotonic() - began, 2), **path_of(timed, captures)}
    graphs, replays = captures.captured, captures.replays
    tokens = train.batch_size * train.seg_len
    timing = measure(timed.update, place, tokens=tokens, repeat=repeat, steps=count, warm_up=0)
    flops = step_flops_per_token(settings.model, vocab_size, train)
    yield {
        "tokens_per_s": 1e3 / timing.median,
        "ms_per_step": timing.median * tokens,
        "low_high_ms_per_step": [ms * tokens for ms in timing.low_high],
        "tokens_per_step": tokens,
        "ms_per_token": timing.median,
        "graphs_in_timed_steps": captures.captured - graphs,
        "replays_per_timed_step": (captures.replays - replays) / (repeat * count),
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if place.type == "cuda" else None,
    }
    yield {"share_of_peak": 1e3 * flops / timing.median / peak(place, train.precision, repeat)}
    found = kernels_of(timed, place)
    eager = repeat * count - (captures.replays - replays) / 2 + PROFILED_STEPS
    if eager:
        found["lines"].append(f"{eager:g} of {repeat * count + PROFILED_STEPS} steps were not replayed in full")
    yield found


def kernels_of(training, device):
    """Return the kernels of three steps by name and by kind."""
    profiler = StepProfiler(on_cuda=device.type == "cuda", after=0, steps=PROFILED_STEPS)
    synchronize(device)
    profiler.on_step(0)
    for _ in range(PROFILED_STEPS):
        training.update()
    synchronize(device)
    profiler.on_step(PROFILED_STEPS)
    profile = profiler.result
    kinds = collections.Counter()
    for kernel in profile.kernels:
        kinds[kind_of(kernel.name)] += kernel.ms_per_step
    lines = [", ".join(f"{kind} {ms:.2f} ms" for kind, ms in kinds.most_common())]
    lines[0] = f"{profile.calls_per_step:.0f} kernels a step, {profile.ms_per_step:.2f} ms: {lines[0]}"
    for kernel in profile.kernels[:PRINTED_KERNELS]:
        lines.append(f"{kernel.ms_per_step:7.3f} ms {kernel.calls_per_step:5.0f}x  {kernel.name[:76]}")
    return {
        "profiled_ms": profile.ms_per_step,
        "profiled_kernels": profile.calls_per_step,
        "ms_by_kind": dict(kinds.most_common()),
        "kernels": [asdict(kernel) for kernel in profile.kernels[:MAX_KERNELS]],
        "lines": lines,
    }


def kind_of(kernel):
    return next((kind for kind, parts in KINDS.items() if any(part in kernel for part in parts)), "other")


def first_gradient(device, *changes, dtype):
    """Return the gradient of the first step: what plain descent at a rate of 1 takes from the weights."""
    training = start(device, "train.optimizer=sgd", "train.lr=1.0", "train.clip=none", *changes, dtype=dtype)
    before = weights(training)
    training.update()
    return before - weights(training)


def weights(training):
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
    exact = gradient["float64"]
    spread = float(last["float64"].std())
    errors = {path: float((found - exact).norm() / exact.norm()) for path, found in gradient.items()}
    difference = float((last["default"] - last["autocast"]).abs().mean())
    yield {"steps": steps, "difference_nats": difference, "spread_of_seeds_nats": spread, "gradient_errors": errors}
    if difference > spread or errors["default"] > LARGEST_RATIO * errors["autocast"]:
        raise AssertionError("bf16 is farther from float64 than by autocast, or than seeds are from each other")


def bench(name, changes, device_name, *, toy, compiles):
    """Return a bench of a recipe in bf16 with random weights."""
    device = pick_device(device_name)
    forget_compiled(device)
    settings, vocab_size = settings_of(name, changes, toy=toy)
    model = new_model(settings.model, vocab_size, seed=settings.train.seed, device=device)
    reading_compile = "on" if compiles and device_name == "cuda" else "off"
    model = model.on(attention=settings.train.attention, reading_compile=reading_compile)
    repeat = 1 if toy else REPEAT
    return Bench(model, settings, Reporter(), repeat=repeat, peak=peak(device, settings.train.precision, repeat))


def evaluation(name, batch_size, device, toy, compiles=True):
    """Time segments with a full memory."""
    timed = bench(name, (), device, toy=toy, compiles=compiles)
    yield asdict(timed.evaluation(3 if toy else batch_size))


def single_tokens(name, mem_len, device, toy, compiles=True):
    """Time one token at a time with a full memory."""
    timed = bench(name, [f"eval.mem_len={mem_len}"], device, toy=toy, compiles=compiles)
    yield asdict(timed.single_tokens())


def with_peer(name, comparison, device, toy):
    """Compare a row with Hugging Face's TransfoXL, in one precision of the peer."""
    try:
        importlib.import_module("tests.benchmarks.rows")
    except ImportError as error:
        raise Skip(f"the peer is not installed ({error}); see python -m tests.gpu wheels") from error
    from tests.benchmarks.peer import compare

    results = compare(name, comparison, pick_device(device), 1 if toy else REPEAT, quick=toy)
    ours, theirs = results[0]["txl_ms_per_token"], results[0]["peer_ms_per_token"]
    lines = [f"txl {1e3 / ours:,.0f}, TransfoXL {1e3 / theirs:,.0f} tokens/s"]
    return {"ratio": results[0]["ratio"], "results": results, "lines": lines}
