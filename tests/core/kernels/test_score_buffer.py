"""Score buffers in distance space against the definition of the shift (Appendix B), and their reuse."""

import copy
import math

import numpy as np
import pytest
import torch

from tests import reference
from tests.core.attention_cases import (
    DEFAULT,
    TILINGS,
    UNEQUAL_BLOCKS,
    B,
    D,
    H,
    L,
    M,
    attend,
    draw,
    draw_inputs,
    shifted,
    workspace_of,
)
from tests.core.builders import small_model
from txlcli.core.kernels.score_buffer import ScoreBuffer, ScoreBuffers, ScoreShape


@pytest.mark.parametrize("reach", range(1, M + L + 1))
@pytest.mark.parametrize("seg_len", [1, L])
def test_a_buffer_gives_scores_by_key_and_hides_distances_out_of_reach_at_every_use(reach, seg_len):
    buffer = ScoreBuffer(draw(1), ScoreShape(B * H, seg_len, M + L, reach), fill=-math.inf)
    for seed in (3, 4):
        score = draw(B * H, seg_len, reach, seed=seed)
        buffer.by_distance.copy_(score)
        np.testing.assert_array_equal(buffer.by_key, shifted(score, seg_len, M + L))
    seen = {(i, j) for _, i, j in torch.isfinite(buffer.by_key).nonzero().tolist()}
    assert seen == reference.allowed_pairs(seg_len=seg_len, mem_len=M + L - seg_len, key_limit=reach)


@pytest.mark.parametrize("tiling", TILINGS)
def test_a_used_workspace_changes_no_result(tiling):
    workspace = workspace_of(tiling)
    sizes = [(B, L, M + L, 9), (B, L, M + L, 9), (1, 3, 7, 7)]
    for number, (batch_size, seg_len, key_len, reach) in enumerate(sizes):
        inputs = [
            (100.0 * number + 1) * tensor.detach()
            for tensor in draw_inputs(batch_size=batch_size, seg_len=seg_len, key_len=key_len, reach=reach)
        ]
        inputs = [tensor.requires_grad_() for tensor in inputs]
        weight = draw(batch_size, H, seg_len, D, seed=9)
        expected, given = (attend(*inputs, reach=reach, workspace=used) for used in (workspace_of(tiling), workspace))
        assert torch.equal(given, expected)
        grads = [torch.autograd.grad((out * weight).sum(), inputs) for out in (expected, given)]
        assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("reach", [4, 9, M + L])
def test_scores_that_are_not_finite_do_not_stay_in_a_workspace(tiling, reach):
    workspace, inputs = workspace_of(tiling), draw_inputs(reach=reach)
    expected = attend(*inputs, reach=reach, workspace=workspace_of(tiling)).detach()
    for poison in (math.nan, math.inf):
        poisoned = [tensor.detach().clone() for tensor in inputs]
        poisoned[0][0] = poison  # the first sequence
        out = attend(*poisoned, reach=reach, workspace=workspace)
        if tiling != DEFAULT:  # each sequence has tiles of its own
            torch.testing.assert_close(out[1:], expected[1:], rtol=0, atol=1e-12)
        torch.testing.assert_close(attend(*inputs, reach=reach, workspace=workspace), expected, rtol=0, atol=1e-12)
    plain = [*inputs[:3], None, None, None]
    given, wanted = (attend(*plain, reach=reach, workspace=used) for used in (workspace, workspace_of(tiling)))
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tiling", [DEFAULT, UNEQUAL_BLOCKS])
def test_gradients_that_are_not_finite_do_not_stay_in_a_workspace(tiling):
    workspace, inputs = workspace_of(tiling), draw_inputs(reach=9)
    for weight in (math.nan, math.inf, 1.0):
        out = attend(*inputs, reach=9, workspace=workspace)
        grads = torch.autograd.grad((out * weight).sum(), inputs)
    expected = torch.autograd.grad(attend(*inputs, reach=9, workspace=workspace_of(tiling)).sum(), inputs)
    torch.testing.assert_close(grads, expected, rtol=0, atol=0)


def test_a_buffer_has_one_user_at_a_time_and_serves_training_after_evaluation():
    workspace = ScoreBuffers()

    def acquire(fill=0.0, reach=9):
        return workspace.acquire(draw(1), ScoreShape(H, L, M + L, reach), fill=fill)

    with torch.inference_mode():
        first, second = (acquire() for _ in range(2))
    assert first is not second
    workspace.release(first)
    assert acquire(-math.inf) is not first
    again = acquire()
    assert again is first
    again.by_key.copy_(draw(H, L, M + L))  # made in inference mode, changed outside of it
    workspace.release(again)
    assert acquire(reach=8) is not first


def test_layers_share_a_workspace_and_a_copy_of_a_model_has_its_own():
    model = small_model()
    model.workspace.cache_bytes, model.workspace.min_queries = 17, 3
    shared = {id(layer.backend.attend.fallback.buffers) for layer in model.layers}
    copied = {layer.backend.attend.fallback.buffers for layer in copy.deepcopy(model).layers}
    assert shared == {id(model.workspace)}
    (workspace,) = copied
    assert workspace is not model.workspace
    assert (workspace.cache_bytes, workspace.min_queries) == (17, 3)
