"""Documents that begin with an empty memory (train.reset_at_documents): each trains as if it were read alone.

Axes: B lanes, E tokens that are read again, L segment, M memory.
"""

import itertools
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests import reference
from tests.core.builders import POSITIONS, V, draw_tokens, model_settings, small_model, small_rnn
from tests.core.oracle import numbers_of, weights_of
from tests.core.training.runs import new_training
from tests.core.training.test_segments import segments_of
from tests.errors import rejection
from txlcli.config.settings import EvalSettings
from txlcli.core.model.losses import Objective
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.documents import document_spans, score_spans
from txlcli.core.reading.scoring import Stream, scored_stream
from txlcli.core.training.segments import StreamPosition
from txlcli.errors import RecipeError

B, L, LANE_LEN = 2, 5, 41
IDS = draw_tokens(1, B * LANE_LEN + 1, seed=8)[0].numpy()
STARTS = np.array([0, 3, 4, 11, 12, 13, 14, 29, 33, 47, 50, 70, 71], np.uint8)
"""Several documents in a segment, some of one token, some longer than the segment; a lane begins inside one."""
DISTANCES = sorted(POSITIONS.keys() - {"sinusoid", "learned"})
MODELS = {
    **{position: lambda position=position: small_model(**POSITIONS[position]) for position in DISTANCES},
    "window": lambda: small_model(window=4),
    "modern": lambda: small_model(block="modern", norm="pre", gating="gru"),
    "lstm": lambda: small_rnn("lstm"),
    "qrnn": lambda: small_rnn("qrnn"),
}


def pieces_of(segments, position, epoch_starts):
    """Yield (lane, part of the inputs) of each document in a segment, cut by hand at the tokens before their first."""
    tokens = segments.at(position)
    places = segments.range_of(position)
    for lane in range(B):
        first_token = lane * LANE_LEN + places.start
        cuts = [start - 1 - first_token for start in epoch_starts if 0 < start - 1 - first_token < len(places)]
        edges = [0, *cuts, len(places)]
        for first, end in pairwise(edges):
            begins = first_token + first + 1 in epoch_starts
            yield lane, begins, tokens[lane, first:end], tokens[lane, first + 1 : end + 1]


def losses_alone(model, segments, mem_len):
    """The mean loss of each segment, of which every part of a document is read alone, after the memory of its own."""
    memories = [model.first_memory(1, mem_len) for _ in range(B)]
    for number in range(segments.segments_in(0)):
        nats = []
        for lane, begins, inputs, targets in pieces_of(segments, StreamPosition(0, number), set(STARTS.tolist())):
            if begins:
                memories[lane] = model.first_memory(1, mem_len)
            hidden, memories[lane] = model(torch.from_numpy(inputs)[None], memories[lane], mem_len=mem_len)
            nats.append(model.losses(hidden, torch.from_numpy(targets)[None])[0])
        yield torch.cat(nats).mean()


def objective_with_resets(model, segments, mem_len, *, lanes=B, **goal):
    """The objective of each segment of an epoch with resets."""
    memory = model.first_memory(lanes, mem_len)
    for number in range(segments.segments_in(0)):
        position = StreamPosition(0, number)
        tokens = torch.from_numpy(segments.at(position))
        since_reset = torch.from_numpy(segments.since_reset(position))
        objective = Objective(mem_len=mem_len, since_reset=since_reset, **goal)
        targets = tokens[:, -len(segments.range_of(position)) :]
        loss, _, memory = model.objective(tokens[:, :-1], targets, memory, objective)
        yield loss


def nats_of_one_lane(model, mem_len):
    """The total loss of an epoch that one lane reads."""
    segments = segments_of(IDS, STARTS, batch_size=1, seg_len=L, shuffles=False)
    losses = objective_with_resets(model, segments, mem_len, lanes=1)
    lengths = [len(segments.range_of(StreamPosition(0, number))) for number in range(segments.segments_in(0))]
    return sum(loss.item() * length for loss, length in zip(losses, lengths, strict=True))


def mem_len_of(model):
    return 0 if model.settings.recurrent_state else 7


VIEWS = [{}, {"attention": "reference"}, {"recompute": True}, {"recompute": "layers"}]


@pytest.mark.parametrize(
    ("name", "view"), [*itertools.product(MODELS, VIEWS[:2]), ("relative", VIEWS[2]), ("t5", VIEWS[3])]
)
def test_each_document_has_the_loss_and_gradient_that_it_has_alone(name, view):
    model = MODELS[name]()
    if model.attention_backend is not None:
        model = model.on(**view)
    mem_len = mem_len_of(model)
    segments = segments_of(IDS, STARTS, batch_size=B, seg_len=L, shuffles=False)
    given = torch.stack(list(objective_with_resets(model, segments, mem_len)))
    expected = torch.stack(list(losses_alone(model, segments, mem_len)))
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-10)
    one = segments_of(IDS, STARTS[:1], batch_size=B, seg_len=L, shuffles=False)
    carried = list(objective_with_resets(model, one, mem_len))
    assert abs(given[3] - carried[3]) > 1e-3
    weights = torch.arange(1, len(given) + 1)
    gradients = [torch.autograd.grad((losses * weights).sum(), model.parameters()) for losses in (given, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


def test_each_document_has_the_loss_that_the_reference_gives_it():
    """The memory is longer than a document, and the reference reads it whole."""
    model = small_model()
    weights = weights_of(numbers_of(model), model.settings)
    expected = 0.0
    for first, end in document_spans(STARTS, None, len(IDS) - 1):
        text = IDS[first : end + 1].tolist()
        log_probs, _ = reference.forward(text[:-1], reference.first_memory(weights), weights, mem_len=99)
        expected += reference.cross_entropy_nats(log_probs, text[1:]).sum()
    assert nats_of_one_lane(model, 99) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ["relative", "lstm"])
def test_evaluation_document_by_document_has_the_loss_of_a_training_pass(name):
    """With one lane and a memory as long as the text; the evaluation is of float32 losses."""
    model = MODELS[name]()
    mem_len = 0 if model.settings.recurrent_state else 99
    inputs, targets = scored_stream(IDS, None)
    settings = EvalSettings(seg_len=L, mem_len=mem_len, batch_size=3, same_length="off")
    scores = score_spans(Stream(model, inputs, targets, settings), document_spans(STARTS, None, len(targets)))
    assert scores.total_nats == pytest.approx(nats_of_one_lane(model, mem_len), rel=1e-6)


def test_tokens_that_are_read_again_do_not_see_another_document():
    model = small_model()
    segments = segments_of(IDS, STARTS, batch_size=B, seg_len=L, reread_len=6, shuffles=False)
    given = list(objective_with_resets(model, segments, 40, reread_len=6))
    whole = segments_of(IDS, STARTS, batch_size=B, seg_len=L, shuffles=False)
    assert [loss.item() for loss in given] == pytest.approx(
        [loss.item() for loss in objective_with_resets(model, whole, 40)], rel=1e-10
    )


def test_a_model_whose_memory_has_no_distances_is_refused(tmp_path):
    class EverySecond(TransformerXL):
        def remember(self, pasts, outputs, goal):
            return [past.hidden[:, ::2] for past in pasts]

    model = EverySecond(model_settings(), V)
    message = rejection(RecipeError, new_training, tmp_path, model=model, reset_at_documents=True)
    assert "train.reset_at_documents: EverySecond does not support it" in message


# --- where a document begins -----------------------------------------------------------------------------------------


def since(segments, position, **lanes):
    return segments.since_reset(position, **lanes).tolist()


def test_a_document_begins_with_the_token_before_it():
    segments = segments_of(np.arange(13), np.array([0, 2, 7, 8]), batch_size=2, seg_len=4, shuffles=False)
    assert segments.at(StreamPosition(0, 0)).tolist() == [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10]]
    assert since(segments, StreamPosition(0, 0)) == [[1, 0, 1, 2], [0, 0, 1, 2]]
    assert since(segments, StreamPosition(0, 1)) == [[3, 4], [3, 4]]
    assert since(segments, StreamPosition(0, 1), lanes=slice(1, 2)) == [[3, 4]]


def test_shuffled_documents_begin_where_the_order_of_the_epoch_has_them():
    starts = np.array([0, 4, 6, 15, 16, 30])
    document = np.searchsorted(starts, np.arange(41), side="right") - 1
    segments = segments_of(np.arange(41), starts, batch_size=2, seg_len=6)
    for epoch in range(3):
        for number in range(segments.segments_in(epoch)):
            position = StreamPosition(epoch, number)
            tokens = segments.at(position)
            predicted_place = tokens[:, 1:] - starts[document[tokens[:, 1:]]]
            limit = np.arange(tokens.shape[1] - 1) + segments.range_of(position).start + 1
            assert since(segments, position) == np.minimum(predicted_place, limit).tolist()


def test_a_rolled_lane_begins_anew_with_its_first_token():
    segments = segments_of(np.arange(41), np.array([0]), batch_size=2, seg_len=40, roll_lanes=True, shuffles=False)
    tokens, given = segments.at(StreamPosition(0, 0)), segments.since_reset(StreamPosition(0, 0))
    for lane in range(2):
        wrap = tokens[lane, 1:].tolist().index(20 * lane)
        assert given[lane, wrap:].tolist() == list(range(20 - wrap))
        assert (given[lane, :wrap] >= np.arange(wrap)).all()
