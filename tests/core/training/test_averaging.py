"""Averages of the weights against their definitions, computed from the weights after every step."""

import pytest
import torch
from torch import nn

from tests.core.training.runs import (
    RISING,
    assert_equal,
    losses_of,
    new_training,
    reports_of,
    run,
    train_settings,
    valids_of,
    weights,
)
from txlcli.core.training import checkpoint
from txlcli.core.training.averaging import Average
from txlcli.core.training.reports import StepReport, ValidReport

ASGD = {**RISING, "average": "asgd", "average_patience": 1}
EXPONENTIAL = {"average": "exponential", "average_decay": 0.5, "valid_every": 2, "max_steps": 8}


def train(training):
    """Return the weights before the first step and after each, and all reports."""
    iterates, reports = [weights(training)], []
    for report in reports_of(training):
        reports.append(report)
        if isinstance(report, StepReport):
            iterates.append(weights(training))
    return iterates, reports


def assert_close(given, expected):
    assert given.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(given[name], tensor.to(given[name].dtype), rtol=1e-5, atol=1e-6, msg=name)


def weights_of(module):
    return dict(module.named_parameters())


def line(value):
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def walk(average, module, values):
    for value in values:
        nn.init.constant_(module.weight, value)
        average.update(1)


def value_of(average, module):
    with average.swapped_in():
        return module.weight.item()


def triggered(losses, patience):
    """Return for each validation whether the average has begun."""
    average = Average(weights_of(line(1.0)), train_settings(average="asgd", average_patience=patience))
    given = []
    for loss in losses:
        average.on_validation(loss)
        given.append(average.first is not None)
    return given


@pytest.mark.parametrize(
    ("patience", "losses", "at"),
    [
        # 3.3 is the first that is above one of 5, 4, 3, the losses more than two validations before it.
        (2, [5, 4, 3, 3.1, 3.2, 3.3, 2.0], 5),
        # A rise within the patience is ignored: 6 is compared with nothing, 3 with 5, 2.9 with 5 and 4.
        (2, [5, 4, 6, 3, 2.9], None),
        # The lowest of the earlier losses counts, not the last of them.
        (1, [3, 9, 8, 2], 2),
        (0, [5, 4, 4.1], 2),
        (0, [5, 5, 5], None),
        (5, [1, 2, 3, 4, 5, 6], None),
        (5, [1, 2, 3, 4, 5, 6, 7], 6),
    ],
)
def test_averaged_sgd_begins_when_a_loss_is_above_the_best_of_the_earlier_losses(patience, losses, at):
    expected = [at is not None and number >= at for number in range(len(losses))]
    assert triggered(losses, patience) == expected


def test_once_begun_no_validation_restarts_the_average():
    module = line(0.0)
    average = Average(weights_of(module), train_settings(average="asgd", average_patience=0))
    for loss in (1.0, 2.0):
        average.on_validation(loss)
    walk(average, module, [2.0])
    average.on_validation(9.0)
    walk(average, module, [4.0])
    assert value_of(average, module) == 3


def test_the_model_gets_its_own_weights_back_at_the_same_address():
    module = line(1.0)
    average = Average(weights_of(module), train_settings(average="exponential", average_decay=0.5))
    walk(average, module, [5.0])
    address = module.weight.data_ptr()
    seen = []

    def interrupted():
        with average.swapped_in():
            seen.append((module.weight.item(), module.weight.data_ptr()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [(pytest.approx(1 * 2 / 11 + 5 * 9 / 11), address)]
    assert module.weight.item() == 5
    assert module.weight.data_ptr() == address


def test_averaged_sgd_of_a_training_is_the_mean_of_its_steps_since_the_trigger(tmp_path):
    training = new_training(tmp_path, **ASGD)
    iterates, reports = train(training)
    losses = losses_of(valids_of(reports))
    at = next(n for n in range(2, 12) if losses[n] > min(losses[: n - 1])) + 1  # steps up to the trigger
    assert 2 < at < 10
    assert [report.averaged for report in valids_of(reports)] == [step > at for step in range(1, 13)]
    mean = {name: torch.stack([weight[name] for weight in iterates[at + 1 :]]).double().mean(0) for name in iterates[0]}
    assert_close(training.average.weights, mean)


@pytest.mark.parametrize("optimizer", [{"optimizer": "adam"}, {"optimizer": "sgd", "lr": 0.5}])
def test_the_exponential_average_of_a_training_is_that_of_all_its_steps(tmp_path, optimizer):
    training = new_training(tmp_path, **{**EXPONENTIAL, **optimizer, "average_decay": 0.4})
    iterates, reports = train(training)
    mean = {name: weight.double() for name, weight in iterates[0].items()}
    for number, after in enumerate(iterates[1:], start=1):
        decay = min(0.4, (1 + number) / (10 + number))
        mean = {name: decay * mean[name] + (1 - decay) * weight.double() for name, weight in after.items()}
    assert all(report.averaged for report in valids_of(reports))
    assert_close(training.average.weights, mean)


def test_a_mean_is_that_of_all_steps_after_the_one_from_which_it_is_taken(tmp_path):
    training = new_training(tmp_path, **RISING, average="mean", average_from=0.7)
    iterates, reports = train(training)
    assert [report.averaged for report in valids_of(reports)] == [step > 8 for step in range(1, 13)]
    mean = {name: torch.stack([weight[name] for weight in iterates[9:]]).double().mean(0) for name in iterates[0]}
    assert_close(training.average.weights, mean)


def test_a_mean_that_a_longer_schedule_begins_later_is_that_of_the_later_steps_alone(tmp_path):
    settings = {"average": "mean", "average_from": 0.5, "schedule": "constant", "valid_every": 100}
    run(new_training(tmp_path, **settings, max_steps=6))
    training = new_training(tmp_path, **settings, max_steps=14)
    saved = checkpoint.load(training.saver.last_path)
    training.model.load_state_dict(saved.group("model"))
    training.restore(saved)
    assert training.average.weights == {}
    iterates, _ = train(training)
    mean = {name: torch.stack([weight[name] for weight in iterates[2:]]).double().mean(0) for name in iterates[0]}
    assert_close(training.average.weights, mean)


@pytest.mark.parametrize("changed", [ASGD, EXPONENTIAL], ids=["asgd", "exponential"])
def test_training_continues_with_its_own_weights(tmp_path, changed):
    plain = {key: value for key, value in changed.items() if not key.startswith("average")}
    averaged, usual = new_training(tmp_path / "a", **changed), new_training(tmp_path / "b", **plain)
    for training in (averaged, usual):
        run(training)
    assert_equal(weights(averaged), weights(usual))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_best_checkpoint_holds_the_average_and_the_last_one_both(tmp_path, precision):
    training = new_training(tmp_path, precision=precision, **EXPONENTIAL)
    bests = []
    for report in reports_of(training):
        training.saver.wait()
        if isinstance(report, ValidReport) and report.best:
            bests.append(report.step)
            best = checkpoint.load(training.saver.best_path)
            assert not best.group("average")
            mean = training.average.weights
            assert_equal(best.group("model"), mean)
            assert {weight.dtype for weight in best.group("model").values()} == {torch.float32}
    assert bests
    last = checkpoint.load(training.saver.last_path)
    own, mean = weights(training), training.average.weights
    assert_equal(last.group("model"), own)
    assert_equal(last.group("average"), mean)
    assert not any(torch.equal(mean[name], weight) for name, weight in own.items())
