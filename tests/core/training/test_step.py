"""Training with CUDA graphs equals training without them, bit for bit.

A stand-in for CUDA graphs replays operations on the same memory (tests/core/tape.py). Real capture needs a GPU.
"""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from tests.core import tape
from tests.core.builders import V, draw_tokens, model_settings
from tests.core.tape import Graphs
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.compressive import CompressiveTransformer
from txlcli.core.architectures.rmt import RecurrentMemoryTransformer
from txlcli.core.kernels.modes import use_row_multiple
from txlcli.core.kernels.recomputation import recomputed
from txlcli.core.model.layer import update_memory
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.errors import TrainingError

CPU = torch.device("cpu")
LR, SCHEDULE = 2.0**-7, {"schedule": "constant", "warmup_steps": 4}  # exact in float32, as graphs read them
LANES, LANE_LEN, L, M = 3, 38, 5, 7  # an epoch: memories of 0 and 5, then six whole segments, then a shorter one
STEPS = 13  # until graphs are replayed in the second epoch
DOCUMENT = 11  # tokens of a document, with reset_at_documents
MODELS = {
    "relative": {"dropout": 0.2, "attention_dropout": 0.2, "word_dropout": 0.2},
    "variational": {"dropout": 0.2, "variational_dropout": True, "tie_biases": False},
    "shaw": {"position": "shaw", "n_positions": 6, "norm": "pre"},
    "sinusoid": {"position": "sinusoid"},
    "learned": {"position": "learned", "n_positions": L},
    "alibi": {"position": "alibi"},
    "memory of zeros": {"memory_start": "zeros"},
    "window": {"window": 4},
    "compressive": {"arch": "compressive", "compressed_len": 2, "compression_rate": 5, "dropout": 0.2},
    "memory tokens": {"arch": "rmt", "segment_len": L, "n_memory_tokens": 2, "dropout": 0.2},
    "gated": {"gating": "gru", "norm": "pre", "dropout": 0.2},
    "modern": {"block": "modern", "norm": "pre", "dropout": 0.2},
}


class GradientsAsOnCuda:
    """The parts of a model that write gradients to new memory in each step."""

    def make_backend(self, chosen):
        return super().make_backend(dataclasses.replace(chosen, gradient_of_rows=False))

    def forget_gradients(self):
        self.zero_grad(set_to_none=True)


class ModelAsOnCuda(GradientsAsOnCuda, TransformerXL):
    reads_padded_rows = True


class RecomputedInACapture(ModelAsOnCuda):
    """Transformer-XL whose layers are computed again as in a capture, which cannot set the state of a generator."""

    def layer_function(self, layer):
        keeps = torch.is_grad_enabled()
        return partial(recomputed, layer, keeps_random_numbers=True) if keeps else layer


class CompressiveAsOnCuda(GradientsAsOnCuda, CompressiveTransformer):
    """The Compressive Transformer as on CUDA."""


class RmtAsOnCuda(GradientsAsOnCuda, RecurrentMemoryTransformer):
    """The Recurrent Memory Transformer as on CUDA."""


AS_ON_CUDA = {"transformer": ModelAsOnCuda, "compressive": CompressiveAsOnCuda, "rmt": RmtAsOnCuda}


def begin(model_changes, *, steps=20, capture_graph=None, ids=None, cls=None, **changed):
    settings = TrainSettings(
        **{"seg_len": L, "mem_len": M, "batch_size": LANES, "max_steps": steps, "lr": LR, "clip": 0.5, **SCHEDULE}
        | changed
    )
    torch.manual_seed(1)
    cls = cls or AS_ON_CUDA[model_changes.get("arch", "transformer")]
    model = cls(model_settings(**model_changes), V)
    ids = draw_tokens(1, LANES * LANE_LEN + 1, seed=2)[0].numpy().astype(np.uint8) if ids is None else ids
    starts = np.arange(0, len(ids), DOCUMENT) if settings.reset_at_documents else None
    segments = TrainingSegments(ids, settings, starts, shuffles=False)
    return Training(model, settings, segments, capture_graph=capture_graph)


def trained(model_changes, *, steps=20, **changed):
    """Return losses and gradient norms of the steps, and the weights, averages and memories after them."""
    return take_steps(begin(model_changes, steps=steps, **changed), steps)


def loss_and_norm(result):
    return [float(result.loss), float(result.grad_norm)]


def take_steps(training, steps):
    """Take steps; return what `trained` does."""
    numbers = [loss_and_norm(training.update()) for _ in range(steps)]
    memories = [tensor for memory in training.memories for tensor in memory]
    return numbers, [*training.model.parameters(), *training.average.weights.values(), *memories]


def assert_equal(given, expected):
    """Check that two results of `trained` are equal bit for bit."""
    assert given[0] == expected[0]
    torch.testing.assert_close(given[1], expected[1], rtol=0, atol=0)


def assert_close(given, expected, *, of_numbers, rtol, atol):
    """Check that two results of `trained` are equal up to tolerances, of losses and norms, and of tensors."""
    np.testing.assert_allclose(given[0], expected[0], rtol=of_numbers)
    torch.testing.assert_close(given[1], expected[1], rtol=rtol, atol=atol)


def assert_graphs_train_the_same(model_changes, *, expected=2, **changed):
    """Check that training by captured graphs, of which there are so many, equals eager training."""
    graphs = Graphs()
    given = trained(model_changes, steps=STEPS, capture_graph=graphs, **changed)
    assert_equal(given, trained(model_changes, steps=STEPS, **changed))
    assert graphs.captured == expected


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_replayed_graphs_train_the_same(changes):
    assert_graphs_train_the_same(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"mem_len": 0},
        {"mem_len": L},
        {"loss_part": "half", "seg_len": 4},
        {"average": "exponential", "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
        {"clip": None, "optimizer": "adamw", "average": "exponential"},
        {"skip_nonfinite": 2},
        {"accumulate": LANES},
        {"reread_len": 3, "mem_len": 0, "activation_penalty": 2.0, "slowness_penalty": 1.0},
        {"reread_len": 6},
        {"reset_at_documents": True, "reread_len": 2},
        {"reset_at_documents": True, "accumulate": LANES, "precision": "bf16"},
    ],
    ids=str,
)
def test_replayed_graphs_train_the_same_with_other_settings(changes):
    assert_graphs_train_the_same(MODELS["relative"], **changes)


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_optimizers_that_treat_tensors_together_train_nearly_the_same_as_one_by_one(optimizer):
    changed = {"optimizer": optimizer, "weight_decay": 0.1, "schedule": "cosine"}
    tolerance = 1e-2 if optimizer == "muon" else 1e-5  # Muon iterates in bf16
    given, expected = (trained(MODELS["relative"], capture_graph=how, **changed) for how in (tape.capture, None))
    assert_close(given, expected, of_numbers=tolerance, rtol=1e-2, atol=tolerance)


@pytest.mark.parametrize("name", ["relative", "variational", "modern"])
def test_recomputed_layers_repeat_their_random_numbers_in_every_replay(name):
    expected = trained(MODELS[name], steps=STEPS)
    for how in (None, tape.capture):
        recomputed_layers = trained(MODELS[name], steps=STEPS, cls=RecomputedInACapture, capture_graph=how)
        assert_equal(recomputed_layers, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"mem_len": 0, "reread_len": 3},
        {"reread_len": 3, "activation_penalty": 2.0, "slowness_penalty": 1.0},
        {"loss_part": "half", "seg_len": 6},
        {"reset_at_documents": True},
    ],
    ids=str,
)
def test_jittered_segments_are_padded_for_one_graph_and_train_the_same_to_rounding(changes):
    graphs, changes = Graphs(), {**changes, "seg_len_jitter": True, "optimizer": "sgd", "lr": 0.25}
    given, expected = (trained({}, capture_graph=how, **changes) for how in (graphs, None))
    assert graphs.captured == 2
    assert_close(given, expected, of_numbers=2e-5, rtol=1e-4, atol=1e-5)


class FirstOfEachSegment(ModelAsOnCuda):
    """A memory of the first state of each segment, of which the rule says nothing about padding."""

    def remember(self, pasts, outputs, goal):
        pairs = zip(pasts, outputs, strict=True)
        return [update_memory(past.hidden, out.kept[:, :1], mem_len=goal.mem_len) for past, out in pairs]


@pytest.mark.parametrize(("jitters", "expected"), [(False, 2), (True, 0)])
def test_a_rule_of_memory_that_may_keep_padding_is_captured_without_jitter_only(jitters, expected):
    graphs = Graphs()
    training = begin({}, cls=FirstOfEachSegment, capture_graph=graphs, mem_len=2, seg_len_jitter=jitters)
    for _ in range(7):
        training.update()
    assert graphs.captured == expected
    assert any("FirstOfEachSegment" in note for note in training.notes) == jitters


class OneMoreInTurn(ModelAsOnCuda):
    """A memory of M and of M + 1 positions in turn."""

    def remember(self, pasts, outputs, goal):
        memory = []
        for past, output in zip(pasts, outputs, strict=True):
            is_full = past.hidden.shape[1] == goal.mem_len
            memory.append(update_memory(past.hidden, output.kept, mem_len=goal.mem_len + is_full))
        return memory


def test_a_full_memory_that_changes_its_length_trains_only_if_the_class_says_so():
    class SaysSo(OneMoreInTurn):
        def memory_keeps_length(self, seg_len):
            return False

    graphs = Graphs()
    assert_equal(trained({}, cls=SaysSo, capture_graph=graphs), trained({}, cls=SaysSo))
    assert graphs.captured == 0
    with pytest.raises(TrainingError, match="memory_keeps_length"):
        trained({}, cls=OneMoreInTurn, capture_graph=graphs)


class KeepsGradient(ModelAsOnCuda):
    """A memory of outputs instead of inputs, which are not detached."""

    def remember(self, pasts, outputs, goal):
        return [output.hidden[:, -goal.mem_len :] for output in outputs]


def test_a_memory_with_a_gradient_is_refused_in_the_first_step():
    with pytest.raises(TrainingError, match="KeepsGradient returns has a gradient"):
        begin({}, cls=KeepsGradient).update()


@pytest.mark.parametrize(
    ("model_changes", "changes", "graphs"),
    [
        ({}, {"attention": "reference"}, 0),
        ({"position": "learned", "n_positions": L, "auxiliary_losses": True}, {"mem_len": 0}, 0),
        ({"arch": "compressive", "compressed_len": 2, "compression_rate": 3}, {}, 0),
    ],
    ids=str,
)
def test_what_differs_between_steps_runs_eagerly(model_changes, changes, graphs):
    assert_graphs_train_the_same(model_changes, expected=graphs, **changes)


@pytest.mark.parametrize("resets", [False, True])
def test_a_run_that_is_stopped_between_captured_steps_resumes_bit_for_bit(resets):
    changed = {"average": "exponential", "precision": "bf16", "capture_graph": tape.capture}
    changed["reset_at_documents"] = resets
    numbers, tensors = trained(MODELS["relative"], **changed)
    first, second = (begin(MODELS["relative"], **changed) for _ in range(2))
    for _ in range(12):
        first.update()
    saved = Checkpoint({name: tensor.detach().clone() for name, tensor in first.gather().items()}, first.state())
    second.model.load_state_dict(saved.group("model"))
    second.restore(saved)
    assert_equal(take_steps(second, 8), (numbers[12:], tensors))


def test_an_eager_step_that_runs_out_of_memory_drops_the_graphs_and_is_taken_again():
    calls, graphs = [], Graphs()

    class Large(ModelAsOnCuda):
        """A model that runs out of memory in the first eager step after a capture, once its gradients are there."""

        def objective(self, *args, **how):
            calls.append(args)
            objective, *others = super().objective(*args, **how)
            if len(calls) == 6:  # two while memory grows, three of the capture
                objective.register_hook(lambda _: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")))
            return objective, *others

    assert_equal(trained({}, cls=Large, capture_graph=graphs), trained({}))
    assert graphs.captured == 4


@pytest.mark.parametrize("failing", [1, 2])
def test_if_a_graph_cannot_be_captured_the_user_is_told_and_training_is_the_same(failing):
    graphs = Graphs(failing=failing)
    assert_equal(trained(MODELS["relative"], capture_graph=graphs), trained(MODELS["relative"]))
    assert graphs.captured == failing


ADAPTIVE = {"cutoffs": (5, 16), "div_val": 2, "dropout": 0.2}


@pytest.mark.parametrize(
    ("text", "replays"),
    [("usual", 15), ("without the last tail", 15), ("with a burst of rare ids", 13), ("of rare ids only", 15)],
)
def test_with_an_adaptive_softmax_replayed_graphs_train_the_same(text, replays):
    """A tail has more rows than targets, which rounds sums otherwise; a burst has more targets than rows."""
    graphs, changed = Graphs(), {"batch_size": 8, "ids": ids_of(text), "accumulate": 2, "optimizer": "sgd", "steps": 10}
    given, expected = (trained(ADAPTIVE, capture_graph=how, **changed) for how in (graphs, None))
    assert_close(given, expected, of_numbers=1e-5, rtol=1e-5, atol=1e-6)
    assert graphs.replays == replays


def ids_of(text, lanes=8, lane_len=10 * L):
    """A text for eight lanes, in which some ids or all are of the last tail.

    With a burst of them, tails of a batch are empty, as full as they can be (24 targets), and too small.
    """
    ids = np.random.default_rng(2).choice(16, size=lanes * lane_len + 1).astype(np.uint8)
    at = np.arange(len(ids))
    segment, place = (at - 1) % lane_len // L, (at - 1) % L  # of targets
    rare = {
        "usual": at % 29 == 0,
        "with a burst of rare ids": (segment == 5) | ((segment == 7) & (place < 3)),
        "of rare ids only": at >= 0,
        "without the last tail": at < 0,
    }[text]
    ids[rare] = 17
    return ids


def test_padded_widths_change_no_number_count_or_checkpoint():
    """As in compiled layers on CUDA, whose hidden states, heads and inner widths are multiples of 8."""
    updates, checkpoints = [], []
    for multiple in (1, 8):
        with use_row_multiple(multiple), torch.compiler.set_stance("force_eager"):
            training = begin({}, steps=4, compile="on")
            updates.append([number for _ in range(4) for number in loss_and_norm(training.update())])
        assert training.model.width == {1: 14, 8: 16}[multiple]
        checkpoints.append(training.gather())
    torch.testing.assert_close(*updates, rtol=1e-5, atol=0)
    torch.testing.assert_close(*checkpoints, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("capture_graph", [None, tape.capture], ids=["eager", "captured"])
def test_an_error_of_the_model_itself_is_raised_as_it_is_after_one_repeat_without_compiled_layers(capture_graph):
    failures = []

    class Failing(ModelAsOnCuda):
        is_broken = False

        def objective(self, *arguments):
            if Failing.is_broken:
                failures.append(self.backend.compiles)
                raise ZeroDivisionError
            return super().objective(*arguments)

    with torch.compiler.set_stance("force_eager"):
        training = begin({}, cls=Failing, compile="on", capture_graph=capture_graph)
        for _ in range(2):  # then the memory is full
            training.update()
        Failing.is_broken = True
        with pytest.raises(ZeroDivisionError) as raised:
            training.update()
    assert failures == [True, False]
    assert raised.traceback[-1].name == "objective"
    assert raised.value.__context__ is None
