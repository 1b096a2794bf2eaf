"""Attention to the last W tokens (`model.window`): the same function in segments with memory as in one long segment."""

import pytest
import torch

from tests.core import oracle
from tests.core.builders import V, draw_tokens, make_decoder, model_settings, read_segments, small_model
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.transformer import keys_seen
from txlcli.core.reading.scoring import attention_span

B, L, M, W = 2, 5, 7, 4


@pytest.mark.parametrize(
    ("window", "limit", "smallest"),
    [*((window, None, window) for window in (2, W, L + M - 1, L + M)), (W, M, W), (100, W, W)],
)
@pytest.mark.parametrize(("mem_len", "memory_start"), [(0, "empty"), (2, "zeros"), (M, "empty"), (M, "zeros")])
def test_a_window_is_a_limit_of_keys_by_the_oracle(mem_len, window, limit, smallest, memory_start):
    # The oracle keeps M rows and limits the distance, so a memory that is cut to W - 1 rows loses nothing.
    tokens, lengths = draw_tokens(B, 18), [L, L, 3, L]
    model, plain = (small_model(memory_start=memory_start, **changed) for changed in ({"window": window}, {}))
    given, _ = read_segments(model, tokens, lengths, mem_len=mem_len, key_limit=limit)
    expected, _ = oracle.read_segments(plain, tokens, lengths, mem_len=mem_len, key_limit=smallest)
    torch.testing.assert_close(given, torch.from_numpy(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_gradients_are_those_of_a_limit_of_keys(backend):
    gradients = []
    for changed, limits in (({"window": W}, {}), ({}, {"key_limit": W})):
        model, tokens = small_model(tie_biases=False, **changed).train(), draw_tokens(B, 2 * L + 1)
        model = model.on(attention=backend)
        memory = model.first_memory(B, M)
        for at in (0, L):
            hidden, memory = model(tokens[:, at : at + L], memory, mem_len=M, **limits)
        model.losses(hidden, tokens[:, -L:]).mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("changed", [0, 3])
@pytest.mark.parametrize("seg_len", [1, L])
def test_a_change_reaches_n_times_w_minus_1_tokens(seg_len, changed, layers):
    model, tokens = small_model(n_layers=layers, window=W), draw_tokens(1, 15)
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % V
    before, after = (read_segments(model, read, [seg_len] * (15 // seg_len), mem_len=M)[0] for read in (tokens, other))
    expected = set(range(changed, changed + layers * (W - 1) + 1))
    assert set((before != after).any(-1).nonzero()[:, 1].tolist()) == expected


@pytest.mark.parametrize(("mem_len", "kept"), [(0, 0), (2, 2), (W - 1, W - 1), (M, W - 1)])
def test_the_memory_keeps_only_what_a_query_sees(mem_len, kept):
    model, tokens = small_model(window=W), draw_tokens(B, 3 * L)
    _, memory = read_segments(model, tokens, [L] * 3, mem_len=mem_len)
    shapes = [(B, kept, 14)] * 2
    assert [past.shape for past in memory] == shapes
    assert [past.shape for past in model.full_memory(B, mem_len)] == shapes
    zeros = small_model(window=W, memory_start="zeros").first_memory(B, mem_len)
    assert [past.shape for past in zeros] == shapes
    assert model.settings.visible_memory(mem_len) == kept


def test_a_decoder_keeps_no_keys_that_the_window_hides():
    decoder = make_decoder(small_model(window=W), batch_size=B, seg_len=L, mem_len=1000)
    assert (decoder.mem_len, decoder.capacity, decoder.reach) == (W - 1, W - 1 + L, W)


@pytest.mark.parametrize("window", [2, W, M, M + 2, M + L, 100])
@pytest.mark.parametrize(("seg_len", "mem_len"), [(L, M), (1, M), (L, 0), (M, 2)])
def test_numbers_of_keys_are_those_of_a_count(seg_len, mem_len, window):
    settings = EvalSettings(seg_len=seg_len, mem_len=mem_len, same_length="off", batch_size=1)
    counts = [min(mem_len + query + 1, window) for query in range(seg_len)]
    model = model_settings(window=window)
    assert attention_span(small_model(window=window), settings) == (min(counts), max(counts))
    assert keys_seen(model, settings) == pytest.approx(sum(counts) / seg_len, rel=1e-12)
    in_lane = attention_span(small_model(window=window), settings, 3)
    assert in_lane == (min(3, *counts), min(3, max(counts)))


@pytest.mark.parametrize(("same_length", "keys"), [("m", 7), ("m_plus_one", 8)])
def test_same_length_and_window_give_the_smaller_number_of_keys(same_length, keys):
    settings = EvalSettings(seg_len=L, mem_len=M, same_length=same_length)
    for window in (2, 7, 8, 100):
        expected = min(keys, window)
        assert attention_span(small_model(window=window), settings) == (expected, expected)
        assert keys_seen(model_settings(window=window), settings) == expected
