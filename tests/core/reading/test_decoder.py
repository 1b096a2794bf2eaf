"""The decoder is the same function as the model with memory, for every encoding, block and window."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.core import tape
from tests.core.builders import POSITIONS, assert_close, cut, draw_tokens, make_decoder, read_segments, small_model
from tests.extensions import registered_slopes
from tests.samples import sampled
from txlcli.config.settings import EvalSettings
from txlcli.core.reading.decoder import MAX_PHASES, BufferRange, SlidingBuffer
from txlcli.core.reading.registry import make_reader

B, L, M, T = 2, 5, 7, 37


@torch.no_grad()
def decode(model, tokens, *, seg_len, decoder=None, **options):
    """Log-probabilities (B, T, V) of a whole stream, `seg_len` tokens at a time."""
    decoder = decoder or make_decoder(model, batch_size=tokens.shape[0], seg_len=seg_len, **options)
    return torch.cat([model.log_probs(decoder.read(part)) for part in tokens.split(seg_len, dim=1)], dim=1)


def flops_of_read(decoder, segment):
    with FlopCounterMode(display=False) as counter:
        decoder.read(segment)
    return counter.get_total_flops()


@torch.no_grad()
def by_the_model(model, tokens, *, seg_len, mem_len, same_length="off", max_distance=None):
    """Log-probabilities (B, T, V) by the model's own memory."""
    limit = EvalSettings(seg_len=seg_len, mem_len=mem_len, same_length=same_length).key_limit
    limits = {"mem_len": mem_len, "key_limit": limit, "max_distance": max_distance}
    return read_segments(model, tokens, cut(tokens.shape[1], seg_len), **limits)[0]


MODELS = POSITIONS | {
    "learned": {"position": "learned", "n_positions": 11},  # of the longest segment
    "slopes": {"position": "slopes"},  # registered from outside the package
    "pre": {"norm": "pre", "tie_biases": False},
    "shaw, pre": {"norm": "pre", "position": "shaw", "n_positions": 9},
    "rotary, pre": {"norm": "pre", "position": "rotary", "d_head": 12},
    "sinusoid, pre": {"norm": "pre", "position": "sinusoid"},
    "modern": {"block": "modern", "norm": "pre_released"},
    "modern, rotary": {"block": "modern", "norm": "pre", "position": "rotary", "d_head": 12},
    "gates": {"gating": "gru", "norm": "pre"},
    "window": {"window": 4},
    "window, shaw": {"window": 9, "position": "shaw", "n_positions": 3},
    "window, sinusoid": {"window": 4, "position": "sinusoid"},
    "window, rotary": {"window": 4, "position": "rotary", "d_head": 12},
}
READINGS = {
    "segments": {"seg_len": L, "mem_len": M},
    "segments, M keys": {"seg_len": L, "mem_len": M, "same_length": "m"},
    "segments, near distances": {"seg_len": L, "mem_len": 23, "same_length": "m_plus_one", "max_distance": 3},
    "short segments": {"seg_len": 3, "mem_len": L, "same_length": "m_plus_one"},
    "long segments": {"seg_len": 11, "mem_len": 3},
    "almost no memory": {"seg_len": M, "mem_len": 1},
    "no memory": {"seg_len": L, "mem_len": 0},
    "tokens": {"seg_len": 1, "mem_len": M},
    "tokens, near distances": {"seg_len": 1, "mem_len": M, "same_length": "m", "max_distance": 4},
}


WAYS = {"eager": None, "called again": tape.call_again, "captured": tape.capture}


@pytest.mark.parametrize(
    ("model", "memory_start", "reading", "way"), sampled(11, MODELS, ["empty", "zeros"], READINGS, WAYS)
)
def test_the_decoder_equals_the_model_with_memory(model, memory_start, reading, way):
    with registered_slopes():
        made, tokens = small_model(memory_start=memory_start, **MODELS[model]), draw_tokens(B, T)
        options = READINGS[reading]
        assert_close(decode(made, tokens, **options, capture_graph=WAYS[way]), by_the_model(made, tokens, **options))


@pytest.mark.parametrize("same_length", ["off", "m"])
@pytest.mark.parametrize("seg_len", [1, L])
def test_distances_that_are_shared_are_scored_once(same_length, seg_len):
    model, tokens, max_distance = small_model(), draw_tokens(B, 4 * L), 3
    options = {"batch_size": B, "seg_len": seg_len, "mem_len": M, "same_length": same_length}
    decoder, without_limit = (make_decoder(model, **options, max_distance=limit) for limit in (max_distance, None))
    for reader in (decoder, without_limit):
        decode(model, tokens, seg_len=seg_len, decoder=reader)  # the memory is full now
    saved = flops_of_read(without_limit, tokens[:, :seg_len]) - flops_of_read(decoder, tokens[:, :seg_len])
    sizes = model.settings
    per_distance = 2 * B * seg_len * sizes.n_layers * sizes.n_heads * sizes.d_head
    assert saved == per_distance * (decoder.reach - (max_distance + 1))


@pytest.mark.parametrize(
    ("capture_graph", "mem_len", "seg_len", "capacity"),
    [
        (None, 7, L, 12),  # room for one segment, or a quarter of the memory where that is more
        (None, 80, L, 100),
        (None, 0, L, 5),
        (None, 7, 1, 8),
        (tape.call_again, 7, L, 12),  # a multiple of a segment
        (tape.call_again, 48, L, 63),
        (tape.call_again, 4 * L * MAX_PHASES, L, 5 * L * MAX_PHASES),
    ],
)
def test_the_buffer_holds_the_memory_and_some_room_to_slide(capture_graph, mem_len, seg_len, capacity):
    lengths = {"mem_len": mem_len, "seg_len": seg_len}
    assert make_decoder(small_model(), batch_size=1, **lengths, capture_graph=capture_graph).capacity == capacity


@pytest.mark.parametrize(("start", "end"), [(1, 25), (5, 16), (11, 14), (3, 3)])
def test_sliding_moves_the_remembered_positions_even_where_source_and_target_overlap(start, end):
    buffer = SlidingBuffer((B, 3, 29, 7), BufferRange(start, end), torch.device("cpu"), torch.float64)
    for number, tensor in enumerate((buffer.keys, buffer.values)):
        tensor.normal_(generator=torch.Generator().manual_seed(number))
    expected = [tensor[:, :, start:end].clone() for tensor in (buffer.keys, buffer.values)]
    buffer.slide()
    for tensor, moved in zip((buffer.keys, buffer.values), expected, strict=True):
        assert torch.equal(tensor[:, :, : end - start], moved)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("memory_start", ["empty", "zeros"])
def test_reset_forgets_everything(norm, memory_start):
    model, tokens = small_model(norm=norm, memory_start=memory_start), draw_tokens(B, T)
    decoder = make_decoder(model, batch_size=B, mem_len=M, seg_len=L)
    first = decode(model, tokens, seg_len=L, decoder=decoder)
    assert not torch.allclose(decode(model, tokens, seg_len=L, decoder=decoder)[:, :L], first[:, :L])
    decoder.reset()
    assert_close(decode(model, tokens, seg_len=L, decoder=decoder), first, atol=1e-12)


@pytest.mark.parametrize(("layers", "norm", "same_length"), [(1, "post", "m"), (2, "pre", "off"), (3, "post", "off")])
@pytest.mark.parametrize("length", [1, 4, 5, 21])
def test_reading_only_the_last_position_equals_reading_everything(length, layers, norm, same_length):
    # The deepest model begins with zeros.
    memory_start = "zeros" if layers == 3 else "empty"
    model, tokens = small_model(n_layers=layers, norm=norm, memory_start=memory_start), draw_tokens(B, 40)
    short, full = (make_decoder(model, batch_size=B, mem_len=M, seg_len=L, same_length=same_length) for _ in range(2))
    *_, expected = (full.read(part) for part in tokens[:, :length].split(L, dim=1))
    last = short.read_last(tokens[:, :length])
    assert last.shape == (B, 1, 14)
    assert_close(last, expected[:, -1:], atol=1e-12)
    # What follows finds the same memory.
    rest = [decode(model, tokens[:, length:], seg_len=L, decoder=decoder) for decoder in (short, full)]
    assert_close(*rest, atol=1e-12)


@pytest.mark.slow
def test_a_sweep_over_memory_lengths_compiles_each_part_of_a_layer_once():
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model = small_model(dtype=torch.float32)
    models = [model.on(reading_compile="on"), model]
    tokens, graphs = draw_tokens(B, 4 * L), set()
    for mem_len in (1, 2, 3, 5, 8, 13, 21, 34):
        settings = EvalSettings(seg_len=L, mem_len=mem_len, batch_size=B)
        given = [make_reader(model, settings) for model in models]
        for segment in tokens.split(L, dim=1):
            torch.testing.assert_close(*(reader.read(segment) for reader in given), rtol=1e-5, atol=1e-5)
        graphs.add(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == {3}  # the check of the compiler, before attention, after it
