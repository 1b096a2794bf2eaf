"""Documents that are read side by side: each as if it were alone, from an empty memory."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from tests.core.builders import V, draw_tokens, small_model, small_rnn
from txlcli.config.settings import EvalSettings
from txlcli.core.reading.documents import Document, score_documents, score_in_windows
from txlcli.core.reading.scoring import Stream, score

WINDOWS = EvalSettings(seg_len=7, mem_len=0)
assert_close = partial(np.testing.assert_allclose, rtol=1e-5)
LENGTHS = (11, 1, 0, 23, 11, 5, 2)
SETTINGS = EvalSettings(batch_size=1, seg_len=3, mem_len=7, same_length="m", max_distance=4)
MODELS = {
    "relative": small_model,
    "relative, zeros": lambda: small_model(memory_start="zeros"),
    "lstm": lambda: small_rnn("lstm"),
}


def documents(compared=0):
    streams = [draw_tokens(1, length + 1, seed=length + place)[0].numpy() for place, length in enumerate(LENGTHS)]
    return [Document(ids[:-1], ids[1:], min(compared, len(ids) - 1)) for ids in streams]


def log_probs_of(model, document):
    """Return the log-probabilities (T, V) after each token of a document that is read in one window."""
    with torch.no_grad():
        hidden, _ = model(torch.from_numpy(document.inputs)[None], model.first_memory(1, 0), mem_len=0)
        return model.log_probs(hidden)[0]


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("name", MODELS)
def test_documents_side_by_side_have_the_losses_of_each_alone(name, batch_size):
    model, settings = MODELS[name](), SETTINGS
    if name == "lstm":
        settings = EvalSettings(batch_size=1, seg_len=3, mem_len=0)
    of_all = score_documents(model, documents(), dataclasses.replace(settings, batch_size=batch_size))
    for document, result in zip(documents(), of_all, strict=True):
        assert len(result.losses_nats) == len(document.targets)
        if len(document.targets):
            alone = score(Stream(model, document.inputs, document.targets, settings)).losses_nats
            assert_close(result.losses_nats, alone, rtol=1e-06)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_compared_targets_are_the_likeliest_tokens_or_not(batch_size):
    model = small_model()
    inputs = draw_tokens(1, 10)[0].numpy()
    settings = EvalSettings(seg_len=4, mem_len=16, batch_size=batch_size)
    likeliest = log_probs_of(model, Document(inputs, inputs)).argmax(dim=1).numpy()
    cases = []
    for wrong in range(10):
        targets = likeliest.copy()
        targets[wrong] = (targets[wrong] + 1) % V
        cases += [Document(inputs, targets, compared) for compared in (0, 3, 10)]
    results = score_documents(model, cases, settings)
    expected = [wrong < 10 - compared for wrong in range(10) for compared in (0, 3, 10)]
    assert [result.is_likeliest for result in results] == expected


def test_windows_are_disjoint_and_the_last_one_ends_with_the_document():
    model = small_model()
    (document,) = (document for document in documents() if len(document.targets) == 23)
    result = score_in_windows(model, document, WINDOWS)
    expected = []
    for first, end, predicted in [(0, 7, 7), (7, 14, 7), (14, 21, 7), (16, 23, 2)]:
        window = Document(document.inputs[first:end], document.targets[first:end])
        log_probs = log_probs_of(model, window)[-predicted:]
        expected += [-log_probs[row, target].item() for row, target in enumerate(window.targets[-predicted:])]
    assert_close(result.losses_nats, expected)


@pytest.mark.parametrize("compared", [1, 3, 7])
def test_compared_targets_are_scored_in_the_last_window(compared):
    model = small_model()
    (document,) = (document for document in documents(compared) if len(document.targets) == 23)
    log_probs = log_probs_of(model, Document(document.inputs[-7:], document.targets[-7:]))[-compared:]
    result = score_in_windows(model, document, WINDOWS)
    targets = document.targets[-compared:]
    expected = [-log_probs[row, target].item() for row, target in enumerate(targets)]
    assert_close(result.losses_nats[-compared:], expected)
    assert not result.is_likeliest
    greedy = np.concatenate([document.targets[:-1], [int(log_probs[-1].argmax())]])
    assert score_in_windows(model, Document(document.inputs, greedy, 1), WINDOWS).is_likeliest


def test_an_empty_document_has_no_losses():
    empty = Document(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert score_in_windows(small_model(), empty, WINDOWS).losses_nats.shape == (0,)
    assert [score.losses_nats.shape for score in score_documents(small_model(), [empty], SETTINGS)] == [(0,)]
    assert score_documents(small_model(), [], SETTINGS) == []
