"""The training loop: steps, reports, and when it validates, saves and stops."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.core.builders import V, draw_tokens, model_settings
from tests.core.training.runs import (
    CPU,
    LANES,
    RISING,
    L,
    M,
    assert_equal,
    draw_split,
    losses_of,
    new_training,
    reports_of,
    run,
    steps_of,
    train_settings,
    valids_of,
    weights,
)
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import new_model
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.scoring import Scores, Stream, score
from txlcli.core.reading.windows import score_windows
from txlcli.core.training import checkpoint
from txlcli.core.training.loop import Training
from txlcli.core.training.reports import StepReport, ValidReport
from txlcli.core.training.validation import validation_settings
from txlcli.errors import TrainingError

COMPRESSIVE = {"arch": "compressive", "compressed_len": 3, "compression_rate": L, "memory_start": "zeros"}


def change_of(training, before):
    return torch.cat([(parameter - before[name]).flatten() for name, parameter in weights(training).items()])


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ({}, math.log(V)),
        # Four ids and two clusters, then one of 3 or of 12: of 3 1 4 1 5 9 2 6, four are in the head, three in a tail
        # of three, and one in the other.
        ({"cutoffs": (4, 7), "div_val": 2}, math.log(6) + (3 * math.log(3) + math.log(12)) / 8),
    ],
    ids=["whole", "adaptive"],
)
def test_the_first_loss_is_uniform_and_the_loss_falls_on_a_repetitive_text(tmp_path, shape, first):
    ids = np.tile(np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=np.uint8), 50)
    reports = run(new_training(tmp_path, ids=ids, shape=shape, valid=False, max_steps=100, schedule="constant"))
    losses = losses_of(reports)
    assert losses[0] == pytest.approx(first, abs=0.1)
    assert losses[-1] < 0.1


ONE_MASK_EACH = {
    **{"variational_dropout": True, "dropout": 0.0, "attention_dropout": 0.0},
    **{"embedding_dropout": 0.3, "distance_dropout": 0.3, "inner_dropout": 0.3, "output_dropout": 0.3},
}
"""One mask in each compiled function: PyTorch 2.11 samples masks that depend on no data in another order."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "dropout", "shape", "recompute"),
    [
        ("auto", 0.0, {}, False),
        ("auto", 0.0, {"cutoffs": (4, 7), "div_val": 2}, False),
        ("auto", 0.0, {"position": "rotary", "gating": "gru", "norm": "pre", "d_head": 12}, False),
        ("reference", 0.0, {"block": "modern", "norm": "pre", "window": 4}, False),
        ("reference", 0.0, COMPRESSIVE, False),
        ("auto", 0.3, {}, False),
        ("auto", 0.3, {}, "layers"),
        ("auto", 0.3, ONE_MASK_EACH, False),
    ],
)
def test_compiled_layers_train_the_same(tmp_path, attention, dropout, shape, recompute):
    """Without dropout as the layers of a CPU; with dropout, whose masks differ there, as the same layers uncompiled."""
    ids = draw_split(LANES * 4 * L + 1, seed=5)  # the memory is full from the third step on
    changes = {"dropout": dropout, "valid": False, "shape": shape, "ids": ids}
    torch.compiler.reset()  # forget the graphs of other tests, which count towards a limit
    with torch.compiler.set_stance("force_eager"):
        eager = new_training(tmp_path / "eager", **changes, compile="on" if dropout else "off")
        expected = losses_of(run(eager))
    torch._dynamo.utils.counters.clear()
    changes |= {"attention": attention, "recompute": recompute}
    compiled = new_training(tmp_path / "compiled", **changes, compile="on")
    with torch._inductor.config.patch(fallback_random=True):
        assert losses_of(run(compiled)) == pytest.approx(expected, rel=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 5  # embedding, distances, layer, output, loss
    for name, weight in weights(eager).items():
        # Adam divides tiny gradients, such as those of normalized queries and keys, by their size: rounding shows.
        torch.testing.assert_close(weights(compiled)[name], weight, rtol=1e-4, atol=5e-5 if shape else 1e-5)


def test_while_memory_grows_layers_run_eagerly():
    model = new_model(model_settings(), V, seed=1, device=CPU)
    layer, seen = model.layers[0], []
    layer.register_forward_pre_hook(lambda *_: seen.append(torch.compiler.is_compiling()))
    layer.compile(backend="eager")
    with model.uncompiled():
        model(draw_tokens(2, L, seed=1), model.first_memory(2, M), mem_len=M)
    assert seen == [False]


def test_compiled_training_runs_eagerly_until_its_memory_is_full(tmp_path):
    lengths = []

    class Recording(TransformerXL):
        """A model that needs no compiler, and records when it would not use it."""

        def make_backend(self, chosen):
            return super().make_backend(dataclasses.replace(chosen, compiles=False))

        def uncompiled(self):
            lengths.append(training.memories[0][0].shape[1])
            return super().uncompiled()

    torch.manual_seed(1)
    model = Recording(model_settings(), V)
    ids = draw_split(LANES * 6 * L + 1, seed=5)
    training = new_training(tmp_path, ids=ids, model=model, compile="on", valid=False, max_steps=5)
    for _ in range(5):
        training.update()
    assert lengths == [0, 5]  # M is 7


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_step_of_micro_batches_equals_a_step_of_the_whole_batch(tmp_path, accumulate, norm):
    def trained(parts):
        model = new_model(model_settings(norm=norm), V, seed=1, device=CPU).double()
        training = new_training(tmp_path / str(parts), model=model, optimizer="sgd", lr=0.5, accumulate=parts)
        return training, steps_of(run(training))

    (whole, whole_reports), (divided, divided_reports) = trained(1), trained(accumulate)
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weights(divided)[name], weight, rtol=0, atol=1e-6)
    for report, expected in zip(divided_reports, whole_reports, strict=True):
        assert report.loss_nats == pytest.approx(expected.loss_nats, rel=1e-6)
        assert report.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    for layer, memory in enumerate(whole.memories[0]):
        parts = torch.cat([memories[layer] for memories in divided.memories])
        torch.testing.assert_close(parts, memory, rtol=0, atol=1e-6)


def test_memory_grows_within_an_epoch_and_every_epoch_starts_without_memory(tmp_path):
    training = new_training(tmp_path, max_steps=7, accumulate=2)
    lengths = []
    for _ in reports_of(training):
        lengths.append([past.shape[1] for memory in training.memories for past in memory])
    # Segments of 5, 5 and 1 with M = 7; two micro-batches of two layers each; the last report is the validation's.
    assert lengths == [[n] * 4 for n in (5, 7, 7, 5, 7, 7, 5, 5)]


def test_a_memory_of_zeros_is_full_from_the_first_step_of_every_epoch(tmp_path):
    model = new_model(model_settings(memory_start="zeros"), V, seed=1, device=CPU)
    training = new_training(tmp_path, model=model, max_steps=4, accumulate=2, valid=False)
    zeros = []
    for _ in reports_of(training):
        rows = [past for memory in training.memories for past in memory]
        assert {past.shape[1] for past in rows} == {M}
        zeros.append({(past == 0).all(-1).all(0).sum().item() for past in rows})
    # Segments of 5, 5 and 1; then the next epoch.
    assert zeros == [{2}, {0}, {0}, {2}]


def test_bf16_trains_close_to_fp32(tmp_path):
    exact, rounded = (
        steps_of(run(new_training(tmp_path / precision, optimizer="sgd", lr=0.1, precision=precision)))
        for precision in ("fp32", "bf16")
    )
    for report, expected in zip(rounded, exact, strict=True):
        assert report.loss_nats != expected.loss_nats
        assert report.loss_nats == pytest.approx(expected.loss_nats, abs=0.02)
        assert report.grad_norm == pytest.approx(expected.grad_norm, rel=0.05)


@pytest.mark.parametrize(("clip", "clipped"), [(0.01, True), (1e6, False), (None, False)])
def test_the_whole_gradient_is_clipped_to_its_norm(tmp_path, clip, clipped):
    # At the rate 1, SGD moves the weights by the gradient itself.
    training = new_training(tmp_path, optimizer="sgd", lr=1.0, clip=clip, max_steps=1)
    before = weights(training)
    (report,) = steps_of(run(training))
    assert report.grad_norm > 0.02
    expected = 0.01 if clipped else report.grad_norm
    assert change_of(training, before).norm().item() == pytest.approx(expected, rel=1e-3)


def test_the_plateau_reduces_the_rate_of_the_next_steps(tmp_path):
    # A rate of 1e-30 changes nothing, so no validation is better than the first.
    reports = run(new_training(tmp_path, schedule="plateau", lr=1e-30, optimizer="sgd", valid_every=2, max_steps=8))
    assert [report.best for report in valids_of(reports)] == [True, False, False, False]
    assert [report.lr for report in steps_of(reports)] == pytest.approx([1e-30] * 4 + [5e-31] * 2 + [2.5e-31] * 2)


def test_the_plateau_does_not_reduce_the_rate_once_the_mean_has_begun(tmp_path):
    mean = {"average": "mean", "average_from": 4, "average_lr_factor": 3.0, "valid_every": 1, "max_steps": 7}
    reports = run(new_training(tmp_path, schedule="plateau", lr=1e-30, optimizer="sgd", **mean))
    assert [report.lr / 1e-30 for report in steps_of(reports)] == pytest.approx([1, 1, 0.5, 0.25, 0.75, 0.75, 0.75])


def test_a_report_is_the_mean_over_its_tokens_and_the_last_step_is_reported(tmp_path):
    each = steps_of(run(new_training(tmp_path / "each", max_steps=5)))
    both = steps_of(run(new_training(tmp_path / "both", max_steps=5), report_every=3))
    assert [report.step for report in each] == [1, 2, 3, 4, 5]
    assert [report.epoch for report in each] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3])
    assert all(report.tokens_per_s > 0 for report in each)
    assert [report.step for report in both] == [3, 5]
    first, second, third, *rest = (report.loss_nats for report in each)
    expected = [(5 * first + 5 * second + 1 * third) / 11, sum(rest) / 2]
    assert losses_of(both) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("seg_len", "mem_len", "valid_seg_len", "expected"),
    [
        (512, 512, 128, (128, 896)),
        (5, 7, None, (5, 7)),
        (5, 7, 12, (12, 0)),
        (5, 7, 1, (1, 11)),
        (5, 0, None, (5, 0)),
        (5, 0, 2, (5, 0)),  # without recurrence a shorter segment would only lose context
    ],
)
def test_validation_has_as_many_keys_as_training(seg_len, mem_len, valid_seg_len, expected):
    settings = train_settings(seg_len=seg_len, mem_len=mem_len, valid_seg_len=valid_seg_len, valid_batch_size=3)
    evaluation = validation_settings(settings)
    assert (evaluation.seg_len, evaluation.mem_len) == expected
    assert (evaluation.batch_size, evaluation.max_distance, evaluation.same_length) == (3, None, "off")


@pytest.mark.parametrize(
    "average", [{}, {"average": "asgd", "average_patience": 1}, {"average": "exponential"}], ids=str
)
def test_a_validation_is_the_mean_loss_of_the_split_with_the_average_if_there_is_one(tmp_path, average):
    training = new_training(tmp_path, dropout=0.2, **average, **RISING)
    averaged = 0
    for report in reports_of(training):
        if isinstance(report, ValidReport):
            averaged += report.averaged
            own = weights(training)
            training.model.load_state_dict(training.average.weights if report.averaged else own)
            settings = EvalSettings(seg_len=L, mem_len=M, batch_size=2, same_length="off")
            scores = score(Stream(training.model, training.valid.inputs, training.valid.targets, settings))
            assert report.tokens == len(scores.losses_nats) == 30
            assert report.loss_nats == pytest.approx(scores.total_nats / 30, rel=1e-6)
            training.model.load_state_dict(own)
    assert (averaged > 1) == bool(average)


def test_it_validates_every_valid_every_steps_and_at_the_end(tmp_path):
    reports = run(new_training(tmp_path, valid_every=2, max_steps=5))
    assert "".join(f"{report.kind[0]}{report.step} " for report in reports) == "t1 t2 v2 t3 t4 v4 t5 v5 "


def test_it_validates_after_every_epoch(tmp_path):
    training = new_training(tmp_path, valid_every="epoch", max_steps=20)
    reports = valids_of(run(training))
    count = training.segments.segments_in(0)
    assert count > 2
    assert [report.step for report in reports] == [*range(count, 20, count), 20]
    assert [report.epoch for report in reports][:-1] == list(range(1, len(reports)))


@pytest.mark.parametrize(("length", "stride"), [(7, 3), (L + M + 2, L + M + 1)], ids=["short", "beyond the memory"])
def test_it_validates_in_windows_as_an_evaluation_scores_them(tmp_path, length, stride):
    training = new_training(tmp_path, valid_attn_len=length, valid_seg_len=stride, valid_every=1, max_steps=1)
    (report,) = valids_of(run(training))
    settings = EvalSettings(seg_len=length, mem_len=0, batch_size=4, same_length="off")
    stream = Stream(training.model, training.valid.inputs, training.valid.targets, settings)
    scores = score_windows(stream, stride=stride)
    assert report.loss_nats == pytest.approx(scores.total_nats / len(scores.losses_nats), rel=1e-6)


def test_the_best_checkpoint_has_the_lowest_validation_loss(tmp_path):
    training = new_training(tmp_path, **RISING)
    reports = valids_of(run(training))
    losses = losses_of(reports)
    assert [report.best for report in reports] == [losses[n] < min([math.inf, *losses[:n]]) for n in range(12)]
    assert {report.best for report in reports} == {True, False}
    best = checkpoint.load(training.saver.best_path)
    assert best.state["step"] == 1 + losses.index(min(losses))
    assert best.state["best_nats"] == training.validations.best_nats == min(losses)
    model = checkpoint.build_model(training.model.settings, V, best)
    settings = EvalSettings(seg_len=L, mem_len=M, batch_size=2, same_length="off")
    scores = score(Stream(model, training.valid.inputs, training.valid.targets, settings))
    assert scores.total_nats / 30 == pytest.approx(min(losses), rel=1e-6)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_stop_saves_and_ends(tmp_path, steps):
    training = new_training(tmp_path)
    assert [report.step for report in run(training, until=steps)] == [1, 2][:steps]
    saved = checkpoint.load(training.saver.last_path)
    assert saved.state["step"] == steps
    assert saved.state["place"] == {"epoch": 0, "segment": steps}
    assert saved.state["recipe"] == "tiny"
    assert_equal(saved.group("model"), weights(training))


def test_it_ends_at_until_step_with_the_validation_of_that_step(tmp_path):
    training = new_training(tmp_path, valid_every=2)
    reports = list(reports_of(training, until_step=2))
    assert [(report.kind, report.step) for report in reports] == [("train", 1), ("train", 2), ("valid", 2)]
    assert checkpoint.load(training.saver.last_path).state["step"] == 2
    # The schedule is still that of the whole run.
    whole = steps_of(run(new_training(tmp_path / "whole", valid_every=2)))
    assert [report.lr for report in steps_of(reports)] == [report.lr for report in whole[:2]]


def assert_ends(training, reason):
    """Assert that the training ends with this error and keeps the last checkpoint."""
    good = training.saver.last_path.read_bytes()
    with pytest.raises(TrainingError, match=f"^{reason}; .*last.safetensors"):
        run(training)
    assert training.saver.last_path.read_bytes() == good


def test_a_non_finite_loss_names_the_step_and_keeps_the_last_checkpoint(tmp_path):
    # A weight becomes NaN before step 3; the file of step 2 is the last good one.
    training = new_training(tmp_path, max_steps=6)
    assert run(training, until=2)
    with torch.no_grad():
        training.model.softmax.biases[0][3] = math.nan
    assert_ends(training, "the loss is not finite at step 3")


def multiply_gradients(training, factor, *, steps=None):
    """Multiply the gradient of one matrix, in some steps or in all."""
    weight = training.model.layers[0].attention.w_q.weight
    weight.register_hook(lambda grad: grad * factor if steps is None or training.step + 1 in steps else grad)


@pytest.mark.parametrize("factor", [math.inf, math.nan, 1e30])  # the last one's square is beyond float32
@pytest.mark.parametrize("clip", [0.25, None])
def test_a_non_finite_gradient_changes_no_weight(tmp_path, factor, clip):
    training = new_training(tmp_path, clip=clip)
    assert run(training, until=2)
    before = weights(training)
    multiply_gradients(training, factor)
    assert_ends(training, "the gradient is not finite at step 3")
    assert_equal(weights(training), before)


def test_if_steps_are_not_checked_a_report_checks_the_gradients_of_all(tmp_path):
    training = new_training(tmp_path, valid=False, max_steps=6)
    training.checks_every_step = False  # as on CUDA
    multiply_gradients(training, 1e30, steps=[2])  # the clipped gradient is 0, so no loss shows it
    with pytest.raises(TrainingError, match="the gradient is not finite at a step up to 3"):
        run(training, report_every=3)
    assert training.step == 3


class BadLosses(TransformerXL):
    """A model whose loss in training is a NaN in some forward passes, counted from 1."""

    bad_passes, passes = (), 0

    def objective(self, *inputs, **options):
        self.passes += 1
        objective, loss, memory = super().objective(*inputs, **options)
        return objective, loss * (math.nan if self.passes in self.bad_passes else 1.0), memory


def skipping(directory, what, steps, **changed):
    """Return a training without dropout whose loss or gradient is not finite at these steps."""
    torch.manual_seed(TrainSettings.seed)
    model = BadLosses(model_settings(), V)
    training = new_training(directory, model=model, valid=False, max_steps=6, **changed)
    if what == "loss":
        training.model.bad_passes = steps
    else:
        multiply_gradients(training, math.inf, steps=steps)
    return training


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_skipped_step_changes_no_weight_passes_over_its_segment_and_empties_the_memory(tmp_path, what):
    training = skipping(tmp_path, what, [3], skip_nonfinite=1)
    run(training, until=2)
    before, position = weights(training), training.position
    assert training.update() is None
    assert training.step == 3
    assert training.position == training.segments.next_position(position)
    assert_equal(weights(training), before)
    assert [layer.shape[1] for memory in training.memories for layer in memory] == [
        layer.shape[1] for memory in new_training(tmp_path / "new").memories for layer in memory
    ]
    reports = steps_of(run(training))
    assert [(report.step, report.skipped_steps) for report in reports] == [(4, 1), (5, 0), (6, 0)]


def test_a_resumed_run_reports_the_skipped_steps_before_the_stop(tmp_path):
    run(skipping(tmp_path, "loss", [3], skip_nonfinite=1), until=4, report_every=6)
    again = skipping(tmp_path, "loss", [], skip_nonfinite=1)
    again.restore(checkpoint.load(again.saver.last_path))
    (report,) = steps_of(run(again, report_every=6))
    assert (report.step, report.skipped_steps) == (6, 1)


def test_a_resumed_run_counts_the_skipped_steps_in_a_row_before_the_stop(tmp_path):
    run(skipping(tmp_path, "gradient", [3, 4], skip_nonfinite=2), until=4)
    again = skipping(tmp_path, "gradient", [5], skip_nonfinite=2)
    again.restore(checkpoint.load(again.saver.last_path))
    with pytest.raises(TrainingError, match="not finite at 3 steps in a row up to step 5"):
        run(again)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_more_skipped_steps_in_a_row_than_allowed_end_the_training(tmp_path, what):
    training = skipping(tmp_path, what, [2, 4, 5, 6], skip_nonfinite=2)
    with pytest.raises(TrainingError, match=rf"^the {what} is not finite at 3 steps in a row up to step 6"):
        run(training)


def test_in_fp16_gradients_that_always_overflow_end_the_training(tmp_path):
    training = new_training(tmp_path, precision="fp16", valid=False, max_steps=60)
    multiply_gradients(training, math.inf)
    with pytest.raises(TrainingError, match="overflow in fp16 up to step 18"):
        run(training, report_every=30)
    assert list(tmp_path.iterdir()) == []


def test_in_fp16_a_few_steps_may_be_skipped(tmp_path):
    training = new_training(tmp_path, precision="fp16", valid=False, max_steps=12)
    multiply_gradients(training, math.inf, steps=range(1, 9))
    assert [report.step for report in run(training)] == list(range(1, 13))
    assert training.scaler.state_dict()["scale"] == 2.0**8


def test_in_fp16_a_run_resumes_with_its_loss_scale(tmp_path):
    training, again = (new_training(tmp_path, precision="fp16", valid=False) for _ in range(2))
    multiply_gradients(training, math.inf, steps=[1])
    run(training, until=2)
    again.restore(checkpoint.load(training.saver.last_path))
    assert again.scaler.state_dict() == training.scaler.state_dict()
    assert again.scaler.state_dict()["scale"] == 2.0**15


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize(
    ("changed", "lr", "are_finite"),
    [({"clip": None, "optimizer": "sgd"}, 1e300, False), ({}, 1e30, True)],  # 1e300 is beyond float32
)
def test_weights_after_a_finite_loss_that_give_no_finite_loss_are_not_saved(tmp_path, valid, changed, lr, are_finite):
    training = new_training(tmp_path, valid=valid, valid_every=3, max_steps=6, **changed)
    assert run(training, until=2)
    good = training.saver.last_path.read_bytes()
    training.settings = dataclasses.replace(training.settings, lr=lr)
    what = "loss is" if are_finite else "weights are"
    with pytest.raises(TrainingError, match=rf"{what} not finite after step 3; .*last\.safetensors;"):
        run(training)
    assert all(parameter.isfinite().all() for parameter in training.model.parameters()) == are_finite
    assert training.saver.last_path.read_bytes() == good
    assert training.step == 3


def test_a_non_finite_validation_names_the_run_to_resume(tmp_path):
    training = new_training(tmp_path, max_steps=6)
    run(training, until=2)
    message = f"validation loss is not finite after step 2, .*; resume from {tmp_path} in another"
    with pytest.raises(TrainingError, match=message):
        training.on_validation(Scores(np.full(2, math.nan), seconds=1.0, lanes=1))
    assert checkpoint.load(training.saver.last_path).state["step"] == 2
    assert not training.saver.best_path.exists()


ALWAYS = 1e-9
"""Minutes between saves that have always passed."""


class TimedTraining(Training):
    """A training with a clock of its own: an update takes 1 s, a save 100 s, a validation 1000 s."""

    def __init__(self, *arguments, **options):
        self.now = 0.0
        self.saved_steps = []
        super().__init__(*arguments, clock=lambda: self.now, **options)

    def update(self):
        self.now += 1
        return super().update()

    def save_last(self, **options):
        self.now += 100
        self.saved_steps.append(self.step)
        super().save_last(**options)

    def validate(self, tokens):
        self.now += 1000


def test_a_save_begins_a_new_interval(tmp_path):
    training = new_training(tmp_path, cls=TimedTraining, valid=False, max_steps=80, save_minutes=10.0)
    for _ in reports_of(training, until_step=8):
        training.now += 249  # 250 s for each step, with a save after every 600 s
    assert training.saved_steps == [3, 6, 8]


@pytest.mark.parametrize("valid_every", [2, 100])
def test_the_speed_of_steps_excludes_validations_and_saves(tmp_path, valid_every):
    training = new_training(tmp_path, cls=TimedTraining, valid_every=valid_every, max_steps=6, save_minutes=ALWAYS)
    reports = reports_of(training, on_valid_tokens=training.validate)
    speeds = [report.tokens_per_s for report in steps_of(reports)]
    assert speeds == [LANES * L, LANES * L, LANES * 1] * 2
    assert training.now > 100


@pytest.mark.parametrize("limit", ["until", "until_step"])
@pytest.mark.parametrize("stop", [4, 5, 6, 7])
def test_reports_cover_the_same_steps_with_saves_a_stop_and_a_resumption(tmp_path, stop, limit):
    lengths = {"max_steps": 11, "valid_every": 7}
    reports = run(new_training(tmp_path / "whole", **lengths), report_every=3)
    whole = steps_of(reports)
    assert [(report.after, report.step) for report in whole] == [(0, 3), (3, 6), (6, 7), (7, 9), (9, 11)]
    assert [(report.after, report.step) for report in valids_of(reports)] == [(0, 7), (7, 11)]
    saving = steps_of(run(new_training(tmp_path / "saving", **lengths, save_minutes=ALWAYS), report_every=3))
    assert losses_of(saving) == losses_of(whole)
    first = steps_of(run(new_training(tmp_path / "stopped", **lengths), report_every=3, **{limit: stop}))
    training = new_training(tmp_path / "stopped", **lengths)
    saved = checkpoint.load(training.saver.last_path)
    training.model.load_state_dict(saved.group("model"))
    training.restore(saved)
    complete = [report for report in first if report.step <= training.reported]
    rest = steps_of(run(training, report_every=3))
    assert losses_of([*complete, *rest]) == losses_of(whole)


def test_training_ends_after_validations_without_improvement(tmp_path):
    losses = losses_of(valids_of(run(new_training(tmp_path / "whole", **RISING))))
    best = [min(losses[: n + 1]) == loss for n, loss in enumerate(losses)]
    last = next(n + 1 for n in range(1, 12) if not best[n] and not best[n - 1])  # the second in a row
    training = new_training(tmp_path / "ended", **RISING, stop_after=2)
    assert losses_of(valids_of(run(training))) == losses[:last]
    assert training.has_ended
    assert 2 < last < 12


@pytest.mark.parametrize("changed", [{}, {"average": "exponential", "average_decay": 0.5}], ids=["weights", "average"])
def test_the_weights_of_every_nth_step_are_kept(tmp_path, changed):
    training = new_training(tmp_path, max_steps=7, keep_every=3, valid_every=2, **changed)
    expected = {}
    for report in reports_of(training):
        if isinstance(report, StepReport):
            now = training.average.weights or weights(training)
            expected[report.step] = {name: tensor.clone() for name, tensor in now.items()}
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-3.safetensors", "step-6.safetensors"]
    for step in (3, 6):
        saved = checkpoint.load(tmp_path / f"step-{step}.safetensors")
        assert saved.state["step"] == step
        assert_equal(saved.group("model"), expected[step])
