"""Checks of several processes that train together; the results of rank 0 count."""

import dataclasses
import functools
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from tests.core.builders import V, draw_tokens, model_settings, rnn_settings
from tests.core.device_cases import CASES, build, load, start
from tests.core.tape import call_again
from tests.core.training.runs import CPU, L, new_training, run, steps_of
from txlcli.core.architectures.registry import new_model
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.training import checkpoint
from txlcli.core.training.distributed import join
from txlcli.core.training.loop import Training
from txlcli.errors import DisagreementError, TrainingError, UsageError

WORLD = join(CPU)
MODELS = [case for case in CASES if case != "adaptive softmax"]  # its vocabulary is too large to train on a CPU


def trained(directory, **changed):
    """Train six steps with validations in all processes; return reports and weights."""
    training = _training(directory, **changed)
    reports = run(training)
    return {
        "losses": [report.loss_nats for report in steps_of(reports)],
        "reports": [[report.kind, report.step, report.loss_nats] for report in reports],
        "weights": _flat_weights(training).tolist(),
        "difference": _difference_of_weights(training),
    }


class FailsCompiled(TransformerXL):
    """Cannot go back to the embedding of compiled layers in rank 1, when the gradients of all layers are there."""

    is_at_fault = False

    def objective(self, tokens, targets, memory, goal):
        is_compiled = self.backend.compiles and tokens.shape[1] == L and self.memory_is_full(memory, goal.mem_len)
        self.is_at_fault = is_compiled and WORLD.rank == 1
        return super().objective(tokens, targets, memory, goal)

    def embed(self, tokens, positions):
        hidden = super().embed(tokens, positions)
        if self.is_at_fault:
            hidden.register_hook(self._fail)
        return hidden

    def _fail(self, _):
        raise RuntimeError("no registers here")


def captured(directory, failing=None, **changed):
    """Train six steps as by CUDA graphs, of which rank 1 may fail to compute a part; return what happened."""

    def capture_graph(run, device, *, warm_up=0):
        if failing == "capture" and WORLD.rank == 1:
            raise UsageError("no graphs here")
        if failing == "rehearsal" and WORLD.rank == 1:
            raise RuntimeError("no kernels here")
        return call_again(run, device)

    if failing == "compiled layers":
        changed |= {"compile": "on", "model_class": FailsCompiled}
    training = _training(directory, cls=functools.partial(Training, capture_graph=capture_graph), **changed)
    with torch.compiler.set_stance("force_eager"):
        reports = run(training)
    return {
        "losses": [report.loss_nats for report in steps_of(reports)],
        "weights": _flat_weights(training).tolist(),
        "difference": _difference_of_weights(training),
        "path": training.path,
        "notes": training.notes,
    }


def with_rare_words(directory, *, captures):
    """Train on a text with rare words of rank 1 in the step after the first that is captured; return what happened."""
    lanes, lane_len, common = 4, 8 * L, 16
    ids = draw_tokens(1, lanes * lane_len + 1, seed=2, vocab_size=common)[0].numpy().astype(np.uint8)
    target = np.arange(-1, len(ids) - 1)
    is_rare = (target % lane_len // L == 3) & (target // lane_len >= lanes // 2)
    ids[is_rare] = common + 1
    cls = functools.partial(Training, capture_graph=call_again) if captures else Training
    shape = {"cutoffs": [5, common], "div_val": 2}
    training = _training(directory, cls=cls, ids=ids, batch_size=lanes, valid=False, max_steps=7, **shape)
    reports = run(training)
    return {"losses": [report.loss_nats for report in steps_of(reports)], "path": training.path}


def stopped_and_resumed(directory, steps, then=None, **changed):
    """Train as `trained` does, with a stop and a resumed run, which may have other settings (`then`)."""
    first = _training(directory, **changed)
    run(first, until=steps)
    distributed.barrier()  # rank 0 has written it
    saved = checkpoint.load(first.saver.last_path)
    second = _training(directory, weights=saved.group("model"), **changed | (then or {}))
    second.restore(saved)
    reports = run(second)
    return {"losses": [report.loss_nats for report in steps_of(reports)], "weights": _flat_weights(second).tolist()}


ARCHITECTURES = {
    "transformer": {"position": "relative"},
    "absolute": {"position": "learned", "n_positions": 16},
    "compressive": {"arch": "compressive", "compressed_len": 3, "compression_rate": 2},
    "untied": {"arch": "compressive", "compressed_len": 3, "compression_rate": 2, "tie_embeddings": False},
    "mean": {"arch": "compressive", "compressed_len": 3, "compression_rate": 2, "compression": "mean"},
    "rmt": {"arch": "rmt", "segment_len": 2, "n_memory_tokens": 3},
    "lstm": {"arch": "lstm"},
    "qrnn": {"arch": "qrnn"},
}
"""Small models of every architecture; the memory of a Compressive Transformer is compressed at the second step."""


def lifetime(directory, name, parallel="ddp", world=WORLD):
    """Train over compressions, validations and saves, and once more with a stop and a resume; return all losses."""
    shape = ARCHITECTURES[name]
    make = rnn_settings if name in ("lstm", "qrnn") else model_settings
    changed = {"max_steps": 4, "valid_every": 2, "parallel": parallel, "average": "exponential"}
    changed |= {"mem_len": 0} if name in ("rmt", "absolute") else {}

    def training(part, weights=None):
        model = new_model(make(**shape), V, seed=1, device=CPU)
        if weights:
            model.load_state_dict(weights)
        return new_training(Path(directory) / part, model=model, world=world, **changed)

    whole = run(training("whole"))
    first = training("stopped")
    run(first, until=3)
    if world.size > 1:
        distributed.barrier()  # rank 0 has written it
    saved = checkpoint.load(first.saver.last_path)
    second = training("stopped", saved.group("model"))
    second.restore(saved)
    return {
        "losses": [[report.kind, report.step, report.loss_nats] for report in whole],
        "resumed": [[report.kind, report.step, report.loss_nats] for report in run(second)],
    }


def validated(directory, **changed):
    """Validate an average that differs from the weights, after a step that changes neither; return the result."""
    training = _training(
        directory, max_steps=1, valid_every=1, optimizer="sgd", lr=1e-30, average_decay=0.99, **changed
    )
    before = _flat_weights(training)
    torch.manual_seed(23)
    of_names = {name: torch.randn(weight.shape) for name, weight in new_model_of(seed=1).named_parameters()}
    own = {name: training.parallel.own_part(one) for name, one in of_names.items()}
    training.average.restore({"steps": 1000}, own, step=training.step)
    reports = [report for report in run(training) if report.kind == "valid"]
    return {
        "losses": [report.loss_nats for report in reports],
        "tokens": [report.tokens for report in reports],
        "averaged": [report.averaged for report in reports],
        "change": float((_flat_weights(training) - before).abs().max()),
        "difference": _difference_of_weights(training),
    }


def stopped_in_validation(directory, calls, **changed):
    """Stop at the given call of `should_stop` in the last process; return reports and if the validation is due."""
    training, left = _training(directory, max_steps=1, valid_every=1, **changed), [calls]

    def should_stop():
        left[0] -= 1
        return left[0] <= 0 and WORLD.rank == WORLD.size - 1

    reports = list(training.run(report_every=1, should_stop=should_stop))
    return {
        "kinds": [report.kind for report in reports],
        "is_due": training.validation_is_due(),
        "calls": calls - left[0],
    }


def saved_after(directory, steps, **changed):
    run(_training(directory, **changed), until=steps)
    return sorted(checkpoint.load(Path(directory) / "last.safetensors").tensors) if WORLD.is_rank_zero else []


def state_bytes(directory, **changed):
    """Return the bytes of optimizer state that each process holds after a step, without step counters."""
    training = _training(directory, **changed)
    run(training, until=1)
    state = training.parallel.optimizer.state
    kept = [tensor for tensors in state.values() for tensor in tensors.values() if tensor.dim()]
    own = sum(getattr(tensor, "to_local", lambda tensor=tensor: tensor)().nbytes for tensor in kept)
    of_all = [None] * WORLD.size
    distributed.all_gather_object(of_all, own)
    return of_all


def updates_of_models(cases, **changed):
    """Take two steps of each case; return the losses and the largest difference of weights between processes."""
    results = {}
    for case in cases:
        training = training_of_case(case, WORLD, **changed)
        losses = [float(training.update().loss) for _ in range(2)]
        results[case] = {"difference": _difference_of_weights(training), "losses": losses}
    return results


def training_of_case(case, world, **changed):
    """Return a training of one of the cases without dropout."""
    settings = load(
        case, "train.max_steps=2", "train.seg_len=8", *(f"train.{key}={value}" for key, value in changed.items())
    )
    off = {name: type(rate)() for name, rate in vars(settings.model).items() if name.endswith("_dropout") and rate}
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, dropout=0.0, **off))
    torch.manual_seed(7)
    return start(settings, build(case, settings, CPU), world=world)


def masks(directory):
    """Return the largest differences of random numbers and of weights between processes."""
    training = _training(directory, dropout=0.5)
    return {"difference": _difference(torch.rand(5)), "weights_difference": _difference_of_weights(training)}


def agreement(facts):
    """Compare one element of `facts` per process; return what each one raises."""
    try:
        WORLD.agree(facts[WORLD.rank])
        raised = "", 0
    except DisagreementError as error:
        raised = str(error), error.exit_code
    of_all = [None] * WORLD.size
    distributed.all_gather_object(of_all, raised)
    return {"messages": [message for message, _ in of_all], "exit_codes": [code for _, code in of_all]}


def exchanged():
    """Exchange tensors of other shapes and dtypes in each process, and plain values; return what is received."""
    shapes = {torch.float64: (2, 3), torch.bfloat16: (5,), torch.int64: (), torch.uint8: (0, 7)}
    gathered = {}
    for dtype, shape in shapes.items():
        rows = torch.full((WORLD.rank + 1, *shape), WORLD.rank + 3, dtype=dtype)
        gathered[str(dtype)] = [
            [str(tensor.dtype), list(tensor.shape), tensor.tolist()] for tensor in WORLD.gather(rows)
        ]
    return {
        "gathered": gathered,
        "everywhere": [part.tolist() for part in WORLD.all_gather(torch.arange(2.0 * WORLD.rank))],
        "plain": WORLD.gather_objects({"été": [WORLD.rank, 0.1, float("inf"), None, 2**70]}),
        "rank 0": WORLD.from_rank_0(lambda: ["of rank", WORLD.rank]),
    }


def turns():
    """Return when each process has begun and ended what it does in turn."""

    def work():
        began = time.monotonic()
        time.sleep(0.1)
        return [began, time.monotonic()]

    return WORLD.gather_objects(WORLD.in_turn("turns", work))


def non_finite_loss(directory, **changed):
    """End all processes, rank 0 with an error; return its message."""
    training = _training(directory, lr=1e30, **changed)
    try:
        run(training)
    except TrainingError as error:
        return str(error)
    return ""


def _training(directory, weights=None, **changed):
    """Return a training with these weights, or other initial ones in each process, which those of rank 0 replace."""
    settings = {"max_steps": 6, "valid_every": 3, "average": "exponential", **changed}
    shape = {key: settings.pop(key) for key in ("cutoffs", "div_val") if key in settings}
    shape["model_class"] = settings.pop("model_class", TransformerXL)
    model = new_model_of(seed=1 + WORLD.rank, dropout=settings.pop("dropout", 0.0), **shape)
    if weights:
        model.load_state_dict(weights)
    return new_training(Path(directory), model=model, world=WORLD, **settings)


def new_model_of(*, seed, dropout=0.0, cutoffs=(), model_class=TransformerXL, **shape):
    settings = model_settings(dropout=dropout, attention_dropout=dropout, cutoffs=tuple(cutoffs), **shape)
    torch.manual_seed(seed)
    return model_class(settings, V)


def _flat_weights(training):
    weights = (parameter.detach() for parameter in training.model.parameters())
    return torch.cat([getattr(weight, "full_tensor", weight.clone)().flatten() for weight in weights])


def _difference_of_weights(training):
    return _difference(_flat_weights(training))


def _difference(tensor):
    """Return the largest difference between any process and rank 0."""
    if WORLD.size == 1:
        return 0.0
    first = tensor.clone()
    distributed.broadcast(first, src=0)
    largest = (first - tensor).abs().max()
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return float(largest)
