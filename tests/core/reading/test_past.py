"""The three pasts of a layer: one that is projected anew, one that slides, and one with fixed slots.

Axes: B batch, L segment, M memory, H heads, D head width, C capacity of the buffers.
"""

import pytest
import torch

from tests.core.builders import small_model
from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.attention_slots import SlotAttention
from txlcli.core.model.layer import GrowingMemory, update_memory
from txlcli.core.reading.past import BufferRange, FixedSlots, SlidingBuffer

B, L, M, H, D, C, WIDTH = 2, 3, 7, 3, 11, 13, 14
CPU = torch.device("cpu")


def layer_inputs(count, seed=3):
    return torch.randn(B, count, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sliding_buffer():
    window = BufferRange(C)
    return SlidingBuffer((B, H, C, D), window, CPU, torch.float64), window


def make_room(buffer, window, count, at_once):
    """Slide as the decoder does, if the buffer has no room for so many positions."""
    if window.end + count > window.capacity:
        buffer.slide(at_once)
        window.start, window.end = 0, window.end - window.start


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("seg_len", [1, L])
@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_a_growing_memory_and_a_sliding_buffer_give_equal_keys_and_values(seg_len, at_once, norm):
    layer = small_model(n_layers=1, norm=norm).layers[0]
    memory, (buffer, window) = torch.empty(B, 0, WIDTH, dtype=torch.float64), sliding_buffer()
    for part in layer_inputs(29).split(seg_len, dim=1):
        key, value = layer.attention.project_keys_values(layer.attention_input(part))
        expected = GrowingMemory(layer, memory).extend(key, value)
        memory = update_memory(memory, part, mem_len=M)
        make_room(buffer, window, part.shape[1], at_once)
        given = buffer.extend(key, value)
        window.advance(part.shape[1], mem_len=M)
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)
    assert expected[0].shape == (B, H, M + part.shape[1], D)


def test_fixed_slots_give_equal_keys_and_values_where_the_window_is():
    layer = small_model(n_layers=1).layers[0]
    (buffer, window), (own, of_slots) = sliding_buffer(), sliding_buffer()
    at, reach = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    for part in layer_inputs(29).split(1, dim=1):
        key, value = layer.attention.project_keys_values(layer.attention_input(part))
        make_room(buffer, window, 1, 256)
        expected = buffer.extend(key, value)
        make_room(own, of_slots, 1, 256)
        at.fill_(of_slots.end)
        reach.fill_(of_slots.end + 1 - of_slots.start)
        past = FixedSlots(own, at, SlotAttention(at - torch.arange(C), reach))
        keys, values = past.extend(key, value)
        assert keys.shape == values.shape == (B, H, C, D)
        seen = slice(of_slots.start, of_slots.end + 1)
        assert torch.equal(keys[:, :, seen], expected[0])
        assert torch.equal(values[:, :, seen], expected[1])
        query = layer.attention.project_queries(layer.attention_input(part))
        attended = layer.attention.backend.attend(query, *expected, ScoreTerms(expected[0].shape[2]))
        slots = past.attend(query, keys, values, ScoreTerms(C))
        torch.testing.assert_close(slots, attended, rtol=0, atol=1e-12)
        window.advance(1, mem_len=M)
        of_slots.advance(1, mem_len=M)


def test_a_growing_memory_lets_no_gradient_into_the_past():
    layer = small_model(n_layers=1).layers[0]
    past, segment = layer_inputs(M).requires_grad_(), layer_inputs(L, seed=4).requires_grad_()
    memory = update_memory(past.detach()[:, :0], past.detach(), mem_len=M)
    key, value = layer.attention.project_keys_values(segment)
    keys, values = GrowingMemory(layer, memory).extend(key, value)
    (keys.sum() + values.sum()).backward()
    assert past.grad is None
    assert segment.grad.count_nonzero() > 0


def test_a_buffer_in_another_dtype_keeps_rounded_keys():
    window = BufferRange(C)
    buffer = SlidingBuffer((B, H, C, D), window, CPU, torch.bfloat16)
    key, value = (torch.randn(B, H, 1, D, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4))
    keys, values = FixedSlots(buffer, torch.tensor([4]), SlotAttention(torch.arange(C), torch.tensor([C]))).extend(
        key, value
    )
    assert torch.equal(keys[:, :, 4:5, :D], key.bfloat16())
    assert torch.equal(values[:, :, 4:5, :D], value.bfloat16())
    window.end = 4
    sliding, _ = buffer.extend(key, value)
    assert torch.equal(sliding[:, :, 4:5, :D], key.bfloat16())
