"""What processes find that train together; the leading one's word counts."""

import dataclasses
from pathlib import Path

import torch
from torch import distributed

from tests.core.builders import V, model_settings
from tests.core.device_cases import CASES, build, load, start
from tests.core.training.test_loop import CPU, new_training, run, steps_of
from txlcli.core.training import checkpoint
from txlcli.core.training.data_parallel import join
from txlcli.core.training.loop import new_model
from txlcli.errors import TrainingError

WORLD = join(CPU)
KINDS = [case for case in CASES if case != "adaptive softmax"]  # its vocabulary is for devices without numbers


def trained(folder, **changed):
    """A training of six steps with validations, by all processes: its reports and its weights."""
    training = _training(folder, **changed)
    reports = _carry_out(training)
    found = {"losses": [report.loss_nats for report in steps_of(reports)]}
    found |= {"reports": [[report.kind, report.step, report.loss_nats] for report in reports]}
    return found | {"weights": _flat(training).tolist(), "apart": _apart(training)}


def stopped_and_resumed(folder, steps, **changed):
    """As `trained`, in two goes."""
    first = _training(folder, **changed)
    _carry_out(first, until=steps)
    second = _training(folder, **changed)
    saved = checkpoint.load(second.last_path)
    second.model.load_state_dict(saved.group("model"))
    second.restore(saved)
    reports = _carry_out(second)
    return {"losses": [report.loss_nats for report in steps_of(reports)], "weights": _flat(second).tolist()}


def saved_after(folder, steps, **changed):
    """A checkpoint for others to go on from."""
    _carry_out(_training(folder, **changed), until=steps)
    return sorted(checkpoint.load(Path(folder) / "last.safetensors").tensors) if WORLD.is_rank_zero else []


def kinds_of_models(folder):
    """Two updates of each case: how far the processes' weights are from each other, and what they came to."""
    found = {}
    for case in KINDS:
        training = kind_of_model(case, WORLD)
        reports = [training.update() for _ in range(2)]
        found[case] = {"apart": _apart(training), "losses": [float(loss) for loss, *_ in reports]}
    return found


def kind_of_model(case, world):
    """A training of one of the cases, without anything random."""
    settings = load(case, "train.max_steps=2", "train.seg_len=8")
    off = {field.name: 0.0 for field in dataclasses.fields(settings.model) if field.name.endswith("_dropout")}
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, dropout=0.0, **off))
    torch.manual_seed(7)
    return start(settings, build(case, settings, CPU), world=world)


def masks(folder):
    """Whether processes drop other activations."""
    training = _training(folder, dropout=0.5)
    drawn = torch.rand(5)
    return {"apart": _farthest(drawn), "weights": _apart(training)}


def a_loss_that_is_not_finite(folder):
    """All processes end, the leading one with the error."""
    training = _training(folder, lr=1e30)
    try:
        _carry_out(training)
    except TrainingError as error:
        return str(error)
    return ""


def _training(folder, **changed):
    """Of other weights in each process, which the leading one's replace."""
    settings = {"max_steps": 6, "valid_every": 3, "average": "exponential", **changed}
    model = new_model_of(seed=1 + WORLD.rank, dropout=settings.pop("dropout", 0.0))
    return new_training(Path(folder), model=model, world=WORLD, **settings)


def new_model_of(*, seed, dropout=0.0):
    """The model that all these checks train."""
    return new_model(model_settings(dropout=dropout, attention_dropout=dropout), V, seed=seed, device=CPU)


def _carry_out(training, **until):
    if WORLD.is_rank_zero:
        return run(training, **until)
    training.execute_commands()
    return []


def _flat(training):
    return torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])


def _apart(training):
    return _farthest(_flat(training))


def _farthest(tensor):
    """The largest difference between this process's numbers and those of the leading one."""
    first = tensor.clone()
    distributed.broadcast(first, src=0)
    most = (first - tensor).abs().max()
    distributed.all_reduce(most, op=distributed.ReduceOp.MAX)
    return float(most)
