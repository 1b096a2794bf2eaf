"""Memory of layer outputs (model.memory_source = "layer_output"), in training, evaluation and decoding."""

import pytest
import torch

from tests.core import oracle, tape
from tests.core.builders import V, cut, decoded, draw_tokens, make_decoder, read_segments, small_model
from tests.samples import sampled
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import autocast
from txlcli.core.reading.decoder import key_limit
from txlcli.core.reading.reader import Reading
from txlcli.core.reading.registry import make_reader, make_window_reader
from txlcli.core.reading.sampling import Sampling, generate, reader_of_one_text
from txlcli.core.reading.windows import WindowReader

B, L, M, T = 2, 5, 7, 53
IN_ORACLE = {"relative": {"tie_biases": False}, "rotary": {"d_head": 12}, "alibi": {}, "t5": {}, "none": {}}
POSITIONS = {**IN_ORACLE, "shaw": {"n_positions": 3}, "sinusoid": {}, "learned": {"n_positions": 11}}
LAYERS = [{"norm": "post"}, {"norm": "pre"}, {"norm": "pre_released"}, {"norm": "pre", "gating": "gru"}]
WAYS = [{}, {"replay_steps": True}, {"replay_segments": True, "capture_graph": tape.capture}]


def outputs_kept(position="relative", **changed):
    return small_model(memory_source="layer_output", position=position, **{**POSITIONS[position], **changed})


@pytest.mark.parametrize(
    ("layers", "position", "memory_start", "window"), sampled(4, LAYERS, IN_ORACLE, ["empty", "zeros"], [None, 4, 10])
)
def test_predictions_and_memory_equal_the_oracle(layers, position, memory_start, window):
    model, tokens = outputs_kept(position, memory_start=memory_start, **layers), draw_tokens(B, 19)
    lengths = [L, 11, 3]  # L < M and L > M
    options = {"mem_len": M, "key_limit": window}
    given, memory = read_segments(model, tokens, lengths, **options)
    expected, expected_memory = oracle.read_segments(model, tokens, lengths, **options)
    torch.testing.assert_close(given, torch.from_numpy(expected), rtol=0, atol=1e-10)
    for kept, wanted in zip(memory, expected_memory, strict=True):
        torch.testing.assert_close(kept, torch.from_numpy(wanted), rtol=0, atol=1e-10)
    if window is not None:
        limited = outputs_kept(position, memory_start=memory_start, window=window, **layers)
        torch.testing.assert_close(read_segments(limited, tokens, lengths, mem_len=M)[0], given, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["post", "pre_released"])
def test_the_memory_of_a_layer_is_its_output_and_the_memory_of_the_layer_above_its_input(norm):
    tokens = draw_tokens(B, M)
    below, own = (small_model(norm=norm, memory_source=source) for source in ("layer_input", "layer_output"))
    hidden, outputs = own(tokens, own.first_memory(B, M), mem_len=M)
    expected, inputs = below(tokens, below.first_memory(B, M), mem_len=M)
    assert torch.equal(hidden, expected)  # nothing tells them apart in the first segment
    assert torch.equal(outputs[0], inputs[1])
    assert torch.equal(outputs[1], hidden)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_change_reaches_every_later_token_through_any_number_of_layers(layers, norm):
    tokens, total = draw_tokens(1, 12 * L), 12 * L
    other = tokens.clone()
    other[:, 3] = (other[:, 3] + 1) % V
    model = outputs_kept(n_layers=layers, norm=norm)
    before, after = (read_segments(model, read, [L] * 12, mem_len=L)[0] for read in (tokens, other))
    assert set((before != after).any(-1).nonzero()[:, 1].tolist()) == set(range(3, total))


@pytest.mark.parametrize(
    ("lengths", "same_length", "memory_start", "position", "layers"),
    sampled(
        37,
        [(L, M), (1, M), (11, 3), (L, 40), (L, 0), (M, 1)],
        ["off", "m", "m_plus_one"],
        ["empty", "zeros"],
        POSITIONS,
        LAYERS,
    ),
)
def test_the_decoder_equals_the_model(lengths, same_length, memory_start, position, layers):
    seg_len, mem_len = lengths
    model, tokens = outputs_kept(position, memory_start=memory_start, **layers), draw_tokens(B, T)
    options = {"seg_len": seg_len, "mem_len": mem_len, "same_length": same_length}
    limit = key_limit(same_length, mem_len)
    expected, _ = read_segments(model, tokens, cut(T, seg_len), mem_len=mem_len, key_limit=limit)
    for way in WAYS:
        decoder = make_decoder(model, batch_size=B, **options, **way)
        torch.testing.assert_close(decoded(model, tokens, decoder, [seg_len]), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("lengths", "mem_len", "way", "window", "position"),
    sampled(
        7, [(1,), (3, 1, 1, 5, 1, 4, 5), (2, 5, 5, 5)], [M, 3, 40], WAYS, [None, 4], ["relative", "rotary", "learned"]
    ),
)
def test_by_tokens_a_segment_ends_after_l_tokens(position, lengths, mem_len, way, window):
    model, tokens = outputs_kept(position, window=window), draw_tokens(B, T)
    expected, _ = read_segments(model, tokens, cut(T, L), mem_len=mem_len)
    decoder = make_decoder(model, batch_size=B, seg_len=L, mem_len=mem_len, by_tokens=True, **way)
    for _ in range(2):
        torch.testing.assert_close(decoded(model, tokens, decoder, lengths), expected, rtol=0, atol=1e-10)
        decoder.reset()


@torch.no_grad()
def test_by_tokens_a_part_longer_than_a_segment_is_read_in_segments():
    model, tokens = outputs_kept(), draw_tokens(B, T)
    expected, _ = read_segments(model, tokens, cut(T, L), mem_len=M)
    decoder = make_decoder(model, batch_size=B, seg_len=L, mem_len=M, by_tokens=True)
    decoder.read(tokens[:, :3])
    for first, last, count in ((3, 18, 9), (18, 19, 1), (19, T, 13)):
        hidden = decoder.read_last(tokens[:, first:last], count=count)
        torch.testing.assert_close(model.log_probs(hidden), expected[:, last - count : last], rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_decoder_remembers_a_segment_of_which_nothing_is_returned():
    model, tokens = outputs_kept(norm="pre"), draw_tokens(B, T)
    expected, _ = read_segments(model, tokens, cut(T, L), mem_len=M)
    hidden = make_decoder(model, batch_size=B, seg_len=L, mem_len=M).read_last(tokens, count=2)
    torch.testing.assert_close(model.log_probs(hidden), expected[:, -2:], rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_window_is_one_segment():
    model, tokens = outputs_kept(), draw_tokens(1, 300)
    whole, _ = read_segments(model, tokens, [300], mem_len=0)
    settings = EvalSettings(seg_len=300, mem_len=0)
    reader = make_window_reader(model, settings, batch_size=1)  # read in parts
    torch.testing.assert_close(model.log_probs(reader.read_last(tokens, count=3)), whole[:, -3:], rtol=0, atol=1e-10)
    growing = WindowReader(model, Reading(settings=settings, batch_size=1))
    given = decoded(model, tokens[:, :9], growing, [1, 4, 1, 3])
    torch.testing.assert_close(given, whole[:, :9], rtol=0, atol=1e-10)


def test_a_sampled_text_is_read_in_segments_of_l_tokens():
    model, context = outputs_kept(dtype=torch.float32, std=0.2), draw_tokens(1, 8)
    settings = EvalSettings(seg_len=L, mem_len=M, same_length="off")
    reader = reader_of_one_text(model, settings, precision="fp32")
    sampled_tokens = generate(reader, context[0], Sampling(greedy=True), seed=1)
    tokens = context[0].tolist()
    for _ in range(20):
        text = torch.tensor([tokens])
        expected, _ = read_segments(model, text, cut(len(tokens), L), mem_len=M)
        tokens.append(int(expected[0, -1].argmax()))
        assert next(sampled_tokens) == tokens[-1]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_in_bf16_a_decoder_is_close_to_the_model(norm):
    model, tokens = outputs_kept(dtype=torch.float32, std=0.1, norm=norm), draw_tokens(B, 23)
    with autocast(torch.device("cpu"), "bf16"):
        expected, _ = read_segments(model, tokens, cut(23, L), mem_len=M)
    settings = EvalSettings(seg_len=L, mem_len=M, same_length="off")
    for lengths in ([L], [1]):
        reader = make_reader(model, settings, batch_size=B, precision="bf16", by_tokens=True)
        with torch.inference_mode():
            parts = [reader.log_probs(reader.read(part)) for part in tokens.split(lengths[0], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1).float(), expected.float(), rtol=0, atol=0.05)
