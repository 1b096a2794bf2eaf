"""Readers of all architectures: in 16 bits, and in texts that are sampled."""

import pytest
import torch

from tests.core.builders import cut, draw_tokens, read_segments, small_model, small_rnn
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.modes import autocast
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.sampling import Sampling, generate, reader_of_one_text

B, L, M = 2, 6, 7
COMPRESSIVE = {"arch": "compressive", "compressed_len": 5, "compression_rate": 3}
MEMORY_TOKENS = {"arch": "rmt", "segment_len": L, "n_memory_tokens": 3}
MODELS = {
    "transformer": (small_model, {}, M),
    "memory of zeros": (small_model, {"memory_start": "zeros"}, M),
    "compressive": (small_model, COMPRESSIVE, M),
    "compressive, pre": (small_model, {**COMPRESSIVE, "norm": "pre"}, M),
    "memory tokens": (small_model, MEMORY_TOKENS, 0),
    "lstm": (small_rnn, {"arch": "lstm"}, 0),
    "qrnn": (small_rnn, {"arch": "qrnn"}, 0),
}


def make(name, **changed):
    function, settings, mem_len = MODELS[name]
    model = function(dtype=torch.float32, **settings, **changed)
    return model, EvalSettings(batch_size=B, seg_len=L, mem_len=mem_len, same_length="off")


@pytest.mark.parametrize("name", MODELS)
def test_in_bf16_a_reader_is_close_to_the_model_and_changes_none_of_its_weights(name):
    (model, settings), tokens = make(name, std=0.1), draw_tokens(B, 23)
    before = {key: parameter.clone() for key, parameter in model.named_parameters()}
    with torch.no_grad():
        exact, _ = read_segments(model, tokens, cut(23, L), mem_len=settings.mem_len)
        with autocast(torch.device("cpu"), "bf16"):
            expected, memory = read_segments(model, tokens, cut(23, L), mem_len=settings.mem_len)
    model = model.on(precision="bf16")
    for length in (L, 1):
        reader = make_reader(model, settings, by_tokens=True)
        given = torch.cat([reader.log_probs(reader.read(part)) for part in tokens.split(length, dim=1)], dim=1)
        assert given.dtype == torch.float32
        assert not torch.equal(given, exact)
        torch.testing.assert_close(given, expected.float(), rtol=0, atol=0.05)
    if name in ("lstm", "qrnn"):
        assert {tensor.dtype for tensor in (*memory, *reader.state)} == {torch.float32}
    assert all(torch.equal(parameter, before[key]) for key, parameter in model.named_parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@torch.no_grad()
@pytest.mark.parametrize("name", ["compressive", "memory tokens"])
def test_a_sampled_text_is_read_in_segments_of_l_tokens(name):
    (model, settings), context = make(name, std=0.2), draw_tokens(1, 8)
    reader = reader_of_one_text(model, settings)
    sampled_tokens = generate(reader, context[0], Sampling(greedy=True), seed=1)
    tokens = context[0].tolist()
    for _ in range(20):
        expected, _ = read_segments(model, torch.tensor([tokens]), cut(len(tokens), L), mem_len=settings.mem_len)
        tokens.append(int(expected[0, -1].argmax()))
        assert next(sampled_tokens) == tokens[-1]
