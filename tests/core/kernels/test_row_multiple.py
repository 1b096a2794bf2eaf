"""Rows aligned for the fast products of CUDA: another layout in memory, equal results.

These tests lay out rows on a CPU as for CUDA in 16 bits. They cannot show the results of a GPU.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, n distances.
"""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.attention_cases import OTHER_BACKENDS, attend, by_backend, draw, draw_inputs, shifted
from tests.core.builders import draw_tokens, small_model
from tests.core.measures.test_attention_maps import FIRST, R, eval_settings, observe, stream
from tests.core.reading.test_decoder import decode
from txlcli.core.kernels.device import row_multiple, use_row_multiple
from txlcli.core.kernels.score_buffer import PaddedScoreBuffer, ScoreShape, Workspace, scores_at_once

B, L, M, H = 2, 5, 11, 3
K = M + L
MULTIPLE = 8


def test_only_cuda_needs_aligned_rows():
    assert row_multiple(torch.device("cpu")) == 1
    assert row_multiple(torch.device("cuda")) == MULTIPLE


@pytest.mark.parametrize("known", [None, 2])
@pytest.mark.parametrize("reach", [1, 4, 9, K])
@pytest.mark.parametrize("seg_len", [1, L, 8])
def test_scores_by_distance_are_read_by_key_in_aligned_rows(seg_len, reach, known):
    known = min(known or reach, reach)
    with use_row_multiple(MULTIPLE):
        buffer = PaddedScoreBuffer(draw(1), ScoreShape(B * H, seg_len, K, reach, known), fill=-math.inf)
    score = draw(B * H, seg_len, reach)
    buffer.by_distance.copy_(score)
    np.testing.assert_array_equal(buffer.by_key, shifted(score, seg_len, K))
    written = buffer.by_distance[:, :, reach - known :]
    assert written.stride(1) % MULTIPLE == written.storage_offset() % MULTIPLE == 0


@pytest.mark.parametrize("backend", ["auto", *OTHER_BACKENDS])
@pytest.mark.parametrize(("seg_len", "key_len"), [(1, 7), (5, 5), (5, 12), (3, 16)])
@pytest.mark.parametrize("unseen", [0, 1])
def test_aligned_rows_do_not_change_any_backend(backend, seg_len, key_len, unseen):
    reach = key_len - unseen
    inputs = draw_inputs(seg_len=seg_len, key_len=key_len, reach=reach)
    expected = by_backend(backend, *inputs, reach=reach)
    with use_row_multiple(MULTIPLE):
        results = by_backend(backend, *inputs, reach=reach)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        torch.testing.assert_close(result, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("same_length", ["off", "m"])
@pytest.mark.parametrize("max_distance", [None, 3])
def test_aligned_rows_do_not_change_a_decoder(same_length, max_distance):
    model, tokens = small_model(memory_start="zeros"), draw_tokens(B, 53)
    limits = {"seg_len": L, "mem_len": M, "same_length": same_length, "max_distance": max_distance}
    expected = decode(model, tokens, **limits)
    with use_row_multiple(MULTIPLE):
        torch.testing.assert_close(decode(model, tokens, **limits), expected, rtol=0, atol=1e-12)


def test_aligned_rows_do_not_change_attention_maps():
    model, tokens = small_model(), stream()
    expected = observe(model, tokens, eval_settings(), at=FIRST, rows=R)
    with use_row_multiple(MULTIPLE):
        maps = observe(model, tokens, eval_settings(), at=FIRST, rows=R)
    np.testing.assert_allclose(maps.by_distance, expected.by_distance, rtol=0, atol=1e-12)
    for term, shares in expected.by_term.items():
        np.testing.assert_allclose(maps.by_term[term], shares, rtol=0, atol=1e-12)


class Operands(TorchDispatchMode):
    """Collects the operands of batched products whose rows, or columns if these are contiguous, are not aligned."""

    def __init__(self):
        super().__init__()
        self.unaligned = []
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::bmm", "aten::baddbmm"):
            operands = [*args[-2:], *([kwargs["out"]] if kwargs and "out" in kwargs else [])]
            self.count += len(operands)
            self.unaligned += [(func, one.shape, one.stride()) for one in operands if not _aligned(one)]
        return func(*args, **(kwargs or {}))


def _aligned(matrices):
    strides = sorted(matrices.stride()[1:])
    begins = matrices.storage_offset() % MULTIPLE == matrices.stride(0) % MULTIPLE == 0
    return begins and strides[0] == 1 and strides[1] % MULTIPLE == 0


@pytest.mark.parametrize("multiple", [MULTIPLE, 1])
def test_products_of_attention_read_and_write_aligned_rows(multiple):
    workspace = Workspace()
    inputs = [tensor.detach().bfloat16().requires_grad_() for tensor in draw_inputs(key_len=K)]
    with scores_at_once(), use_row_multiple(multiple), Operands() as operands:
        out = attend(*inputs, reach=K, workspace=workspace)
        out.float().sum().backward()
    assert operands.count > 20
    assert bool(operands.unaligned) == (multiple == 1), operands.unaligned


def test_the_mask_of_fused_attention_has_aligned_rows(monkeypatch):
    masks = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def watched(*tensors, attn_mask, **options):
        masks.append(attn_mask)
        return fused(*tensors, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    for key_len in (K, 10, 13):
        inputs = draw_inputs(seg_len=8, key_len=max(key_len, 8))
        with use_row_multiple(MULTIPLE):
            attend(*inputs, reach=max(key_len, 8), backend="sdpa")
    for mask in masks:
        assert mask.storage_offset() % MULTIPLE == mask.stride(2) % MULTIPLE == 0
