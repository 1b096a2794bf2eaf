"""Arithmetic coding with a model's predictions: equal to scoring, and its own inverse."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.samples import sampled
from txlcli.config.model_settings import MODELS
from txlcli.config.settings import EvalSettings
from txlcli.core.measures.adaptation import DynamicSettings, score_dynamic
from txlcli.core.measures.compression import CodedText, Decoder, DynamicPredictor, Encoder, FixedPredictor, code_text
from txlcli.core.model.registry import make_model
from txlcli.core.reading.scoring import Lanes, Stream, score

VOCAB, COUNT = 37, 503
SETTINGS = EvalSettings(seg_len=7, mem_len=11, batch_size=3, same_length="off", max_distance=13)
LANES = Lanes.of(COUNT, SETTINGS)
DYNAMIC = DynamicSettings(lr=0.01, decay=0.01)


@pytest.fixture(scope="module")
def model():
    return model_with("relative")


def model_with(position, **changed):
    torch.manual_seed(5)
    settings = MODELS[changed.get("arch", "transformer")](
        n_layers=2, d_model=16, n_heads=2, d_head=8, d_inner=23, position=position, **changed
    )
    return make_model(settings, VOCAB).eval()


def random_ids(size=VOCAB):
    return np.random.default_rng(3).integers(0, size, COUNT).astype(np.int64)


def encoded(predictor, text, *, escapes=False):
    coder = Encoder()
    code_text(predictor, coder, text, boundary=None, escapes=escapes)
    return coder


def decoded(predictor, words, *, escapes=False):
    text = CodedText(np.zeros(COUNT, dtype=np.int64))
    code_text(predictor, Decoder(words), text, boundary=None, escapes=escapes)
    return text


OUTPUTS = {"memory_source": "layer_output"}
COMPRESSIVE = {"arch": "compressive", "compressed_len": 5, "compression_rate": 2}
MEMORY_TOKENS = {"arch": "rmt", "segment_len": 3, "n_memory_tokens": 2}


@pytest.mark.parametrize(
    ("position", "model_settings", "eval_settings"),
    [
        ("relative", {}, {"mem_len": 0}),
        ("relative", {}, {"mem_len": 11}),
        ("relative", {}, {"mem_len": 0, "same_length": "m"}),
        ("relative", {}, {"mem_len": 11, "same_length": "m"}),
        ("sinusoid", {}, {"mem_len": 0, "max_distance": None}),
        ("sinusoid", {}, {"mem_len": 11, "max_distance": None}),
        ("rotary", {}, {"mem_len": 0, "max_distance": None}),
        ("rotary", {}, {"mem_len": 11, "max_distance": None}),
        ("relative", OUTPUTS, {"mem_len": 3}),
        ("relative", OUTPUTS, {"mem_len": 11}),
        ("relative", COMPRESSIVE, {"mem_len": 3}),
        ("relative", COMPRESSIVE, {"mem_len": 11, "compressed_len": 4}),
        ("relative", MEMORY_TOKENS, {"mem_len": 0, "max_distance": None}),
    ],
)
def test_tokens_one_by_one_have_the_bits_of_whole_segments(position, model_settings, eval_settings):
    model, settings = model_with(position, **model_settings), dataclasses.replace(SETTINGS, **eval_settings)
    ids, lanes = random_ids(), Lanes.of(COUNT, settings)
    coder = encoded(FixedPredictor(model, settings, lanes), CodedText(ids.copy()))
    expected = 0.0
    for first in range(0, COUNT, lanes.length):
        lane = ids[first : first + lanes.length]
        scores = score(Stream(model, lane[:-1], lane[1:], dataclasses.replace(settings, batch_size=1)))
        expected += scores.total_nats / math.log(2) + math.log2(VOCAB)
    assert coder.bits == pytest.approx(expected, rel=1e-6)
    assert 32 * len(coder.words()) == pytest.approx(coder.bits, abs=64)


@pytest.mark.parametrize("changes", sampled(3, [{}, OUTPUTS, COMPRESSIVE, MEMORY_TOKENS]))
def test_dynamic_evaluation_takes_the_steps_of_whole_segments(changes):
    model = model_with("relative", **changes)
    limit = {"max_distance": None} if changes is MEMORY_TOKENS else {}  # memory tokens have no such limit
    settings = dataclasses.replace(SETTINGS, batch_size=1, **limit)
    rms = [torch.ones_like(parameter) for parameter in model.predicting_weights]
    ids, lanes = random_ids(), Lanes.of(COUNT, settings)
    predictor = DynamicPredictor(model, settings, lanes, DYNAMIC, rms, before=0)
    coder = encoded(predictor, CodedText(ids.copy()))
    scores = score_dynamic(Stream(model, ids[:-1], ids[1:], settings), DYNAMIC, rms)
    assert coder.bits == pytest.approx(scores.total_nats / math.log(2) + math.log2(VOCAB), rel=1e-6)


def test_a_decoder_repeats_the_steps_of_dynamic_evaluation(model):
    rms = [torch.ones_like(parameter) for parameter in model.predicting_weights]
    ids = random_ids()

    def predictor():
        return DynamicPredictor(model, SETTINGS, LANES, DYNAMIC, rms, before=0)

    words = encoded(predictor(), CodedText(ids.copy())).words()
    assert (decoded(predictor(), words).ids == ids).all()


def test_symbols_outside_the_vocabulary_are_restored(model):
    ids = random_ids(VOCAB + 1)
    others = {int(at): bytes([at % 256]) * (1 + at % 4) for at in np.flatnonzero(ids == VOCAB)}
    predictor = FixedPredictor(model, SETTINGS, LANES)
    words = encoded(predictor, CodedText(ids.copy(), dict(others)), escapes=True).words()
    predictor.reset()
    text = decoded(predictor, words, escapes=True)
    assert (text.ids == ids).all()
    assert text.others == others


def test_escapes_that_never_occur_cost_a_few_bits(model):
    ids = random_ids()
    predictor = FixedPredictor(model, SETTINGS, LANES)
    without = encoded(predictor, CodedText(ids.copy())).bits
    predictor.reset()
    with_escapes = encoded(predictor, CodedText(ids.copy()), escapes=True).bits
    assert 0 < with_escapes - without < 1


def test_a_probe_differs_for_other_weights_and_leaves_no_trace(model):
    predictor = FixedPredictor(model, SETTINGS, LANES)
    first = predictor.read(np.zeros(LANES.number, dtype=np.int64))
    digest = predictor.probe()
    assert (predictor.read(np.zeros(LANES.number, dtype=np.int64)) == first).all()
    torch.manual_seed(6)
    other = make_model(model.settings, VOCAB).eval()
    assert FixedPredictor(other, SETTINGS, LANES).probe() != digest
