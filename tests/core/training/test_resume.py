"""A resumed training equals an uninterrupted one, bit for bit."""

import dataclasses

import pytest
import torch

from tests.core.builders import V
from tests.core.training.runs import assert_equal, new_training, reports_of, run, valids_of
from tests.samples import sampled
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.reports import StepReport, ValidReport
from txlcli.errors import RunError

SETTINGS = {
    "adam": {},
    "sgd with momentum": {"optimizer": "sgd", "momentum": 0.9, "lr": 0.5},
    "plain sgd": {"optimizer": "sgd", "lr": 0.5},
    "plateau": {"schedule": "plateau", "lr": 0.5, "optimizer": "sgd", "valid_every": 1, "plateau_patience": 1},
    "validation between": {"valid_every": 3, "weight_decay": 0.01, "warmup_steps": 3},
    "no memory": {"mem_len": 0},
    "variational dropout": {"shape": {"variational_dropout": True, "word_dropout": 0.2}},
    "compressive": {"shape": {"arch": "compressive", "compressed_len": 3, "compression_rate": 2}},
    "compressive, sgd with momentum": {
        **{"shape": {"arch": "compressive", "compressed_len": 3, "compression_rate": 2}, "optimizer": "sgd"},
        **{"momentum": 0.9},
    },
    "memory tokens": {"shape": {"arch": "rmt", "segment_len": 2, "n_memory_tokens": 3}, "mem_len": 0},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.1},
    "muon in fp16": {"optimizer": "muon", "precision": "fp16"},
    "lamb on rolled lanes": {"optimizer": "lamb", "weight_decay": 0.1, "roll_lanes": True},
    "exponential average": {"average": "exponential", "average_decay": 0.5, "valid_every": 2},
    # The average begins after step 3: stops come before, at and after its beginning.
    "averaged SGD": {
        **{"average": "asgd", "average_patience": 1, "optimizer": "sgd", "lr": 3.0, "clip": None, "valid_every": 1},
    },
    "groups of parameters": {"optimizer": "adamw", "weight_decay": 0.1, "embedding_lr": 2.0, "decay_norms": False},
    "segments read again": {"reread_len": 3},
    "documents": {"reset_at_documents": True},
    "segments of sampled lengths": {"seg_len_jitter": True, "reread_len": 4, "activation_penalty": 0.5},
    "mean": {"average": "mean", "average_from": 3, "min_lr_ratio": 0.1, "betas": (0.5, 0.7), "valid_every": 2},
    "end after validations without improvement": {"stop_after": 1, "optimizer": "sgd", "lr": 3.0, "valid_every": 1},
    "bf16": {"precision": "bf16"},
}


def fresh(directory, **changed):
    """Return a training with dropout and two micro-batches, across the end of the first epoch (step 3)."""
    return new_training(directory, **{"dropout": 0.3, "accumulate": 2, "max_steps": 6, **changed})


def resumed(directory, **changed):
    """Resume as a new process: it has only the file, other weights and another state of the random generator."""
    saved = checkpoint.load(directory / "last.safetensors")
    initial = fresh(directory, **changed)
    model = checkpoint.build_model(initial.model.settings, V, saved)
    training = fresh(directory, model=model, **changed)
    torch.manual_seed(999)
    training.restore(saved)
    return training


def timeless(reports):
    """Return reports without measured times."""
    clocks = {"tokens_per_s", "seconds"}
    return [{k: v for k, v in dataclasses.asdict(report).items() if k not in clocks} for report in reports]


def assert_same_file(directory, other, name="last.safetensors"):
    one, two = (checkpoint.load(path / name) for path in (directory, other))
    assert one.state == two.state
    assert_equal(one.tensors, two.tensors)


@pytest.mark.parametrize("settings", sampled(3, SETTINGS))
def test_a_training_that_stops_and_resumes_equals_a_whole_one(tmp_path, settings):
    changed = SETTINGS[settings]
    whole = run(fresh(tmp_path / "whole", **changed))
    for stop in (0, 2, 3, 4):
        parts = tmp_path / f"stopped at {stop}"
        first = run(fresh(parts, **changed), until=stop)
        second = run(resumed(parts, **changed))
        assert timeless(first + second) == timeless(whole), stop
        assert_same_file(tmp_path / "whole", parts)
        assert_same_file(tmp_path / "whole", parts, "best.safetensors")


def test_a_stop_at_the_validation_that_begins_an_average_loses_nothing(tmp_path):
    changed = SETTINGS["averaged SGD"]
    whole = run(fresh(tmp_path / "whole", **changed))
    begun = fresh(tmp_path / "parts", **changed)
    first = list(reports_of(begun, until_step=3))
    assert begun.average.first is not None
    assert not begun.average.weights
    second = run(resumed(tmp_path / "parts", **changed))
    assert timeless(first + second) == timeless(whole)
    assert_same_file(tmp_path / "whole", tmp_path / "parts")


def crash(directory, step, **changed):
    """Train to a step and end without a stop, so that nothing is saved after the last validation."""
    for report in fresh(directory, **changed).run(report_every=1, should_stop=lambda: False):
        if report.step == step:
            return


@pytest.mark.parametrize("settings", ["adam", "plateau", "exponential average", "averaged SGD"])
def test_a_run_that_crashed_repeats_the_validation_after_its_last_save(tmp_path, settings):
    changed = SETTINGS[settings] | {"valid_every": 2}
    whole = run(fresh(tmp_path / "whole", **changed))
    crash(tmp_path / "parts", 5, **changed)
    second = run(resumed(tmp_path / "parts", **changed))
    validation = next(
        number for number, report in enumerate(whole) if isinstance(report, ValidReport) and report.step == 4
    )
    assert timeless(second) == timeless(whole[validation:])
    assert_same_file(tmp_path / "whole", tmp_path / "parts")
    assert_same_file(tmp_path / "whole", tmp_path / "parts", "best.safetensors")


@pytest.mark.parametrize(("first", "then"), [("fp32", "bf16"), ("bf16", "fp16"), ("fp16", "fp32")])
def test_a_run_may_resume_in_another_precision(tmp_path, first, then):
    run(fresh(tmp_path, precision=first, valid=False), until=2)
    training = resumed(tmp_path, precision=then, valid=False)
    memory = training.memories[0][0].dtype
    reports = run(training)
    assert [report.step for report in reports] == [3, 4, 5, 6]
    assert memory == training.memories[0][0].dtype  # a CUDA graph keeps that of its first step


@pytest.mark.parametrize("at", [2, 4])
def test_a_resumed_run_repeats_a_validation_that_a_stop_interrupted(tmp_path, at):
    # Step 4 is the last: without this, the run would end without a validation.
    changed = {**SETTINGS["plateau"], "max_steps": 4, "valid_every": 2}
    whole = run(fresh(tmp_path / "whole", **changed))
    training = fresh(tmp_path / "parts", **changed)
    calls = []

    def should_stop():
        # The loop calls this first after step `at`, then the validation.
        calls.append(training.step)
        return calls.count(at) >= 2

    first = list(training.run(report_every=1, should_stop=should_stop))
    assert calls.count(at) >= 2
    assert (type(first[-1]), first[-1].step) == (StepReport, at)
    second = run(resumed(tmp_path / "parts", **changed))
    assert (type(second[0]), second[0].step) == (ValidReport, at)
    assert timeless(first + second) == timeless(whole)
    assert_same_file(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_does_nothing_when_resumed(tmp_path):
    assert len(valids_of(run(fresh(tmp_path)))) == 1
    before = checkpoint.load(tmp_path / "last.safetensors").tensors
    training = resumed(tmp_path)
    assert run(training) == []
    assert training.step == 6
    assert_equal(checkpoint.load(tmp_path / "last.safetensors").tensors, before)


DAMAGE = {
    "negative step": {"step": -3},
    "step as text": {"step": "7"},
    "step that is not whole": {"step": 2.5},
    "place beyond the text": {"place": {"epoch": 0, "segment": 10**9}},
    "place before the text": {"place": {"epoch": -1, "segment": 0}},
    "place of another structure": {"place": [2, 3]},
    "place with other names": {"place": {"a": 0}},
    "no average": {"average": {}},
    "interval of another structure": {"interval": {"after": 0, "tokens": 5, "sums": [1.0]}},
    "interval of words": {"interval": {"after": "one", "tokens": 5, "sums": [1.0, 0.0]}},
    "interval with other names": {"interval": {"a": 0}},
    "negative rate": {"lr_scale": -1.0},
    "validation without a step": {"validated": None},
    "random state of another size": {"rng.cpu": lambda tensor: tensor[:7].clone()},
    "random state of another type": {"rng.cpu": lambda tensor: tensor.float()},
    "memory of another batch": {"memory.0": lambda tensor: tensor[:1].clone()},
    "memory of another width": {"memory.0": lambda tensor: tensor[..., :3].clone()},
    "optimizer of another shape": {"optimizer.embedding.tables.0.exp_avg": lambda tensor: tensor[:1].clone()},
    "memory of tokens": {"memory.0": lambda tensor: tensor.long()},
    "weights of another shape": {"model.embedding.tables.0": lambda tensor: tensor[:5].clone()},
}
"""Values of a checkpoint with right checksums, which replace the saved ones."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    training = fresh(tmp_path_factory.mktemp("saved"), max_steps=2)
    run(training)
    return checkpoint.load(training.saver.last_path)


@pytest.mark.parametrize("damage", DAMAGE)
def test_impossible_values_are_reported_before_training(saved, tmp_path, damage):
    path = tmp_path / "last.safetensors"
    ((name, value),) = DAMAGE[damage].items()
    if callable(value):
        checkpoint.save(path, Checkpoint({**saved.tensors, name: value(saved.tensors[name])}, saved.state))
    else:
        checkpoint.save(path, Checkpoint(saved.tensors, {**saved.state, name: value}))
    with pytest.raises(RunError):
        resumed(tmp_path)
