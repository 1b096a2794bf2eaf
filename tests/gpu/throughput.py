"""Stage B: how fast are training, evaluation and single tokens, by every attention backend?

python -m tests.gpu.throughput [--device cuda|cpu] [--toy] [--only NAME] [--minutes 9] [--json FILE]

Random tokens and weights, the sizes of the recipes. Each row is timed as `txl speed` times it; rows of a profile list
the kernels that take the most time; rows of the peer compare with Hugging Face's TransfoXL, as `tests.benchmarks.peer`.
"""

import functools
import gc
import importlib
from dataclasses import asdict
from pathlib import Path

import torch
import typer

from tests.benchmarks.peer import COMPARISONS, compare
from tests.gpu.stage import Device, JsonFile, Minutes, Only, Skip, Toy, new_stage
from txlcli.config import recipe
from txlcli.core.kernels.device import pick_device
from txlcli.core.measures.timing import peak_flops_per_s
from txlcli.core.training.loop import new_model
from txlcli.workflows.reporter import CallbackReporter
from txlcli.workflows.speed import Bench
from txlcli.workflows.training.plan import check_device

REPEAT = 3
MAX_SECONDS = 150.0  # of a row, compilation included
TRAINED = {"enwik8": (), "wt103": (), "wt103-nvidia": ("train.batch_size=32",)}
"""Recipes whose training is timed, with changes: NVIDIA's batch of 256 is that of eight GPUs."""
QUICKLY_BUILT = {
    "auto": (),
    "triton": ("train.attention=triton",),
    "cuda graph": ("train.cuda_graph=true",),
    "triton, cuda graph": ("train.attention=triton", "train.cuda_graph=true"),
    "sdpa": ("train.attention=sdpa",),
}
COMPILED = {
    "compile": ("train.compile=true",),
    "triton, compile": ("train.attention=triton", "train.compile=true"),
    "flex": ("train.attention=flex",),
}
WITHOUT_CUDA = ("auto", "sdpa")
EVALUATED = {"enwik8": (10, 1), "wt103-nvidia": (16,)}
"""Batch sizes of evaluations."""
MEMORIES = (1600, 3800)
"""Memory lengths of single tokens."""
ROWS_OF_PEER = ("training-b22", "eval10", "eval1", "token1600", "wt103-training-b60", "memory-b22")
TOY_ROWS_OF_PEER = ("training", "eval1")
TOY_V = 509
TOY = (
    *("model.n_layers=2", "model.d_model=24", "model.n_heads=2", "model.d_head=12", "model.d_inner=40"),
    *("train.seg_len=8", "train.mem_len=8", "train.batch_size=3", "train.valid_seg_len=8"),
)
TOY_READING = ("eval.seg_len=8", "eval.mem_len=24", "eval.max_distance=12")


@functools.cache
def peak(device, precision, repeat):
    """Rate of a large product, measured once in each process."""
    return peak_flops_per_s(device, precision, repeat=repeat)


def bench(name, changes, device_name, *, toy, repeat=REPEAT):
    """Return a bench of a recipe with random weights; forget the models and the compiled layers of earlier rows."""
    gc.collect()
    if device_name == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()
    small = [*TOY, *TOY_READING, *(["model.cutoffs=[101, 307]"] if "wt103" in name else [])] if toy else []
    settings = recipe.load(name, [*small, *(change for change in changes if not toy or "batch_size" not in change)])
    device, train = pick_device(device_name), settings.train
    check_device(settings, device, processes=1)
    vocab_size = TOY_V if toy else settings.published.vocab_size
    model = new_model(settings.model, vocab_size, seed=train.seed, device=device)
    model.set_attention_backend(train.attention)
    reporter, precision = CallbackReporter(), train.precision
    repeat = 1 if toy else repeat
    of_machine = peak(device, precision, repeat)
    return Bench(model, settings, reporter, precision=precision, repeat=repeat, peak=of_machine)


def facts(timed, name):
    """Return what a row is about."""
    train = timed.settings.train
    return {
        "recipe": name,
        "parameters": sum(parameter.numel() for parameter in timed.model.parameters()),
        "precision": timed.precision,
        "attention": train.attention,
        "compile": train.compile,
        "cuda_graph": train.cuda_graph,
    }


def training(name, changes, device, toy):
    """Time optimizer steps."""
    timed = bench(name, changes, device, toy=toy)
    yield facts(timed, name)
    yield asdict(timed.training())


def evaluation(name, changes, batch_size, device, toy):
    """Time segments with a full memory."""
    timed = bench(name, changes, device, toy=toy)
    yield facts(timed, name)
    yield asdict(timed.evaluation(batch_size))


def single_tokens(name, changes, device, toy):
    """Time one token at a time with a full memory."""
    timed = bench(name, changes, device, toy=toy)
    yield facts(timed, name)
    yield asdict(timed.single_tokens())


def profile(name, changes, device, toy, shown=30):
    """List the operations that take the most time of some training steps, with those that fill the memory."""
    timed = bench(name, changes, device, toy=toy, repeat=1)
    yield facts(timed, name)
    # Kernels alone on a GPU: the events of the host are many times as many, and take a minute to add up.
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CUDA if device == "cuda" else activity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        steps = asdict(timed.training())
    found, order = profiler.key_averages(), "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    if device == "cuda":
        kernels = [event for event in found if event.device_type == torch.autograd.DeviceType.CUDA]
        times = [(event.key, event.count, event.self_device_time_total) for event in kernels]
    else:
        times = [(event.key, event.count, event.self_cpu_time_total) for event in found]
    total = sum(us for _, _, us in times)
    times.sort(key=lambda operation: -operation[2])
    yield {
        "profiled": steps,
        "total_us": total,
        "operations": [
            {"name": name, "calls": calls, "us": us, "share": us / total} for name, calls, us in times[:shown]
        ],
        "table": found.table(sort_by=order, row_limit=shown, max_name_column_width=60),
    }


def with_peer(name, comparison, device, toy):
    """Compare a row with the peer, in one precision of the peer."""
    try:
        importlib.import_module("tests.benchmarks.rows")
    except ImportError as error:
        raise Skip(f'the peer is not installed ({error}); pip install -e ".[peer]"') from error
    return {"results": compare(name, comparison, pick_device(device), 1 if toy else REPEAT, quick=toy)}


def compare_with_peer(stage, device, *, toy):
    for comparison in COMPARISONS[device]:
        for name in TOY_ROWS_OF_PEER if toy else ROWS_OF_PEER:
            stage.run(
                f"peer {name}, {comparison.peer}",
                with_peer,
                at_most_s=MAX_SECONDS,
                name=name,
                comparison=comparison,
                device=device,
                toy=toy,
            )


def main(
    json_file: JsonFile = Path("gpu-throughput.json"),
    device: Device = "cuda",
    toy: Toy = False,
    only: Only = None,
    minutes: Minutes = 9.0,
) -> None:
    """Time training, evaluation and single tokens on a device."""
    stage = new_stage("throughput", device=device, toy=toy, json_file=json_file, minutes=minutes, only=only)
    run = functools.partial(stage.run, at_most_s=MAX_SECONDS, device=device, toy=toy)
    bf16 = ("train.precision=bf16",)

    def time_variants(variants, names=tuple(TRAINED)):
        for name in names:
            for variant, changes in variants.items():
                captures_bands = "cuda graph" in variant and name == "wt103"  # the recipe rejects it
                if (device == "cuda" and not captures_bands) or variant in WITHOUT_CUDA:
                    run(f"training {name}, {variant}", training, name=name, changes=(*TRAINED[name], *bf16, *changes))

    time_variants(QUICKLY_BUILT)
    for name, batch_sizes in EVALUATED.items():
        for batch_size in batch_sizes:
            for backend in ("auto", "triton", "sdpa") if device == "cuda" else WITHOUT_CUDA:
                run(
                    f"evaluation {name}, B {batch_size}, {backend}",
                    evaluation,
                    name=name,
                    changes=(*bf16, f"train.attention={backend}"),
                    batch_size=3 if toy else batch_size,
                )
    for mem_len in MEMORIES:
        changes = (*bf16, f"eval.mem_len={mem_len // 100 if toy else mem_len}")
        run(f"single tokens enwik8, M {mem_len}", single_tokens, name="enwik8", changes=changes)
    if device == "cuda":
        changes = (*TRAINED["wt103-nvidia"], "train.precision=tf32")
        run("training wt103-nvidia, auto, tf32", training, name="wt103-nvidia", changes=changes)
    for name in ("enwik8", "wt103"):
        run(f"profile {name}", profile, name=name, changes=bf16)
    compare_with_peer(stage, device, toy=toy)
    time_variants(COMPILED)
    raise typer.Exit(stage.end())


if __name__ == "__main__":
    typer.run(main)
