"""Rows laid out for the quick products of an accelerator: other places in memory, the same numbers.

A CPU, which needs no such rows, is told here to lay out as for CUDA in 16 bits. Numbers of a real GPU this cannot show.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, n distances.
"""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.builders import draw_tokens, small_model
from tests.core.measures.test_attention_maps import FIRST, R, how, observe, stream
from tests.core.model.test_attention import KINDS, attend, by_kind, draw, draw_inputs, shifted
from tests.core.reading.test_decoder import decode
from txlcli.core.kernels import attention_inputs, attention_torch, device, distance_space
from txlcli.core.kernels.distance_space import PaddedScoreBuffer, Workspace
from txlcli.core.reading import past

B, L, M, H = 2, 5, 11, 3
K = M + L
MULTIPLE = 8


def lay_out(monkeypatch):
    """As on CUDA, from here on."""
    for module in (attention_inputs, attention_torch, past, distance_space):
        monkeypatch.setattr(module, "row_multiple", lambda _: MULTIPLE)


def test_only_a_cpu_takes_rows_of_any_length():
    assert device.row_multiple(torch.device("cpu")) == 1
    assert device.row_multiple(torch.device("cuda")) == MULTIPLE


@pytest.mark.parametrize("known", [None, 2])
@pytest.mark.parametrize("reach", [1, 4, 9, K])
@pytest.mark.parametrize("seg_len", [1, L, 8])
def test_scores_by_distance_are_seen_by_key_in_rows_of_any_length(monkeypatch, seg_len, reach, known):
    lay_out(monkeypatch)
    known = known and min(known, reach)
    space = PaddedScoreBuffer(draw(1), rows=B * H, seg_len=seg_len, key_len=K, reach=reach, fill=-math.inf, known=known)
    score = draw(B * H, seg_len, reach)
    space.by_distance.copy_(score)
    np.testing.assert_array_equal(space.by_key, shifted(score, seg_len, K))
    written = space.by_distance[:, :, reach - (known or reach) :]
    assert written.stride(1) % MULTIPLE == written.storage_offset() % MULTIPLE == 0


@pytest.mark.parametrize("kind", ["auto", *KINDS])
@pytest.mark.parametrize(("seg_len", "key_len"), [(1, 7), (5, 5), (5, 12), (3, 16)])
@pytest.mark.parametrize("unseen", [0, 1])
def test_every_kind_of_attention_stays_the_same_function(monkeypatch, kind, seg_len, key_len, unseen):
    reach = key_len - unseen
    inputs = draw_inputs(seg_len=seg_len, key_len=key_len, reach=reach)
    expected = by_kind(kind, *inputs, reach=reach)
    lay_out(monkeypatch)
    for found, wanted in zip(by_kind(kind, *inputs, reach=reach), expected, strict=True):
        assert found.shape == wanted.shape
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("same_length", ["off", "m"])
@pytest.mark.parametrize("max_distance", [None, 3])
def test_a_decoder_stays_the_same_function(monkeypatch, same_length, max_distance):
    model, tokens = small_model(memory_start="zeros"), draw_tokens(B, 53)
    limits = {"seg_len": L, "mem_len": M, "same_length": same_length, "max_distance": max_distance}
    expected = decode(model, tokens, **limits)
    lay_out(monkeypatch)
    torch.testing.assert_close(decode(model, tokens, **limits), expected, rtol=0, atol=1e-12)


def test_what_is_observed_stays_the_same(monkeypatch):
    model, tokens = small_model(), stream()
    expected = observe(model, tokens, how(), at=FIRST, rows=R)
    lay_out(monkeypatch)
    found = observe(model, tokens, how(), at=FIRST, rows=R)
    np.testing.assert_allclose(found.by_distance, expected.by_distance, rtol=0, atol=1e-12)
    for term, shares in expected.by_term.items():
        np.testing.assert_allclose(found.by_term[term], shares, rtol=0, atol=1e-12)


class Operands(TorchDispatchMode):
    """Looks at what batches of products read and write."""

    def __init__(self):
        super().__init__()
        self.crooked = []
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Note the operands whose rows, or columns if these lie one after the other, begin anywhere."""
        if func._schema.name in ("aten::bmm", "aten::baddbmm"):
            given = [*args[-2:], *([kwargs["out"]] if kwargs and "out" in kwargs else [])]
            self.seen += len(given)
            self.crooked += [(func, one.shape, one.stride()) for one in given if not _straight(one)]
        return func(*args, **(kwargs or {}))


def _straight(matrices):
    strides = sorted(matrices.stride()[1:])
    begins = matrices.storage_offset() % MULTIPLE == matrices.stride(0) % MULTIPLE == 0
    return begins and strides[0] == 1 and strides[1] % MULTIPLE == 0


@pytest.mark.parametrize("lay", [True, False])
def test_products_of_attention_read_and_write_straight_rows(monkeypatch, lay):
    if lay:
        lay_out(monkeypatch)
    workspace = Workspace()
    workspace.at_once = True  # as on a GPU
    inputs = [tensor.detach().bfloat16().requires_grad_() for tensor in draw_inputs(key_len=K)]
    with Operands() as operands:
        out = attend(*inputs, reach=K, workspace=workspace)
        out.float().sum().backward()
    assert operands.seen > 20
    assert bool(operands.crooked) != lay, operands.crooked


def test_the_mask_of_fused_attention_begins_and_goes_on_at_multiples(monkeypatch):
    lay_out(monkeypatch)
    masks = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def watched(*tensors, attn_mask, **options):
        masks.append(attn_mask)
        return fused(*tensors, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    for key_len in (K, 10, 13):
        inputs = draw_inputs(seg_len=8, key_len=max(key_len, 8))
        attend(*inputs, reach=max(key_len, 8), backend="sdpa")
    for mask in masks:
        assert mask.storage_offset() % MULTIPLE == mask.stride(2) % MULTIPLE == 0
