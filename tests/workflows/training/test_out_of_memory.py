"""After memory ran out, the error names settings that need less, by the forecast of a step."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

from tests.commands.novel import RECIPE, RecordingReporter
from txlcli.config import recipe
from txlcli.core.measures.forecast import step_bytes
from txlcli.core.training.distributed import of_one_process
from txlcli.errors import TrainingError
from txlcli.system.memory import format_size
from txlcli.workflows.training.out_of_memory import advise, explained, smaller_steps, warn
from txlcli.workflows.training.plan import Plan

CPU, V = torch.device("cpu"), 300
SETTINGS = recipe.resolve_text(RECIPE, "tiny.toml", ["train.batch_size=12", "train.seg_len=64", "train.mem_len=64"])
MODEL, TRAIN = SETTINGS.model, SETTINGS.train


def forecast(train, processes=1):
    return step_bytes(MODEL, V, train, device=CPU, processes=processes).total


def plan(train=TRAIN, model=MODEL, device=CPU, processes=1):
    run = SimpleNamespace(settings=SimpleNamespace(model=model, train=train), vocab_size=V)
    return Plan(run=run, device=device, processes=processes)


def advice(available, processes=1):
    return advise(plan(processes=processes), available)


def bytes_of(text):
    number, unit = text.split()
    return float(number) * {"GiB": 2**30, "MiB": 2**20}[unit]


def test_the_first_settings_that_fit_are_suggested():
    half = forecast(dataclasses.replace(TRAIN, accumulate=2))
    message = advice(available=round(half / 0.8) + 1)
    needs, suggested = message.split("; try ")
    stated = re.fullmatch(r"a step needs about (.+) of (.+)", needs)
    assert bytes_of(stated[1]) == pytest.approx(forecast(TRAIN), abs=2**16)
    fitting = [needed for smaller in smaller_steps(TRAIN, 1) if (needed := forecast(smaller)) <= half][:2]
    sizes = [bytes_of(size) for size in re.findall(r"`overrides` \S+ \(about ([^)]+)\)", suggested)]
    assert sizes == pytest.approx(fitting, abs=2**16)


def test_several_processes_are_advised_to_divide_the_state_if_no_division_of_the_batch_fits():
    train = dataclasses.replace(TRAIN, seg_len=1, mem_len=1, recompute="layers")  # one lane for each of 12 processes
    divided = dataclasses.replace(train, parallel="zero")
    deep = dataclasses.replace(MODEL, n_layers=13)
    needed = step_bytes(deep, V, divided, device=CPU, processes=12).total
    message = advise(plan(train, deep, processes=12), round(needed / 0.8) + 1)
    assert f"; try `overrides` train.parallel=zero (about {format_size(needed)})" in message
    assert "no division of the batch fits" in advise(plan(of_one_process(divided, 12), deep), round(needed / 1.6))


@pytest.mark.parametrize(("precision", "modes"), [("bf16", {"ddp", "zero", "fsdp"}), ("fp16", {"ddp", "zero"})])
def test_only_modes_that_support_the_other_settings_are_suggested(precision, modes):
    train = dataclasses.replace(TRAIN, precision=precision)
    assert {smaller.parallel for smaller in smaller_steps(train, 3)} == modes
    assert {smaller.parallel for smaller in smaller_steps(train, 1)} == {"ddp"}


def test_advice_without_a_known_amount_of_memory_and_without_settings_that_fit():
    assert re.match(r"a step needs about [^;]* [GM]iB; try `overrides` train\.", advice(available=None))
    assert "no division of the batch fits" in advice(available=1000)


CUDA_ERROR = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which ..."


@pytest.mark.parametrize(
    ("others", "reported"),
    [(300 << 20, ""), (77 << 30, "other processes use 77.00 GiB of the GPU (nvidia-smi lists them); ")],
)
def test_on_cuda_the_error_says_what_would_fit_and_what_other_processes_use(others, reported):
    cuda = torch.device("cuda:0")
    half = step_bytes(MODEL, V, dataclasses.replace(TRAIN, accumulate=2), device=cuda).total
    available = {cuda: round(half / 0.8) + 1}
    memory = {"available": available.__getitem__, "others": {cuda: others}.__getitem__}
    with pytest.raises(TrainingError) as caught, explained(plan(device=cuda), **memory):
        raise torch.OutOfMemoryError(CUDA_ERROR)
    needed = format_size(step_bytes(MODEL, V, TRAIN, device=cuda).total)
    message = str(caught.value)
    of_which = format_size(half / 0.8 + 1)
    begin = f"out of memory (tried to allocate 2.00 GiB); {reported}a step needs about {needed} of {of_which};"
    assert message.startswith(begin)
    assert f"`overrides` train.accumulate=2 (about {format_size(half)})" in message
    assert "\n" not in message


def test_processes_divide_the_batch_and_recomputing_is_advised_only_where_it_is_possible():
    assert forecast(TRAIN, processes=3) < forecast(TRAIN)
    numbers = re.findall(r"accumulate=(\d+)", advice(available=None, processes=3))
    assert set(numbers) <= {"2", "4"}  # 12 lanes over 3 processes
    assert "recompute" in advice(available=None)
    for changes, recomputes in (({"recompute": True}, {"layers"}), ({"attention": "reference"}, {False, "layers"})):
        smaller = smaller_steps(dataclasses.replace(TRAIN, **changes), 1)
        assert {train.recompute for train in smaller} == {*recomputes, changes.get("recompute", False)}


@pytest.mark.parametrize(("processes", "who"), [(1, "a step"), (2, "a step of each process")])
def test_a_step_that_needs_more_than_is_free_is_told_before_it(processes, who):
    reporter = RecordingReporter()
    needed = forecast(TRAIN, processes)
    warn(plan(processes=processes), reporter, available=lambda _: processes * (needed + 1))
    assert reporter.messages == []
    warn(plan(processes=processes), reporter, available=lambda _: processes * (needed - 1))
    (message,) = reporter.messages
    assert f"memory may run out, and the system then ends txl: {who} needs about" in message
