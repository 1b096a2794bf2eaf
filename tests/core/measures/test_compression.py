"""Arithmetic coding with a model's predictions: equal to scoring, and its own inverse."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from txlcli.config.model_settings import MODELS
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.registry import make_model
from txlcli.core.measures.compression import Predictor, SymbolDecoder, SymbolEncoder, code_text
from txlcli.core.reading.scoring import Lanes, Stream, score

VOCAB, COUNT = 37, 251
SETTINGS = EvalSettings(seg_len=7, mem_len=11, batch_size=3, same_length="off", max_distance=13)
LANES = Lanes.of(COUNT, SETTINGS)


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


def encoded(predictor, ids, *, alphabet=0):
    coder = SymbolEncoder()
    code_text(predictor, coder, ids.copy(), boundary=None, alphabet=alphabet)
    return coder


COMPRESSIVE = {"arch": "compressive", "compressed_len": 5, "compression_rate": 2}
MEMORY_TOKENS = {"arch": "rmt", "segment_len": 3, "n_memory_tokens": 2}


@pytest.mark.parametrize(
    ("position", "model_settings", "eval_settings"),
    [
        ("relative", {}, {"mem_len": 0}),
        ("relative", {}, {"mem_len": 11, "same_length": "m"}),
        ("sinusoid", {}, {"mem_len": 11, "max_distance": None}),
        ("rotary", {}, {"mem_len": 11, "max_distance": None}),
        ("relative", COMPRESSIVE, {"mem_len": 3}),
        ("relative", COMPRESSIVE, {"mem_len": 11, "compressed_len": 4}),
        ("relative", MEMORY_TOKENS, {"mem_len": 0, "max_distance": None}),
    ],
)
def test_tokens_one_by_one_have_the_bits_of_whole_segments(position, model_settings, eval_settings):
    model, settings = model_with(position, **model_settings), dataclasses.replace(SETTINGS, **eval_settings)
    ids, lanes = random_ids(), Lanes.of(COUNT, settings)
    coder = encoded(Predictor(model, settings, lanes), ids)
    expected = 0.0
    for first in range(0, COUNT, lanes.length):
        lane = ids[first : first + lanes.length]
        scores = score(Stream(model, lane[:-1], lane[1:], dataclasses.replace(settings, batch_size=1)))
        expected += scores.total_nats / math.log(2) + math.log2(VOCAB)
    assert coder.bits == pytest.approx(expected, rel=1e-6)
    assert 32 * len(coder.words()) == pytest.approx(coder.bits, abs=64)


def test_symbols_outside_the_vocabulary_are_restored(model):
    expected, alphabet = random_ids(VOCAB + 5), 1 << 20
    expected[expected == VOCAB + 4] += alphabet - 5
    coder, ids = encoded(Predictor(model, SETTINGS, LANES), expected, alphabet=alphabet), np.full_like(expected, 5)
    code_text(Predictor(model, SETTINGS, LANES), SymbolDecoder(coder.words()), ids, boundary=None, alphabet=alphabet)
    assert (ids == expected).all()
    assert 32 * len(coder.words()) == pytest.approx(coder.bits, abs=64)


def test_escapes_that_never_occur_cost_a_few_bits(model):
    ids = random_ids()
    without, with_escapes = (
        encoded(Predictor(model, SETTINGS, LANES), ids, alphabet=alphabet).bits for alphabet in (0, 256)
    )
    assert 0 < with_escapes - without < 1


def test_a_probe_differs_for_other_weights_and_leaves_no_trace(model):
    predictor = Predictor(model, SETTINGS, LANES)
    digest = predictor.probe()
    first = Predictor(model, SETTINGS, LANES).read(np.zeros(LANES.n_lanes, dtype=np.int64))
    assert (predictor.read(np.zeros(LANES.n_lanes, dtype=np.int64)) == first).all()
    torch.manual_seed(6)
    other = make_model(model.settings, VOCAB).eval()
    assert Predictor(other, SETTINGS, LANES).probe() != digest
