"""Segments that are read after tokens which were read before (train.reread_len), and segments of sampled lengths."""

import dataclasses

import numpy as np
import pytest
import torch

from tests import reference
from tests.core.builders import draw_tokens, small_model, small_rnn
from tests.core.oracle import numbers_of, weights_of
from tests.core.training.runs import new_training, run, steps_of, train_settings, valids_of
from tests.core.training.test_segments import segments_of
from txlcli.config.train_settings import JITTER_MARGIN, USUAL_JITTER
from txlcli.core.model.losses import Objective
from txlcli.core.reading.scoring import Stream, score
from txlcli.core.training.segments import StreamPosition, jittered_edges
from txlcli.core.training.validation import validation_settings

B, LANE_LEN, L = 2, 23, 5
IDS = draw_tokens(1, B * LANE_LEN + 1, seed=8)[0].numpy()


def epoch_of(segments, epoch=0):
    return [segments.at(StreamPosition(epoch, number)) for number in range(segments.segments_in(epoch))]


@pytest.mark.parametrize(("reread_len", "mem_len"), [(3, 0), (7, 0), (3, 4), (7, 4), (4, 7), (0, 7)])
def test_segments_read_again_are_windows_of_the_reference(reread_len, mem_len):
    model = small_model()
    weights = weights_of(numbers_of(model), model.settings)
    segments = segments_of(IDS, batch_size=B, seg_len=L, reread_len=reread_len)
    memory, past = model.first_memory(B, mem_len), [reference.first_memory(weights) for _ in range(B)]
    for number in range(segments.segments_in(0)):
        position = StreamPosition(0, number)
        predicted, tokens = segments.range_of(position), torch.from_numpy(segments.at(position))
        goal = Objective(mem_len=mem_len, reread_len=reread_len)
        targets = tokens[:, -len(predicted) :]
        _, loss, memory = model.objective(tokens[:, :-1], targets, memory, goal)
        nats = []
        for lane in range(B):
            # What the oracle reads is cut out of the text by hand; its memory ends where the next window begins.
            first = max(0, predicted.start - reread_len)
            text = IDS[lane * LANE_LEN :][: predicted.stop + 1].tolist()
            log_probs, known = reference.forward(text[first:-1], past[lane], weights, mem_len=10**6)
            nats += list(reference.cross_entropy_nats(log_probs, text[first + 1 :])[-len(predicted) :])
            end = max(0, predicted.stop - reread_len) - (first - len(past[lane][0]))
            past[lane] = [rows[max(0, end - mem_len) : end] for rows in known]
        assert loss.item() == pytest.approx(np.mean(nats), rel=1e-10)
        assert [tuple(part.shape) for part in memory] == [(B, len(past[0][0]), 14)] * 2


def test_the_gradient_passes_through_the_tokens_that_are_read_again():
    model, tokens = small_model(), draw_tokens(B, 8)
    empty = model.first_memory(B, 0)
    loss, _, _ = model.objective(tokens, tokens[:, 3:], empty, Objective(mem_len=0, reread_len=3))
    hidden, _ = model(tokens, empty, mem_len=0)
    expected = model.losses(hidden[:, 3:], tokens[:, 3:]).mean()
    ours, theirs = (torch.autograd.grad(value, list(model.parameters())) for value in (loss, expected))
    torch.testing.assert_close(ours, theirs)


def validation_settings_of(seg_len, **changed):
    return validation_settings(train_settings(seg_len=seg_len, **changed))


def test_validation_remembers_what_training_reads_again(tmp_path):
    settings = validation_settings_of(5, mem_len=0, reread_len=7)
    assert (settings.seg_len, settings.mem_len) == (5, 7)
    settings = validation_settings_of(5, mem_len=4, reread_len=7, valid_seg_len=3)
    assert (settings.seg_len, settings.mem_len) == (3, 13)
    training = new_training(tmp_path, mem_len=0, reread_len=7, max_steps=1, valid_every=1)
    (valid,) = valids_of(run(training))
    scores = score(
        Stream(training.model, training.valid.inputs, training.valid.targets, validation_settings(training.settings))
    )
    assert valid.loss_nats == pytest.approx(scores.total_nats / len(scores.losses_nats))


def jittered(seg_len=70, lane_len=20_000, **changed):
    ids = np.arange(2 * lane_len + 1)
    return segments_of(ids, batch_size=2, seg_len=seg_len, seg_len_jitter=True, **changed)


@pytest.mark.parametrize("changed", [{}, {"reread_len": 30}, {"roll_lanes": True}])
def test_sampled_lengths_cover_every_epoch_once_and_have_the_distribution_of_awd_lstm(changed):
    segments, lengths = jittered(**changed), []
    for epoch in range(3):
        ranges = [segments.range_of(StreamPosition(epoch, number)) for number in range(segments.segments_in(epoch))]
        assert [each.start for each in ranges] == [0, *(each.stop for each in ranges[:-1])]
        assert ranges[-1].stop == 20_000
        lengths += [len(each) for each in ranges[:-1]]
        targets = np.hstack(
            [window[:, -len(each) :] for window, each in zip(epoch_of(segments, epoch), ranges, strict=True)]
        )
        if "roll_lanes" not in changed:
            assert targets.flatten().tolist() == list(range(1, 40_001))
    long = [length for length in lengths if length > 52]
    assert len(long) / len(lengths) == pytest.approx(0.95, abs=0.02)
    assert np.mean(long) == pytest.approx(69.5, abs=0.6)  # a length is rounded down
    assert np.std(long) == pytest.approx(5, abs=0.4)
    short = [length for length in lengths if length <= 52]
    assert np.mean(short) == pytest.approx(34.5, abs=2)
    assert min(lengths) >= 5
    assert max(lengths) <= 70 + JITTER_MARGIN
    assert segments.segments_in(0) != segments.segments_in(1) or lengths[:5] != lengths[300:305]


def test_a_sampled_length_has_no_limit_but_the_text():
    lengths = np.diff(jittered_edges(20_000_000, 70, (1,)))
    assert lengths.max() > 70 + USUAL_JITTER
    segments = jittered()
    last = StreamPosition(0, segments.segments_in(0) - 1)
    assert len(segments.range_of(last)) < segments.sampled_length(last)  # the text ends within this one


def test_the_rate_of_a_step_is_scaled_by_its_length(tmp_path):
    # Plain SGD without clipping: the change of the weights is the rate times the gradient.
    ids = draw_tokens(1, 401, seed=3)[0].numpy()
    settings = {"optimizer": "sgd", "lr": 0.5, "clip": None, "schedule": "constant", "batch_size": 2, "mem_len": 0}
    sampled = {"seg_len": 5, "seg_len_jitter": True}
    length = len(segments_of(ids, batch_size=2, **sampled, seed=5).range_of(StreamPosition()))
    assert length != 5
    changes = []
    for lengths in (sampled, {"seg_len": length}):  # the latter at the full rate
        training = new_training(tmp_path, ids=ids, **settings, **lengths, seed=5)
        (before,) = (bias.detach().clone() for bias in training.model.softmax.biases)
        training.update()
        changes.append(training.model.softmax.biases[0].detach() - before)
    torch.testing.assert_close(changes[0], changes[1] * length / 5)


def test_penalties_are_in_the_objective_and_not_in_the_loss():
    # Three positions of two channels: squares 1 + 4 + 9 + 0 + 1 + 1 over 6; differences 2, -2 and -2, 1 over 4.
    hidden, loss = torch.tensor([[[1.0, 2.0], [3.0, 0.0], [1.0, 1.0]]]), torch.tensor(5.0)
    without_the_last = torch.tensor(2)  # which is padding

    def penalized(activation, slowness, hidden, seg_len=None):
        goal = Objective(mem_len=0, activation_penalty=activation, slowness_penalty=slowness, seg_len=seg_len)
        return sum(goal.penalties(hidden), loss).item()

    assert penalized(3.0, 0.0, hidden) == pytest.approx(5 + 3 * 16 / 6)
    assert penalized(0.0, 0.5, hidden) == pytest.approx(5 + 0.5 * (4 + 4 + 4 + 1) / 4)
    assert penalized(3.0, 0.5, hidden, without_the_last) == pytest.approx(penalized(3.0, 0.5, hidden[:, :2]))
    assert penalized(1.0, 7.0, hidden[:, :1]) == pytest.approx(5 + 5 / 2)


def test_the_change_between_documents_counts_as_none():
    torch.manual_seed(3)
    first, second = torch.randn(1, 3, 5), torch.randn(1, 2, 5)
    reread = torch.tensor([[2, 3]])
    since_reset = torch.cat([reread, torch.tensor([[0, 1, 2, 0, 1]])], dim=1)
    alone = Objective(mem_len=0, slowness_penalty=7.0)
    joined = dataclasses.replace(alone, since_reset=since_reset)
    padded = dataclasses.replace(joined, seg_len=torch.tensor(4))
    (of_first,) = alone.penalties(first)
    (of_second,) = alone.penalties(second)
    hidden = torch.cat([first, second], dim=1)
    torch.testing.assert_close(joined.penalties(hidden), [(2 * of_first + of_second) / 4])
    torch.testing.assert_close(padded.penalties(hidden), [2 * of_first / 3])


@pytest.mark.parametrize("arch", ["transformer", "compressive", "rmt", "lstm", "qrnn"])
def test_penalties_are_of_hidden_states_before_their_dropout(arch):
    own = {"compressive": {"compressed_len": 4}, "rmt": {"segment_len": 3}}
    tokens = draw_tokens(B, 9)
    penalties = []
    for rate in (0.0, 0.5):
        settings = {"arch": arch, "output_dropout": rate, **own.get(arch, {})}
        model = (small_rnn(**settings) if arch in ("lstm", "qrnn") else small_model(**settings)).train()
        goal = Objective(mem_len=0, activation_penalty=2.0, slowness_penalty=1.0)
        total, loss, _ = model.objective(tokens[:, :-1], tokens[:, 1:], model.first_memory(B, 0), goal)
        penalties.append((total - loss).item())
    assert penalties[0] == pytest.approx(penalties[1])


def test_the_penalty_is_reported_apart_from_the_loss(tmp_path):
    plain, penalized = (
        steps_of(run(new_training(tmp_path / str(weight), max_steps=1, activation_penalty=weight)))
        for weight in (0.0, 3.0)
    )
    assert penalized[0].loss_nats == plain[0].loss_nats
    assert plain[0].penalty == 0
    # Layer norm leaves a mean square of 1, times the squares of gains around 1.
    assert penalized[0].penalty == pytest.approx(3, rel=0.05)
