"""Segment-level recurrence (section 3.2): what is remembered, how far it reaches, where the gradient stops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.builders import POSITIONS, V, draw_tokens, read_segments, small_model
from tests.samples import sampled
from txlcli.core.model.layer import update_memory

B, L, M, WIDTH = 2, 5, 7, 3


def numbered(first, count):
    """(B, count, d) whose position p holds p everywhere."""
    return torch.arange(first, first + count, dtype=torch.float64)[None, :, None].repeat(B, 1, WIDTH)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), mem_len=st.integers(0, 20))
def test_memory_is_the_end_of_all_that_was_read(lengths, mem_len):
    memory, read = numbered(0, 0), 0
    for length in lengths:
        memory = update_memory(memory, numbered(read, length), mem_len=mem_len)
        read += length
        assert memory[0, :, 0].tolist() == list(range(max(0, read - mem_len), read))


@pytest.mark.parametrize(("held", "read", "mem_len"), [(0, 5, 0), (7, 3, 7), (2, 3, 7), (7, 7, 7), (7, 11, 7)])
def test_memory_holds_on_to_nothing_but_itself(held, read, mem_len):
    memory = update_memory(numbered(0, held), numbered(held, read), mem_len=mem_len)
    assert memory.untyped_storage().nbytes() == memory.nbytes


EVERYTHING = 22
"""Length of a memory that holds all of a text but its last token."""
AS_ONE_SEGMENT = {  # settings of a model, length of the memory, limits
    **{name: (POSITIONS[name], EVERYTHING, {}) for name in POSITIONS if name not in ("sinusoid", "learned")},
    "pre": ({"norm": "pre"}, EVERYTHING, {}),
    "modern": ({"block": "modern", "norm": "pre"}, EVERYTHING, {}),
    # A query that begins its segment finds M - 1 of its M keys in the memory.
    "M keys": ({}, M, {"key_limit": M}),
    "M keys, pre": ({"norm": "pre"}, M, {"key_limit": M}),
    "window": ({"window": 4}, 3, {}),
    "window, more memory": ({"window": 4, "norm": "pre"}, 100, {}),
    "window, shaw": ({"window": 4, "position": "shaw", "n_positions": 3}, 3, {}),
    "window, rotary": ({"window": 4, "position": "rotary", "d_head": 12}, M, {}),
}


TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}


@pytest.mark.parametrize(
    ("name", "dtype", "backend"), sampled(2, AS_ONE_SEGMENT, TOLERANCES, ["auto", "reference"]), ids=str
)
def test_memory_gives_the_logits_of_one_long_segment(name, dtype, backend):
    changed, mem_len, limits = AS_ONE_SEGMENT[name]
    model, tokens = small_model(dtype=dtype, std=0.1, **changed), draw_tokens(B, EVERYTHING + 1)
    model = model.on(attention=backend)
    with torch.no_grad():
        whole, _ = read_segments(model, tokens, [EVERYTHING + 1], mem_len=0, **limits)
        for lengths in ([L, L, 1, 11, 1], [11, 11, 1], [1] * 23):
            parts, _ = read_segments(model, tokens, lengths, mem_len=mem_len, **limits)
            torch.testing.assert_close(parts, whole, rtol=0, atol=TOLERANCES[dtype])


@settings(max_examples=25)
@given(
    changed=st.integers(0, 16),
    lengths=st.sampled_from([[17], [5, 5, 5, 2], [7, 7, 3], [1] * 17]),
    mem_len=st.sampled_from([0, 3, 7, 17]),
    norm=st.sampled_from(["post", "pre"]),
)
def test_a_future_token_never_changes_a_past_logit(changed, lengths, mem_len, norm):
    model, tokens = small_model(norm=norm), draw_tokens(B, 17)
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % V
    before, _ = read_segments(model, tokens, lengths, mem_len=mem_len)
    after, _ = read_segments(model, other, lengths, mem_len=mem_len)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert (before[:, changed] != after[:, changed]).any()


def changed_positions(changed, *, total, layers, seg_len, mem_len, key_limit=None, norm="post"):
    """Positions whose logits a changed token really changes, in any digit."""
    model, tokens = small_model(n_layers=layers, norm=norm), draw_tokens(1, total)
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % V
    lengths = [seg_len] * (total // seg_len)
    before, after = (
        read_segments(model, read, lengths, mem_len=mem_len, key_limit=key_limit)[0] for read in (tokens, other)
    )
    return set((before != after).any(-1).nonzero()[:, 1].tolist())


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("changed", [0, 2, L - 1])
def test_a_change_reaches_n_segments_further_and_not_one_token_more(layers, changed, norm):
    # M = L: every layer carries it to the end of the next segment, so O(N x L) tokens in all.
    options = {"total": 7 * L, "layers": layers, "seg_len": L, "mem_len": L}
    expected = set(range(changed, (layers + 1) * L))
    assert changed_positions(changed, norm=norm, **options) == expected


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_no_gradient_reaches_the_tokens_of_the_segment_before(norm):
    model = small_model(norm=norm)
    before, now = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 7]])
    _, memory = model(before, model.first_memory(1, M), mem_len=M)
    hidden, _ = model(now, memory, mem_len=M)
    hidden.square().sum().backward()
    touched = model.embedding.tables[0].grad.abs().sum(-1).nonzero().flatten().tolist()
    assert touched == [5, 6, 7]
    # Read as one segment, the same tokens do get a gradient: they matter, and only the memory stops it.
    model.zero_grad()
    hidden, _ = model(torch.cat([before, now], dim=1), model.first_memory(1, M), mem_len=M)
    hidden[:, 4:].square().sum().backward()
    touched = model.embedding.tables[0].grad.abs().sum(-1).nonzero().flatten().tolist()
    assert touched == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("norm", "kept"), [("post", torch.bfloat16), ("pre", torch.float32)])
def test_memory_is_kept_as_products_read_it_where_nothing_else_reads_it(norm, kept):
    model, tokens = small_model(norm=norm, dtype=torch.float32), draw_tokens(B, 2 * L)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, memory = read_segments(model, tokens, [L, L], mem_len=M)
        assert [past.dtype for past in memory] == [past.dtype for past in model.full_memory(B, M)] == [kept] * 2
        short, long = (model(tokens, past, mem_len=M) for past in (memory, [past.float() for past in memory]))
    assert torch.equal(short[0], long[0])
    assert all(torch.equal(*pair) for pair in zip(short[1], long[1], strict=True))
    model(tokens, memory, mem_len=M)  # a run that goes on in fp32
