"""Any number of processes give the same losses, weights and checkpoints.

Each group of checks runs in processes of its own, on a CPU (`tests/core/multiprocess`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import distributed as torch_distributed

from tests.core.builders import V, model_settings
from tests.core.multiprocess.checks import (
    ARCHITECTURES,
    CPU,
    MODELS,
    lifetime,
    new_model_of,
    training_of_case,
    validated,
)
from tests.core.training.runs import assert_equal, losses_of, new_training, run, steps_of, train_settings, weights
from tests.samples import sampled
from txlcli.core.measures.forecast import state_bytes
from txlcli.core.training import checkpoint, distributed
from txlcli.core.training.distributed import SINGLE_PROCESS, World, micro_batches
from txlcli.errors import RecipeError

if not torch_distributed.is_available():
    pytest.skip("this PyTorch cannot run in several processes", allow_module_level=True)

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run_checks(tmp_path_factory):
    """Return a function that runs checks in N processes and returns their results by name."""

    def run_in(processes, *checks):
        file = tmp_path_factory.mktemp("results") / "results.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command += ["-m", "tests.core.multiprocess", str(file), json.dumps(checks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(file.read_text())

    return run_in


class TwoProcesses:
    """Results of checks with two processes, by name.

    All checks of a group run when the first of their results is asked for: those of every run of the tests, or those
    that are left to `pytest -m slow`. The workers of pytest-xdist share the directory: one of them runs a group.
    """

    def __init__(self, run_checks, directory):
        directory.mkdir(exist_ok=True)
        self._run_checks, self._directory, self._results = run_checks, directory, {}
        self._groups = [{name: rest for name, *rest in checks()} for checks in (sampled_checks, other_checks)]

    def __getitem__(self, name):
        if name not in self._results:
            self._results |= self._results_of(next(group for group in self._groups if name in group))
        return self._results[name]

    def _results_of(self, group):
        file = self._directory / f"{self._groups.index(group)}.json"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                checks = [(name, check, self._arguments(name, check, given)) for name, (check, given) in group.items()]
                file.write_text(json.dumps(self._run_checks(2, *checks)))
        return json.loads(file.read_text())

    def _arguments(self, name, check, given):
        return (
            given
            if check in ("updates_of_models", "agreement", "exchanged", "turns")
            else {"directory": str(self._directory / name), **given}
        )

    def saved_by(self, name, file="last.safetensors"):
        assert self[name]
        return checkpoint.load(self._directory / name / file)


PLAIN, DROPPED = {"optimizer": "sgd", "lr": 0.5}, {"dropout": 0.3}
REST, DIVIDED, FULLY_DIVIDED = {"steps": 4, **DROPPED}, {"parallel": "zero"}, {"parallel": "fsdp"}


def sampled_checks():
    models = SAMPLED_MODELS
    yield "steps", "trained", PLAIN
    yield "parts", "trained", {**PLAIN, "accumulate": 3}
    yield "uneven", "trained", {"batch_size": UNEVEN, **PLAIN}
    yield "whole", "trained", DROPPED
    yield "resumed", "stopped_and_resumed", REST
    yield "names", "saved_after", {"steps": 4, "accumulate": 3, **PLAIN}
    yield "windows", "validated", {**WINDOWS, **DIVIDED}
    yield "models", "updates_of_models", {"cases": models}
    yield "masks", "masks", {}
    yield "differ", "agreement", {"facts": [{"train.lr": "0.5", "a": "1"}, {"train.lr": "0.25", "a": "1"}]}
    yield "equal", "agreement", {"facts": [{"train.lr": "0.5"}, {"train.lr": "0.5"}]}
    yield "exchanged", "exchanged", {}
    yield "turns", "turns", {}
    yield "not finite", "non_finite_loss", {}
    yield from comparisons("ddp", "zero", ZERO, list(ZERO)[::2])
    yield "zero resumed", "stopped_and_resumed", {**REST, **DIVIDED}
    yield "zero not finite", "non_finite_loss", DIVIDED
    yield "zero state", "state_bytes", DIVIDED
    yield from comparisons("ddp like", "fsdp", FSDP, list(FSDP)[::4])
    yield "fsdp whole", "trained", {**DROPPED, **FULLY_DIVIDED}
    yield "fsdp resumed", "stopped_and_resumed", {**REST, **FULLY_DIVIDED}
    yield "fsdp saved", "saved_after", {"steps": 4, **PLAIN, **FULLY_DIVIDED}
    yield "models of fsdp", "updates_of_models", {"cases": divisible(models), **FULLY_DIVIDED}
    yield "fsdp not finite", "non_finite_loss", FULLY_DIVIDED
    yield "fsdp state", "state_bytes", FULLY_DIVIDED
    yield from lifetimes("fsdp", SAMPLED)
    yield from captures(list(CAPTURED)[::2])
    yield from lifetimes("ddp", ["untied"])
    for is_captured in (True, False):
        yield f"rare words {is_captured}", "with_rare_words", {"captures": is_captured}
    for failing in ("capture", "rehearsal"):
        yield f"failing {failing}", "captured", {**CAPTURED["ddp"], "failing": failing}


def other_checks():
    models = [name for name in MODELS if name not in SAMPLED_MODELS]
    yield "other models", "updates_of_models", {"cases": models}
    yield from comparisons("ddp", "zero", ZERO, list(ZERO)[1::2])
    yield "zero, then ddp", "stopped_and_resumed", {**REST, **DIVIDED, "then": {"parallel": "ddp"}}
    yield "ddp, then zero", "stopped_and_resumed", {**REST, "then": DIVIDED}
    yield "zero state of muon", "state_bytes", {**DIVIDED, "optimizer": "muon"}
    yield from comparisons("ddp like", "fsdp", FSDP, list(FSDP)[1:4])
    yield "fsdp, then zero", "stopped_and_resumed", {**REST, **FULLY_DIVIDED, "then": DIVIDED}
    yield "ddp, then fsdp", "stopped_and_resumed", {**REST, "then": FULLY_DIVIDED}
    yield "other models of fsdp", "updates_of_models", {"cases": divisible(models), **FULLY_DIVIDED}
    yield from lifetimes("fsdp", [name for name in ARCHITECTURES if name not in SAMPLED])
    for parallel in ("ddp", "zero"):
        yield from lifetimes(parallel, ARCHITECTURES)
    yield from captures(list(CAPTURED)[1::2])
    short_memory = {**PLAIN, "mem_len": 5}  # full in the second segment of each epoch
    yield "short memory", "trained", short_memory
    yield "failing compiled layers", "captured", {**short_memory, "failing": "compiled layers"}


def captures(names):
    for name in names:
        yield f"eager {name}", "trained", CAPTURED[name]
        yield f"captured {name}", "captured", CAPTURED[name]


def divisible(models):
    return [name for name in models if name in FSDP_MODELS]


def lifetimes(parallel, names):
    for name in names:
        yield f"lifetime {parallel} {name}", "lifetime", {"name": name, "parallel": parallel}


def comparisons(whole, parallel, settings, names):
    for name in names:
        yield f"{whole} {name}", "trained", settings[name]
        yield f"{parallel} {name}", "trained", {"parallel": parallel, **settings[name]}


@pytest.fixture(scope="module")
def two(run_checks, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return TwoProcesses(run_checks, shared / "two-processes")


SAMPLED = ("compressive",)
"""Architectures that every run of the tests trains with divided weights."""
SAMPLED_MODELS = MODELS[::4]
"""Models of which every run of the tests takes two steps."""
UNEVEN = 5
"""Lanes of which one process has three and the other two."""
ZERO = {
    "momentum": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "clip": 0.1},
    "muon": {"optimizer": "muon", "accumulate": 3},
    "lamb": {"optimizer": "lamb", "average": "asgd"},
    "plateau": {"optimizer": "adam", "schedule": "plateau", "valid_every": 2},
}
"""Trainings whose optimizer state is divided (train.parallel = "zero")."""
CAPTURED = {
    "ddp": {"mem_len": 3, "dropout": 0.3},
    "bf16": {"mem_len": 3, "precision": "bf16"},
    "zero": {"mem_len": 3, "parallel": "zero", "precision": "bf16", "optimizer": "lamb"},
    "accumulated": {"mem_len": 3, "precision": "bf16", "accumulate": 3},
    "sent in fp32": {"mem_len": 3},
    "accumulated zero": {"mem_len": 3, "parallel": "zero", "precision": "bf16", "accumulate": 3},
    "sent in bf16": {"mem_len": 3, "exchange_precision": "bf16"},
    "sent in bf16 and accumulated": {"mem_len": 3, "parallel": "zero", "exchange_precision": "bf16", "accumulate": 3},
}
"""Training runs whose steps CUDA would capture; a memory of this length is full after the first segment."""
VALIDATED = {"average": "exponential", "valid_batch_size": 4}
"""A validation of 30 tokens in four lanes, of which the last one is shorter."""
WINDOWS = {**VALIDATED, "valid_attn_len": 6}
FSDP = {
    "asgd": {"optimizer": "sgd", "lr": 5.0, "average": "asgd", "average_patience": 1, "valid_every": 1},
    "muon": {"optimizer": "muon"},
    "lamb": {"optimizer": "lamb", "average": "none"},
    "adaptive": {"optimizer": "sgd", "lr": 0.5, "cutoffs": [4, 7], "div_val": 2},
    "bf16": {"precision": "bf16", "optimizer": "sgd", "lr": 0.5},
}
"""Trainings that are divided (train.parallel = "fsdp") and compared with those that are not."""
RELATIVE_OF_FSDP = {"muon": 1e-3, "lamb": 1e-5, "asgd": 1e-4, "adaptive": 1e-5, "bf16": 2e-3}
"""Largest relative difference of their losses from those of one that is not divided."""
FSDP_MODELS = [
    *("recomputed", "recomputed layers", "shaw", "vanilla", "modern", "gated", "memory of outputs"),
    *("compressive", "memory tokens", "lstm", "qrnn"),
]


def alone(directory, **changed):
    settings = {"max_steps": 6, "valid_every": 3, "average": "exponential", **changed}
    return new_training(directory, model=new_model_of(seed=1), **settings)


def flat(training):
    return torch.cat([tensor.flatten() for tensor in weights(training).values()])


@pytest.mark.parametrize("name", ["steps", "parts"])
def test_two_processes_take_the_steps_of_one(two, tmp_path, name):
    training = alone(tmp_path, optimizer="sgd", lr=0.5)
    reports = run(training)
    expected = [[report.kind, report.step, pytest.approx(report.loss_nats, abs=1e-5)] for report in reports]
    assert two[name]["reports"] == expected
    torch.testing.assert_close(torch.tensor(two[name]["weights"]), flat(training), rtol=0, atol=1e-5)
    assert two[name]["difference"] == 0


@pytest.fixture(scope="module")
def one_validation(tmp_path_factory):
    return validated(tmp_path_factory.mktemp("one"), **VALIDATED)


def test_processes_divide_a_validation_in_windows(two, tmp_path):
    assert two["windows"]["losses"] == pytest.approx(validated(tmp_path, **WINDOWS)["losses"], rel=0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_divide_a_validation_of_averaged_weights(run_checks, tmp_path, one_validation, processes):
    modes = {
        mode: {"directory": str(tmp_path / mode), "parallel": mode, **VALIDATED} for mode in ("ddp", "zero", "fsdp")
    }
    resets = {"directory": str(tmp_path / "resets"), **VALIDATED, "reset_at_documents": True}
    one_with_resets = validated(tmp_path / "one with resets", **VALIDATED, reset_at_documents=True)
    few = {"directory": str(tmp_path / "few"), **VALIDATED, "valid_batch_size": 1}
    few_divided = {**few, "directory": str(tmp_path / "few divided"), "parallel": "fsdp"}
    found = run_checks(
        processes,
        *((mode, "validated", arguments) for mode, arguments in modes.items()),
        ("resets", "validated", resets),
        ("fewer lanes", "validated", few),
        ("fewer lanes of fsdp", "validated", few_divided),
        ("stopped", "stopped_in_validation", {"directory": str(tmp_path / "stopped"), "calls": 3, **VALIDATED}),
    )
    for mode in modes:
        assert found[mode]["losses"] == pytest.approx(one_validation["losses"], rel=0, abs=1e-6)
        assert (found[mode]["tokens"], found[mode]["averaged"]) == ([30], [True])
        assert found[mode]["change"] < 1e-20  # a bias that was 0
        assert found[mode]["difference"] == 0
    assert found["resets"]["losses"] == pytest.approx(one_with_resets["losses"], rel=0, abs=1e-6)
    assert found["resets"]["losses"] != pytest.approx(one_validation["losses"], abs=1e-3)
    whole = alone(tmp_path / "whole", max_steps=1, valid_every=1, average="none", valid_batch_size=1)
    assert [report.tokens for report in run(whole) if report.kind == "valid"] == found["fewer lanes"]["tokens"]
    assert found["fewer lanes of fsdp"]["losses"] == pytest.approx(found["fewer lanes"]["losses"], rel=0, abs=1e-6)
    assert found["fewer lanes"]["losses"] != pytest.approx(one_validation["losses"], abs=1e-3)
    assert found["stopped"] == {"kinds": ["train"], "is_due": True, "calls": 4}


def test_lanes_that_do_not_divide_evenly_have_equal_weights(two, tmp_path):
    training = alone(tmp_path, batch_size=UNEVEN, optimizer="sgd", lr=0.5)
    reports = steps_of(run(training))
    assert two["uneven"]["losses"] == pytest.approx(losses_of(reports), abs=1e-5)
    torch.testing.assert_close(torch.tensor(two["uneven"]["weights"]), flat(training), rtol=0, atol=1e-5)


def test_a_resumed_training_of_two_equals_one_that_never_stopped(two):
    assert two["resumed"]["losses"] == two["whole"]["losses"][4:]
    assert two["resumed"]["weights"] == two["whole"]["weights"]


@pytest.mark.parametrize(("accumulate", "saved_by"), [(1, "names"), (2, "names"), (1, "fsdp saved")])
def test_one_process_resumes_the_training_of_two(two, tmp_path, accumulate, saved_by):
    whole = alone(tmp_path / "whole", optimizer="sgd", lr=0.5)
    run(whole)
    training = alone(tmp_path / "rest", optimizer="sgd", lr=0.5, accumulate=accumulate)
    saved = two.saved_by(saved_by)
    training.model.load_state_dict(saved.group("model"))
    training.restore(saved)
    assert training.step == 4
    run(training)
    torch.testing.assert_close(flat(training), flat(whole), rtol=0, atol=1e-5)


def test_a_checkpoint_of_two_has_the_memory_of_all_lanes_and_both_generators(two):
    layers = 2
    memories = {f"memory.{layer}" for layer in range(layers)}
    assert memories == {name for name in two["names"] if name.startswith("memory.")}
    assert {name for name in two["names"] if name.startswith("rng.")} == {"rng.cpu", "rng.cpu.1"}
    saved = two.saved_by("names")
    assert not torch.equal(saved.tensors["rng.cpu"], saved.tensors["rng.cpu.1"])


@pytest.mark.parametrize("model", sampled(4, MODELS))
def test_every_model_trains_in_two_processes(two, model):
    training = training_of_case(model, SINGLE_PROCESS)
    losses = [float(training.update().loss) for _ in range(2)]
    models = "models" if model in SAMPLED_MODELS else "other models"
    for results in (models, f"{models} of fsdp") if model in FSDP_MODELS else (models,):
        assert two[results][model]["losses"] == pytest.approx(losses, abs=1e-5)
        assert two[results][model]["difference"] == 0


def test_muon_keeps_the_weights_of_two_processes_equal(two, tmp_path):
    training = alone(tmp_path, optimizer="muon")
    losses = losses_of(steps_of(run(training)))
    assert two["ddp muon"]["losses"] == pytest.approx(losses, abs=1e-3)  # orthogonalized in bf16
    assert two["ddp muon"]["difference"] == 0


@pytest.mark.parametrize("name", sampled(2, ZERO))
def test_a_divided_optimizer_takes_the_same_steps_bit_for_bit(two, name):
    assert two[f"zero {name}"] == two[f"ddp {name}"]
    saved = [two.saved_by(f"{parallel} {name}") for parallel in ("ddp", "zero")]
    assert_equal(saved[1].tensors, saved[0].tensors)


@pytest.mark.parametrize("name", sampled(2, CAPTURED))
def test_captured_steps_exchange_what_eager_ones_do(two, name):
    captured = two[f"captured {name}"]
    assert captured["path"] == "tiles, not compiled, captured"
    assert captured["difference"] == 0
    assert_trained_alike(captured, two[f"eager {name}"])


def test_no_gradient_is_lost_beside_weights_that_have_none(two, tmp_path):
    expected = lifetime(tmp_path, "untied", world=SINGLE_PROCESS)["losses"]
    losses = two["lifetime ddp untied"]["losses"]  # the last one after the first step of the second epoch
    assert [line[2] for line in losses] == pytest.approx([line[2] for line in expected], abs=2e-6)


def test_a_process_that_cannot_replay_a_step_does_not_keep_the_others_waiting(two):
    captured = two["rare words True"]
    assert captured["path"] == "tiles, not compiled, captured"
    assert captured["losses"] == pytest.approx(two["rare words False"]["losses"], abs=2e-6)


@pytest.mark.parametrize(("failing", "word"), [("capture", "no graphs"), ("rehearsal", "no kernels")])
def test_all_processes_run_eagerly_if_one_cannot_capture_a_step(two, failing, word):
    found = two[f"failing {failing}"]
    assert found["path"] == "tiles, not compiled, not captured"
    assert "rank 1" in found["notes"][0]
    assert word in found["notes"][0]
    assert_trained_alike(found, two["eager ddp"])


@pytest.mark.slow
def test_all_processes_leave_out_compiled_layers_if_one_cannot_compute_them(two):
    found = two["failing compiled layers"]
    assert found["path"] == "tiles, not compiled, captured"
    (note,) = found["notes"]
    assert "without compiled layers" in note
    assert "rank 1: no registers" in note
    assert found["difference"] == 0
    assert_trained_alike(found, two["short memory"])


def assert_trained_alike(found, eager):
    """Check that two training runs differ by the rounding of the learning rate, which graphs read in float32."""
    assert found["losses"] == pytest.approx(eager["losses"], abs=2e-6)
    assert found["weights"] == pytest.approx(eager["weights"], abs=2e-5)  # gradients in bf16 amplify it


def test_gradients_that_are_sent_in_bf16_train_nearly_the_same(two):
    losses = two["eager sent in bf16"]["losses"]
    whole = two["eager sent in fp32"]["losses"]
    assert losses == pytest.approx(whole, abs=1e-3)
    assert losses != whole


@pytest.mark.parametrize("name", sampled(3, ["zero resumed", "zero, then ddp", "ddp, then zero"]))
def test_a_run_resumes_with_its_optimizer_divided_or_not(two, name):
    assert two[name]["losses"] == two["whole"]["losses"][4:]
    assert two[name]["weights"] == two["whole"]["weights"]


@pytest.mark.parametrize("optimizer", sampled(2, ["adam", "muon"]))
def test_the_state_of_a_process_is_the_part_that_is_forecast(two, optimizer):
    name = "zero state" if optimizer == "adam" else f"zero state of {optimizer}"
    settings, changed = model_settings(), {"optimizer": optimizer}
    whole, part = (
        state_bytes(settings, V, train_settings(**changed, parallel=parallel), processes=2).optimizer
        for parallel in ("ddp", "zero")
    )
    assert max(two[name]) == part
    assert sum(two[name]) == whole


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLED else [pytest.mark.slow]) for name in ARCHITECTURES]
)
@pytest.mark.parametrize(
    "parallel", ["fsdp", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("ddp", "zero"))]
)
def test_every_architecture_is_compressed_validated_saved_and_resumed_in_every_mode(two, tmp_path, parallel, name):
    expected = lifetime(tmp_path, name, world=SINGLE_PROCESS)["losses"]
    found = two[f"lifetime {parallel} {name}"]
    assert [line[:2] for line in found["losses"]] == [line[:2] for line in expected]
    assert [line[2] for line in found["losses"]] == pytest.approx([line[2] for line in expected], abs=2e-6)
    assert found["resumed"] == found["losses"][-len(found["resumed"]) :]


@pytest.mark.parametrize("name", sampled(4, FSDP))
def test_a_fully_divided_training_has_the_losses_of_one_that_is_not(two, name):
    expected = two[f"ddp like {name}"]["losses"]
    assert two[f"fsdp {name}"]["losses"] == pytest.approx(expected, rel=RELATIVE_OF_FSDP[name])


def test_a_fully_divided_training_resumes_bit_for_bit(two):
    assert two["fsdp resumed"]["losses"] == two["fsdp whole"]["losses"][4:]
    assert two["fsdp resumed"]["weights"] == two["fsdp whole"]["weights"]


@pytest.mark.slow
def test_a_fully_divided_training_resumes_with_another_division_to_rounding(two):
    assert two["fsdp, then zero"]["losses"] == pytest.approx(two["fsdp whole"]["losses"][4:], rel=1e-3)
    assert two["ddp, then fsdp"]["losses"] == pytest.approx(two["whole"]["losses"][4:], rel=1e-3)


@pytest.mark.parametrize(
    "name", ["asgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lamb", "adaptive"))]
)
def test_a_checkpoint_of_divided_weights_is_that_of_whole_ones(two, name):
    for file in ("last.safetensors", "best.safetensors"):
        whole, divided = (two.saved_by(part, file) for part in (f"ddp like {name}", f"fsdp {name}"))
        assert whole.tensors.keys() == divided.tensors.keys()
        assert whole.state.keys() == divided.state.keys()
        for key, tensor in whole.tensors.items():
            if not key.startswith("rng."):
                torch.testing.assert_close(divided.tensors[key], tensor, rtol=0, atol=1e-3)


def test_a_process_holds_the_part_of_the_state_that_is_forecast(two):
    sizes = state_bytes(model_settings(), V, train_settings(parallel="fsdp"), processes=2)
    assert max(two["fsdp state"]) == sizes.optimizer


def test_processes_have_different_dropout_masks_and_equal_weights(two):
    assert two["masks"]["difference"] > 0.01
    assert two["masks"]["weights_difference"] == 0


def test_a_non_finite_loss_ends_all_processes(two):
    for name in ("not finite", "zero not finite", "fsdp not finite"):
        assert "is not finite" in two[name]


@pytest.mark.parametrize(("lanes", "accumulate", "processes"), [(1, 1, 1), (6, 1, 3), (22, 2, 4), (7, 1, 5)])
def test_micro_batches_contain_all_lanes_and_differ_by_one_at_most(lanes, accumulate, processes):
    parts = micro_batches(train_settings(batch_size=lanes, accumulate=accumulate), processes)
    assert len(parts) == accumulate * processes
    assert [lane for part in parts for lane in part] == list(range(lanes))
    assert np.ptp([len(part) for part in parts]) <= 1


def test_processes_exchange_tensors_of_any_shape_and_plain_values(two):
    exchanged = two["exchanged"]
    assert exchanged["gathered"] == {
        "torch.float64": [
            ["torch.float64", [1, 2, 3], [[[3.0] * 3] * 2]],
            ["torch.float64", [2, 2, 3], [[[4.0] * 3] * 2] * 2],
        ],
        "torch.bfloat16": [["torch.bfloat16", [1, 5], [[3.0] * 5]], ["torch.bfloat16", [2, 5], [[4.0] * 5] * 2]],
        "torch.int64": [["torch.int64", [1], [3]], ["torch.int64", [2], [4, 4]]],
        "torch.uint8": [["torch.uint8", [1, 0, 7], [[]]], ["torch.uint8", [2, 0, 7], [[], []]]],
    }
    assert exchanged["everywhere"] == [[], [0.0, 1.0]]
    assert exchanged["plain"] == [{"été": [rank, 0.1, float("inf"), None, 2**70]} for rank in range(2)]
    assert exchanged["rank 0"] == ["of rank", 0]


def test_the_first_process_of_a_machine_compiles_before_the_others_begin(two):
    (_, first_ends), (second_begins, _) = two["turns"]
    assert first_ends <= second_begins


def test_more_processes_than_lanes_are_rejected(tmp_path):
    with pytest.raises(RecipeError, match="too small for 7 processes"):
        new_training(tmp_path, model=new_model_of(seed=1), world=World(rank=0, size=7))
    with pytest.raises(RecipeError, match="use 3 or fewer"):
        new_training(tmp_path, model=new_model_of(seed=1), accumulate=2, world=World(rank=0, size=4))


def test_without_a_launcher_there_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # some clusters set it for everything
    assert distributed.join(CPU) == SINGLE_PROCESS


def test_facts_that_differ_end_all_processes_with_one_error(two):
    error = "train.lr is 0.5 on rank 0 and 0.25 on rank 1 ("
    assert [message.startswith(error) for message in two["differ"]["messages"]] == [True, True]
    assert two["differ"]["exit_codes"] == [2, 2]
    assert two["equal"]["messages"] == ["", ""]
