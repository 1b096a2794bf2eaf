"""Attention by tiles: its division into tiles, its own gradient, recomputation, dropout, layouts and 16 bits."""

import pytest
import torch

from tests.core.attention_cases import (
    SINGLE_QUERIES,
    TILINGS,
    B,
    D,
    H,
    L,
    M,
    attend,
    attend_all,
    draw,
    draw_inputs,
    laid_out,
    workspace_of,
)
from txlcli.core.backend import ScoreTerms, at_distance, nearest_rows
from txlcli.core.kernels.attention_tiles import Tiling
from txlcli.core.kernels.modes import as_on_gpu


@pytest.mark.parametrize(
    ("cache_bytes", "expected"),
    [(6 * 80, (6, 2)), (5 * 80, (3, 2)), (3 * 80, (3, 2)), (2 * 80, (2, 2)), (80, (1, 2)), (79, (1, 1)), (1, (1, 1))],
)
def test_a_tile_holds_as_many_sequences_as_the_cache_or_of_one_sequence_as_many_queries(cache_bytes, expected):
    # One sequence: 1 head x 2 rows x (4 + 2 - 1) columns x 8 bytes = 80 bytes. Sequences are divided evenly.
    inputs = draw_inputs(batch_size=6, seg_len=2, key_len=4, heads=1)
    tiling = Tiling.of(laid_out(inputs, 4), workspace_of((cache_bytes, 1)))
    assert tiling[:2] == expected


def test_all_scores_are_one_tile_if_they_are_computed_at_once():
    with as_on_gpu():
        tiling = Tiling.of(laid_out(draw_inputs(), M + L), workspace_of(SINGLE_QUERIES))
    assert tiling[:2] == (B, L)


@pytest.mark.parametrize(("min_queries", "blocks"), [(5, [5]), (3, [5]), (2, [3, 2]), (1, [1] * 5)])
def test_blocks_of_queries_are_alike_and_see_nothing_after_their_last_query(min_queries, blocks):
    inputs = laid_out(draw_inputs(), M + L)
    tiles = list(Tiling.of(inputs, workspace_of((1, min_queries))).tiles(inputs))
    assert [tile.sequences for tile in tiles] == [slice(b, b + 1) for b in range(B) for _ in blocks]
    assert [tile.queries.stop - tile.queries.start for tile in tiles] == blocks * B
    assert all(tile.keys == M + tile.queries.stop for tile in tiles)
    assert [tile.keys for tile in tiles[: len(blocks)]] == [M + L - sum(blocks[:n]) for n in range(len(blocks))]


def test_a_recomputed_mask_leaves_the_generator_as_it_is():
    inputs, results = draw_inputs(), []
    for recompute in (False, True):
        torch.manual_seed(6)
        out = attend_all(*inputs, dropout=0.4, recompute=recompute)
        torch.rand(5)  # another use of the generator before the backward pass
        results.append((out, *torch.autograd.grad(out.sum(), inputs), torch.rand(3)))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_recomputation_saves_the_inputs_alone(dropout):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tuple(tensor.shape)) or tensor, id):
        inputs = draw_inputs()
        attend_all(*inputs, dropout=dropout, recompute=True)
    shapes = [(H, 1, D) if tensor.dim() == 2 else tuple(tensor.shape) for tensor in inputs]
    assert sorted(saved) == sorted(shapes)


@pytest.mark.parametrize("tiling", TILINGS)
def test_one_seed_drops_equal_probabilities_with_and_without_a_gradient(tiling):
    inputs = draw_inputs()
    torch.manual_seed(6)
    with_gradient = attend_all(*inputs, dropout=0.4, workspace=workspace_of(tiling))
    torch.manual_seed(6)
    with torch.no_grad():
        without = attend_all(*inputs, dropout=0.4, workspace=workspace_of(tiling))
    torch.testing.assert_close(without, with_gradient.detach(), rtol=0, atol=0)


def test_inputs_may_lie_in_memory_in_any_order():
    plain = draw_inputs()
    axes = [-3 if tensor.dim() > 2 else -1 for tensor in plain]  # biases have two
    turned = [
        tensor.detach().transpose(-2, axis).contiguous().transpose(-2, axis).requires_grad_()
        for tensor, axis in zip(plain, axes, strict=True)
    ]
    weight = draw(B, H, L, D)
    outs = [attend_all(*inputs) for inputs in (plain, turned)]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)
    grads = [
        torch.autograd.grad((out * weight).sum(), inputs) for out, inputs in zip(outs, (plain, turned), strict=True)
    ]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_bf16_is_close_to_float64_in_output_and_gradient(dropout):
    exact = draw_inputs()
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    outs = []
    for inputs in (rounded, exact):
        torch.manual_seed(7)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outs.append(attend_all(*inputs, dropout=dropout))
    near, true = outs
    assert near.dtype == torch.bfloat16
    torch.testing.assert_close(near.double(), true, rtol=0, atol=0.1)
    for near_grad, true_grad in zip(
        torch.autograd.grad(near.sum(), rounded), torch.autograd.grad(true.sum(), exact), strict=True
    ):
        assert near_grad.dtype == torch.bfloat16
        assert (near_grad.double() - true_grad).norm() < 0.05 * true_grad.norm()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("tiling", TILINGS)
def test_bf16_reads_keys_with_gaps_between_heads(dropout, tiling):
    dense = [tensor.detach().bfloat16() for tensor in draw_inputs(reach=9)]
    gaps = [torch.cat([tensor, tensor], dim=-2)[..., : tensor.shape[-2], :] for tensor in dense]
    outs = []
    for tensors in (dense, gaps):
        torch.manual_seed(7)
        inputs = [tensor.requires_grad_() for tensor in tensors]
        out = attend(*inputs, reach=9, dropout=dropout, workspace=workspace_of(tiling))
        outs.append((out, *torch.autograd.grad(out.float().sum(), inputs)))
    torch.testing.assert_close(*outs, rtol=0, atol=0)


def test_the_first_row_by_distance_stands_for_every_larger_distance():
    rows = torch.arange(3).expand(2, 3)  # distances 2, 1, 0
    assert nearest_rows(rows, 5).tolist() == [[0, 0, 0, 1, 2]] * 2
    assert nearest_rows(rows, 2).tolist() == [[1, 2]] * 2
    assert at_distance(rows, torch.tensor([4, 0, 2]), dim=1).tolist() == [[0, 2, 0]] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize(("reach", "max_distance"), [(M + L, 0), (M + L, 3), (M + L, M), (9, 3), (9, 4), (9, 20)])
def test_equal_position_keys_need_not_be_repeated(dtype, tiling, reach, max_distance):
    *inputs, position_key = (tensor.detach().to(dtype) for tensor in draw_inputs(reach=reach))
    position_key[:, : max(0, reach - max_distance)] = position_key[:, max(0, reach - 1 - max_distance), None]
    terms = ScoreTerms(reach, position_key)
    few = terms.without_repetition(max_distance)
    assert few.position_key.shape[1] == min(reach, max_distance + 1)
    assert torch.equal(nearest_rows(few.position_key, reach), position_key)
    workspace = workspace_of(tiling)
    for count in (reach, reach - 1, 4, 1):
        query, key, value, *biases = inputs
        keys = [key[:, :, -max(count, L) :], value[:, :, -max(count, L) :]]
        expected, given = (
            attend(query, *keys, *biases, one.nearest(count).position_key, reach=count, workspace=workspace)
            for one in (terms, few)
        )
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 0.02)
