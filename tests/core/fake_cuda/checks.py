"""Checks of code on the fake device, by group: each returns a result for JSON, or fails."""

import contextlib
import dataclasses
import itertools
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.core.device_cases import (
    EVERY_PRECISION,
    PRECISIONS,
    build,
    load,
    one_precision_each,
    read,
    start,
    that_read_differently,
)
from tests.core.fake_cuda import graphs, triton_device
from tests.core.fake_cuda.device import CUDA, GENERATOR, Kernels, pretending, world_of
from tests.core.fake_devices import outcomes
from tests.core.tape import call_again
from txlcli.core.kernels.cuda_graph import GraphPool
from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.measures.adaptation import score_with_cache
from txlcli.core.measures.recl import context_losses
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.sampling import Sampling, generate, reader_of_one_text
from txlcli.core.reading.scoring import Stream, score
from txlcli.core.reading.windows import score_windows
from txlcli.core.training import checkpoint
from txlcli.core.training.saving import Saver
from txlcli.errors import UsageError


def updates(case, precision):
    """Return the operations of training steps that waited for the device: eager ones, then a captured one."""
    settings = load(case, f"train.precision={precision}")
    with pretending() as watch:
        training = start(settings, build(case, settings, CUDA), capture_graph=watch.capture)
        watch.waits.clear()  # what a run allocates once may be copied from the host
        for _ in range(3):
            training.update()
    eager = ("attention written out", "compressive", "lstm", "qrnn", "vanilla")  # never, or not yet
    assert watch.replays or case in eager
    return watch.waits


def ops_of_deterministic_updates(case, precision):
    """Return the operations of two training steps with deterministic kernels that have no deterministic kernel."""
    settings = load(case, f"train.precision={precision}", "train.deterministic=true")
    with pretending() as watch, deterministic_kernels(CUDA, enabled=True, environ={}):
        training = start(settings, build(case, settings, CUDA), capture_graph=call_again)
        for _ in range(2):
            training.update()
    assert "mm" in watch.names
    return sorted(watch.names & NOT_DETERMINISTIC)


def reading(case, precision):
    """Return the operations that waited for the device: while reading segments, and between two sampled tokens."""
    settings = load(case)
    with pretending() as of_segments:
        model = build(case, settings, CUDA)
        _, hidden = read(settings, model, precision=precision)
        assert hidden.device == CUDA
    with pretending() as of_token:
        model = build(case, settings, CUDA).on(precision=precision)
        reader = reader_of_one_text(model, settings.eval)
        tokens = generate(reader, torch.zeros(9, dtype=torch.long), Sampling(top_p=0.9), seed=3)
        assert list(itertools.islice(tokens, 2)) == [0, 0]
        of_token.waits.clear()
        next(tokens)
    return of_segments.waits, of_token.waits


def reading_by_graphs(case):
    """Return the operations that waited for the device while segments were read as by graphs, and the captures."""
    settings, captures = load(case), []

    def capture(run, device):
        captures.append(device.type)
        return run

    with pretending() as watch:
        model = build(case, settings, CUDA).on(precision="bf16")
        decoder = Decoder(model, dataclasses.replace(settings.eval, batch_size=4), capture_graph=capture)
        tokens = torch.zeros(4, settings.eval.seg_len, dtype=torch.long, device=CUDA)
        for _ in range(2 * (settings.eval.mem_len + decoder.housekeeping_interval) // settings.eval.seg_len):
            decoder.read(tokens)
    return [watch.waits, captures]


def reading_after_failure():
    """Return the path of a reader before a kernel of attention fails and after, and what the user is told."""
    settings = load("relative")
    with pretending(lambda name: name == "txl::attention"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = build("relative", settings, CUDA).on(precision="bf16")
        reader = make_reader(model, dataclasses.replace(settings.eval, batch_size=2), length=100)
        before = reader.path
        tokens = torch.zeros(2, settings.eval.seg_len, dtype=torch.long, device=CUDA)
        hidden = [reader.read(tokens) for _ in range(2)]
        reader.losses(hidden[-1], torch.zeros(2, settings.eval.seg_len, dtype=torch.long))
    told = [str(warning.message) for warning in caught if "Triton" in str(warning.message)]
    return [before, reader.path, told]


def kernels_of_a_token(case, precision, batch_size):
    """Return the kernels of a single token for each layer, and all others: those of a model of two layers and three."""
    totals = []
    for layers in (2, 3):
        settings = load(case, f"model.n_layers={layers}")
        with pretending():
            model = build(case, settings, CUDA).on(precision=precision)
            how = dataclasses.replace(settings.eval, seg_len=1, batch_size=batch_size)
            decoder = Decoder(model, how, capture_graph=call_again)
            token = torch.zeros(batch_size, 1, dtype=torch.long, device=CUDA)
            decoder.read(token)
            with Kernels() as kernels:
                decoder.read(token)
        totals.append(kernels.names)
    of_layer = totals[1] - totals[0]
    return [of_layer.total(), totals[0].total() - 2 * of_layer.total(), dict(of_layer)]


def evaluation(case, method):
    """Return the operations that waited for the device while a text was scored in bf16."""
    settings = load(case)
    ids = np.zeros(400, dtype=np.int64)
    read, wanted, positions = ids[:-1], ids[1:], np.arange(200, 208)
    eval_settings = dataclasses.replace(settings.eval, batch_size=2)
    with pretending() as watch:
        model = build(case, settings, CUDA).on(precision="bf16")
        if method == "score":
            score(Stream(model, read, wanted, eval_settings))
        elif method == "cache":
            score_with_cache(Stream(model, read, wanted, eval_settings), size=100, thetas=[1.0, 2.0])
        elif method == "contexts":
            stream = Stream(model, read, wanted, dataclasses.replace(settings.eval, batch_size=4))
            context_losses(stream, positions, context_len=47)
        else:
            windows = dataclasses.replace(settings.eval, seg_len=43, mem_len=0)
            score_windows(Stream(model, read, wanted, windows), stride=13)
    return watch.waits


def _started_on_a_cpu(case, settings, *, steps):
    with tempfile.TemporaryDirectory() as directory:
        training = start(settings, build(case, settings, torch.device("cpu")), saver=Saver(Path(directory)))
        for _ in range(steps):
            training.update()
        training.save_last()
        training.saver.wait()
        return checkpoint.load(training.saver.last_path)


def _resumed(case, settings, saved):
    training = start(settings, build(case, settings, CUDA), capture_graph=call_again)
    GENERATOR.forget()
    training.restore(saved)
    return training


def resumed(precision):
    """Return the devices of all tensors that a run started on a CPU in fp32 restores on the fake device."""
    saved = _started_on_a_cpu("averaged", load("averaged"), steps=1)
    with pretending():
        training = _resumed("averaged", load("averaged", f"train.precision={precision}"), saved)
        training.update()
    states = [value for state in training.parallel.optimizer.state.values() for value in state.values()]
    tensors = [*training.memories[0], *training.average.weights.values(), *states]
    return sorted({str(tensor.device) for tensor in tensors})


def seeds_of_resumed_runs():
    """Count the different seeds that runs of two seeds set when they resume after one and after two steps."""
    seeds = set()
    for seed, steps in itertools.product((3, 4), (1, 2)):
        settings = load("relative", f"train.seed={seed}", "model.n_layers=1")
        saved = _started_on_a_cpu("relative", settings, steps=steps)
        logs = []
        for _ in range(2):
            with pretending():
                _resumed("relative", settings, saved)
            logs.append(GENERATOR.log)
        assert logs[0] == logs[1]
        ((call, number),) = logs[0]
        assert call == "seed"
        seeds.add(number)
    return len(seeds)


def generator_of_a_recomputed_step():
    """Return the states of the device's generator that a step of one layer reads and sets, numbered in order."""
    settings = load("recomputed", "model.n_layers=1")
    with pretending():
        training = start(settings, build("recomputed", settings, CUDA))
        before = torch.get_rng_state()
        GENERATOR.forget()
        training.update()
    assert torch.equal(torch.get_rng_state(), before)
    return list(GENERATOR.log)  # later checks add to it


def detected_waits():
    """Check that mixed devices are refused, and return the operations that wait."""
    with pretending() as watch:
        there = torch.zeros(3, device=CUDA)
        with pytest.raises(AssertionError, match="mixes"):
            there[torch.arange(2)]
        for wait in (lambda: float(there[0]), there.nonzero, there.tolist, there.cpu, lambda: bool(there.any())):
            wait()
            with torch.inference_mode():
                wait()
        watch.capture(lambda: torch.empty(3), CUDA)()
    return watch.waits


def failed_captures():
    """Return what is said of functions that fail in a capture; the pool captures another graph after each."""
    capture, reasons = GraphPool(), []

    def wait(tensor):
        tensor.sum().item()

    def wait_and_go_on(tensor):
        with contextlib.suppress(RuntimeError):
            tensor.sum().item()

    def fail(tensor):
        raise RuntimeError("no kernel for this")

    def too_large(tensor):
        raise torch.OutOfMemoryError

    with pretending():
        there = torch.zeros(3, device=CUDA)
        kept = []  # graphs, whose pool the next capture may use
        for run in (wait, wait_and_go_on, fail, too_large):
            try:
                capture(partial(run, there), CUDA, warm_up=0)
            except UsageError as error:
                reasons.append(str(error))
            assert graphs.DEVICE.is_clean
            there.bernoulli_()  # as dropout does
            kept.append(capture(there.bernoulli_, CUDA))
            assert graphs.DEVICE.is_clean
    for replay in kept:
        replay()
    return reasons


def graphs_beside_others_that_are_gone():
    """Replay graphs after others of their pool, and of more pools than there are streams; return pools left in use."""
    before = graphs.DEVICE.pools_in_use  # of captures that could not be ended
    with pretending():
        there = torch.zeros(3, device=CUDA)
        pool = GraphPool()
        first, gone, last = (pool(there.zero_, CUDA) for _ in range(3))
        del gone
        for _ in range(2 * graphs.STREAMS):
            GraphPool()(there.zero_, CUDA)()
            first()
            last()
    assert graphs.DEVICE.is_clean
    del first, last
    return sorted(graphs.DEVICE.pools_in_use - before)


def captured_updates(case, *changes):
    """Return the notes of a training run whose steps are captured by the program's own graphs."""
    settings = load(case, *changes)
    with pretending():
        training = start(settings, build(case, settings, CUDA))
        for _ in range(5):
            training.update()
    assert graphs.DEVICE.is_clean
    return training.notes


def path_after_failure(
    *, compiles="on", operator=None, captured_operator=None, captured_without_memory=None, kernels_of_compiler=None
):
    """Return the path of a training run of which a part fails, and what the user is told.

    Args:
        compiles: `train.compile`.
        operator: raises an error whenever it is called.
        captured_operator: raises one in a capture.
        captured_without_memory: runs out of memory in a capture.
        kernels_of_compiler: "compile" or "launch", which fails for each of them.
    """
    settings = load("relative", "train.precision=bf16", f"train.compile={compiles}", "model.n_layers=1")

    def fails(name):
        if graphs.DEVICE.capture is None:
            return name == operator
        if name == captured_without_memory:
            raise torch.OutOfMemoryError
        return name in (operator, captured_operator)

    torch.compiler.reset()
    with pretending(fails):
        training = start(settings, build("relative", settings, CUDA))
        triton_device.failures.add(kernels_of_compiler)
        for _ in range(5):
            training.update()
    triton_device.failures.clear()
    assert graphs.DEVICE.is_clean
    return [training.path, *training.notes]


def captured_updates_of_two(mode):
    """Return what one of two processes, which captures its first step, sends first in a capture, its notes and path."""
    changes = ("train.exchange_precision=bf16", "train.accumulate=2", "model.memory_start=zeros")
    settings = load("relative", f"train.parallel={mode}", *changes)
    with pretending() as watch:
        training = start(settings, build("relative", settings, CUDA), world=world_of(2))
        for _ in range(5):
            training.update()
    assert graphs.DEVICE.is_clean
    return [watch.sent_first_in_capture, training.notes, training.path]


def _each(check, combinations):
    return {" ".join(one): partial(check, *one) for one in combinations}


NOT_DETERMINISTIC = {
    *("bincount", "cumsum", "cumprod", "histc", "median", "kthvalue", "put_", "scatter_reduce", "nll_loss2d_forward"),
    *("reflection_pad1d_backward", "grid_sampler_2d_backward", "_ctc_loss_backward", "_embedding_bag_dense_backward"),
    *("adaptive_avg_pool2d_backward", "avg_pool3d_backward", "upsample_linear1d_backward", "flex_attention_backward"),
}
"""Operations that have no deterministic kernel on CUDA, as torch.use_deterministic_algorithms documents them."""

GROUPS = {
    "training": _each(updates, one_precision_each(1)),
    "determinism": _each(ops_of_deterministic_updates, one_precision_each(0)),
    "reading": _each(reading, that_read_differently(one_precision_each(2))),
    "training in every precision": _each(updates, EVERY_PRECISION),
    "determinism in every precision": _each(ops_of_deterministic_updates, EVERY_PRECISION),
    "reading in every precision": _each(reading, that_read_differently(EVERY_PRECISION)),
    "others": {
        **_each(
            evaluation, itertools.product(["relative", "lstm", "adaptive softmax"], ["score", "cache", "contexts"])
        ),
        **_each(evaluation, itertools.product(["vanilla"], ["score", "windows"])),
        **{f"resumed in {precision}": partial(resumed, precision) for precision in PRECISIONS},
        "seeds of resumed runs": seeds_of_resumed_runs,
        "generator of a recomputed step": generator_of_a_recomputed_step,
        "noticed": detected_waits,
        "failed captures": failed_captures,
        "graphs beside others": graphs_beside_others_that_are_gone,
        **{f"{case} captured": partial(captured_updates, case) for case in ("relative", "alibi", "lamb")},
        "documents captured": partial(captured_updates, "relative", "train.reset_at_documents=true"),
        **{f"one of two, {mode}": partial(captured_updates_of_two, mode) for mode in ("ddp", "zero")},
        **{f"{case} by graphs": partial(reading_by_graphs, case) for case in ("relative", "sinusoid", "learned")},
    },
    "failures": {  # the last one ends the use of Triton in this process
        "nothing": path_after_failure,
        "a capture": partial(path_after_failure, captured_operator="mm"),
        "a capture without memory": partial(path_after_failure, captured_without_memory="mm"),
        "compiling": partial(path_after_failure, kernels_of_compiler="compile"),
        "launching": partial(path_after_failure, kernels_of_compiler="launch"),
        "the update": partial(path_after_failure, compiles="off", operator="txl::adam"),
        "attention": partial(path_after_failure, operator="txl::attention_backward"),
    },
    "failure of a reader": {"reading": reading_after_failure},  # it ends the use of Triton in this process, too
    "tokens": {
        f"kernels of a token, {case} {precision}, batch {batch_size}": partial(
            kernels_of_a_token, case, precision, batch_size
        )
        for case in ("relative", "sinusoid")
        for precision in ("fp32", "bf16")
        for batch_size in (1, 3)
    },
}


def outcomes_of(group):
    """Return the outcome of each check of a group."""
    return outcomes(GROUPS[group])
