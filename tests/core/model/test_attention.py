"""Attention in distance space against the definitions of section 3.3 and Appendix B."""

import math

import numpy as np
import pytest
import torch

from tests import reference
from tests.core import oracle
from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.attention_tiles import TiledAttention, Tiling
from txlcli.core.kernels.distance_space import CACHE_BYTES, MIN_QUERIES, DenseScoreBuffer, PaddedScoreBuffer, Workspace
from txlcli.core.model import backends
from txlcli.core.model.attention import Attention, ScoreTerms, distance_encoding, split_heads

B, L, M, H, D, WIDTH = 2, 5, 7, 3, 11, 14
# Bytes of float64 scores in one pass, fewest queries in a block of them.
AS_MEASURED = (CACHE_BYTES, MIN_QUERIES)
TWO_LANES, ONE_LANE = (2 * H * L * (M + 2 * L - 1) * 8, 64), (1, 64)
UNLIKE_BLOCKS, ONE_QUERY = (1, 2), (1, 1)  # of three queries and of two; of one
SHAPES = [(1, 1), (1, 7), (2, 3), (5, 5), (5, 12)]


def draw(*shape, seed=3, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def workspace_of(tiling):
    """A workspace that divides scores into tiles of so many bytes and so many queries at least."""
    return Workspace(cache_bytes=tiling[0], min_queries=tiling[1])


def draw_inputs(*, lanes=B, seg_len=L, key_len=M + L, reach=None, heads=H, width=D):
    """What `attend` takes: queries, keys, values, two biases, position keys."""
    query, bias = (lanes, heads, seg_len, width), (heads, width)
    key = (lanes, heads, key_len, width)
    shapes = (query, key, key, bias, bias, (heads, reach or key_len, width))
    return [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def relative_attention(width, heads):
    """An attention, and the projection of distances that goes with it."""
    module = Attention(d_model=width, n_heads=heads, d_head=D, dropout=0.0).double()
    module.attend = TiledAttention()
    return module, torch.nn.Linear(width, heads * D, bias=False).double()


ARGUMENTS = ("query", "key", "value", "content_bias", "position_bias", "position_key")


def attend(*tensors, reach, backend="auto", workspace=None, recompute=False, dropout=0.0):
    """The output of a backend; the score is not scaled."""
    function, _ = backends.choose(backend, workspace or Workspace(), recompute=recompute)
    return function(**dict(zip(ARGUMENTS, tensors, strict=True)), reach=reach, scale=1.0, dropout=dropout)


def laid_out(tensors, reach):
    """The arguments as the kernels have them."""
    return AttentionInputs.of(**dict(zip(ARGUMENTS, tensors, strict=True)), reach=reach, scale=1.0)


def attend_all(*inputs, **how):
    """Attention to every distance that has a position key."""
    return attend(*inputs, reach=inputs[-1].shape[1], **how)


def shifted(by_distance, seg_len, key_len):
    """(rows, L, n) scores of the distances n - 1 .. 0 -> (rows, L, K) by definition; -inf where nothing is seen."""
    reach = by_distance.shape[-1]
    unseen = np.full((seg_len, key_len - reach), -math.inf)
    rows = [
        reference.relative_shift_by_definition(np.concatenate([unseen, row], axis=1)) for row in by_distance.numpy()
    ]
    return np.where(np.isnan(rows), -math.inf, rows)


@pytest.mark.parametrize("width", [2, 14])
def test_distance_encoding_is_sines_then_cosines_even_at_long_distances(width):
    distances = [2099, 7, 1, 0]
    expected = [reference.distance_encoding(distance, width) for distance in distances]
    np.testing.assert_allclose(distance_encoding(torch.tensor(distances), width), expected, atol=1e-12)


@pytest.mark.parametrize(("seg_len", "key_len"), SHAPES)
def test_relative_shift_equals_its_definition_index_by_index(seg_len, key_len):
    space = PaddedScoreBuffer(draw(1), rows=B * H, seg_len=seg_len, key_len=key_len, reach=key_len, fill=-math.inf)
    score = draw(B * H, seg_len, key_len)
    space.by_distance.copy_(score)
    np.testing.assert_array_equal(space.by_key, shifted(score, seg_len, key_len))


@pytest.mark.parametrize("reach", range(1, M + L))
def test_distances_out_of_reach_are_not_seen(reach):
    space = PaddedScoreBuffer(draw(1), rows=B * H, seg_len=L, key_len=M + L, reach=reach, fill=-math.inf)
    score = draw(B * H, L, reach)
    space.by_distance.copy_(score)
    np.testing.assert_array_equal(space.by_key, shifted(score, L, M + L))
    seen = {(i, j) for _, i, j in torch.isfinite(space.by_key).nonzero().tolist()}
    assert seen == reference.allowed_pairs(seg_len=L, mem_len=M, key_limit=reach)


def test_relative_shift_is_a_view():
    space = PaddedScoreBuffer(draw(1), rows=H, seg_len=L, key_len=M + L, reach=M + L, fill=0.0)
    assert space.by_key.untyped_storage().data_ptr() == space.by_distance.untyped_storage().data_ptr()


@pytest.mark.parametrize("key_limit", [None, 1, 6])
@pytest.mark.parametrize(("seg_len", "mem_len"), [(1, 0), (1, M), (L, 0), (L, M), (M, 2)])
def test_attention_equals_the_oracle(seg_len, mem_len, key_limit):
    torch.manual_seed(5)
    module, w_k_position = relative_attention(WIDTH, H)
    context, u, v = draw(B, mem_len + seg_len, WIDTH), draw(H, D, seed=4), draw(H, D, seed=5)
    reach = min(mem_len + seg_len, key_limit or mem_len + seg_len)
    encoding = distance_encoding(torch.arange(reach - 1, -1, -1), WIDTH)
    segment = context[:, mem_len:]
    keys, terms = module.project_keys(context), ScoreTerms(reach, split_heads(w_k_position(encoding), H), u, v)
    given = module(module.project_queries(segment), keys, terms)

    layer = {**oracle.attention_weights(module, w_k_position), "content_bias": u.numpy(), "position_bias": v.numpy()}
    expected = [
        reference.attention(row[mem_len:], row[:mem_len], layer, key_limit=key_limit) for row in context.numpy()
    ]
    np.testing.assert_allclose(given.detach(), expected, atol=1e-10)
    with torch.no_grad():
        np.testing.assert_allclose(module(module.project_queries(segment), keys, terms), expected, atol=1e-10)


@pytest.mark.parametrize("term", "abcd")
@pytest.mark.parametrize("max_distance", [None, 0, 3])
@pytest.mark.parametrize("key_limit", [None, 2, 8])
def test_each_of_the_four_terms_equals_the_oracle(term, max_distance, key_limit):
    # K = D and d = H D: values that are unit vectors and an identity at the end show the probabilities themselves,
    # whose logarithms are the scores up to a constant for each query.
    heads, seg_len, mem_len = 2, 4, D - 4
    torch.manual_seed(5)
    module, w_k_position = relative_attention(heads * D, heads)
    context, u, v = draw(B, D, heads * D), draw(heads, D, seed=4), draw(heads, D, seed=5)
    layer = {**oracle.attention_weights(module, w_k_position), "content_bias": u.numpy(), "position_bias": v.numpy()}
    limits = {"max_distance": max_distance, "key_limit": key_limit}
    scores = [
        reference.attention_scores(row[mem_len:], row[:mem_len], layer, **limits) for row in context.numpy().copy()
    ]
    expected = np.stack([getattr(one, term) for one in scores]) / math.sqrt(D)  # (B, H, L, K), nothing taken away yet

    distances = torch.arange(min(D, key_limit or D) - 1, -1, -1).clamp(max=D if max_distance is None else max_distance)
    silent = {
        "a": (w_k_position.weight, u),
        "b": (module.w_k_content.weight, v),
        "c": (w_k_position.weight, module.w_q.weight),
        "d": (module.w_k_content.weight, module.w_q.weight),
    }
    with torch.no_grad():
        module.w_o.weight.copy_(torch.eye(heads * D))
        for tensor in silent[term]:
            tensor.zero_()
        keys, _ = module.project_keys(context)
        values = torch.eye(D, dtype=torch.float64).expand(B, heads, D, D)
        position_key = split_heads(w_k_position(distance_encoding(distances, heads * D)), heads)
        out = module(
            module.project_queries(context[:, mem_len:]), (keys, values), ScoreTerms(len(distances), position_key, u, v)
        )
    probability = out.unflatten(-1, (heads, D)).transpose(1, 2).numpy()

    seen = {(i, j) for i in range(seg_len) for j in range(D) if probability[0, 0, i, j] > 0}
    assert seen == scores[0].allowed
    for i in range(seg_len):
        columns = [j for j in range(D) if (i, j) in seen]
        given, wanted = np.log(probability[:, :, i, columns]), expected[:, :, i, columns]
        np.testing.assert_allclose(given - given[..., :1], wanted - wanted[..., :1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("passes", [TWO_LANES, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
@pytest.mark.parametrize("reach", [4, M + L])
def test_lanes_per_pass_change_no_output_and_no_gradient(monkeypatch, passes, reach):
    inputs = draw_inputs(lanes=6, reach=reach)
    weight = draw(6, H, L, D, seed=9)
    out = attend_all(*inputs)
    grads = torch.autograd.grad((out * weight).sum(), inputs)
    cut(monkeypatch, passes)
    divided = attend_all(*inputs)
    torch.testing.assert_close(divided, out, rtol=0, atol=1e-12)
    divided_grads = torch.autograd.grad((divided * weight).sum(), inputs)
    torch.testing.assert_close(divided_grads, grads, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("cache_bytes", "expected"),
    [(6 * 80, (6, 2)), (5 * 80, (3, 2)), (3 * 80, (3, 2)), (2 * 80, (2, 2)), (80, (1, 2)), (79, (1, 1)), (1, (1, 1))],
)
def test_a_pass_takes_as_many_lanes_as_the_cache_holds_or_of_one_lane_as_many_queries(
    monkeypatch, cache_bytes, expected
):
    cut(monkeypatch, (cache_bytes, 1))
    # One lane: 1 head x 2 rows x (4 + 2 - 1) columns x 8 bytes = 80 bytes. Lanes are divided evenly.
    inputs = draw_inputs(lanes=6, seg_len=2, key_len=4, heads=1)
    plan = attention_tiles._Plan.of(laid_out(inputs, 4), Workspace())
    assert (plan.lanes, plan.queries) == expected


@pytest.mark.parametrize(("fewest", "blocks"), [(5, [5]), (3, [5]), (2, [3, 2]), (1, [1] * 5)])
def test_blocks_of_queries_are_alike_and_see_nothing_after_their_last_query(monkeypatch, fewest, blocks):
    cut(monkeypatch, (1, fewest))
    inputs = laid_out(draw_inputs(), M + L)
    passes = list(attention_tiles._Plan.of(inputs, Workspace()).passes(inputs))
    assert [one.first for one in passes] == sorted(list(range(B)) * len(blocks))
    assert [one.queries for one in passes] == blocks * B
    assert all(one.keys == M + one.begin + one.queries for one in passes)
    assert [one.keys for one in passes[: len(blocks)]] == [M + L - sum(blocks[:n]) for n in range(len(blocks))]


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("passes", [AS_MEASURED, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
@pytest.mark.parametrize("sizes", [(3, 5, 5), (3, 5, 2), (3, 3, 3), (1, 5, 5)], ids="L, K, n = {}".format)
def test_gradient_equals_finite_differences(monkeypatch, dropout, recompute, passes, sizes):
    seg_len, key_len, reach = sizes
    cut(monkeypatch, passes)
    inputs = draw_inputs(seg_len=seg_len, key_len=key_len, reach=reach, width=2)

    def fixed(*tensors):
        torch.manual_seed(8)
        return attend_all(*tensors, dropout=dropout, recompute=recompute)

    assert torch.autograd.gradcheck(fixed, inputs)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("passes", [AS_MEASURED, TWO_LANES, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
def test_recomputed_probabilities_give_the_same_output_and_gradients(monkeypatch, dropout, positions, passes):
    cut(monkeypatch, passes)
    inputs, weight = draw_inputs(lanes=4, reach=9), draw(4, H, L, D, seed=9)
    if not positions:
        inputs[4] = inputs[5] = None
    learned = [tensor for tensor in inputs if tensor is not None]
    found = []
    for recompute in (False, True):
        torch.manual_seed(6)
        out = attend(*inputs, reach=9, dropout=dropout, recompute=recompute)
        torch.rand(5)  # whatever else draws before the backward pass
        found.append((out, *torch.autograd.grad((out * weight).sum(), learned), torch.rand(3)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)  # the generator goes on as before, too


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_recomputing_keeps_the_inputs_alone(dropout):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tuple(tensor.shape)) or tensor, id):
        inputs = draw_inputs()
        attend_all(*inputs, dropout=dropout, recompute=True)
    shapes = [(H, 1, D) if tensor.dim() == 2 else tuple(tensor.shape) for tensor in inputs]
    assert sorted(kept) == sorted(shapes)


def probabilities(*, dropout, lanes=B):
    """Probabilities (B, H, L, K) as they were used: the values are unit vectors, so the output is their weights."""
    key_len = D
    query, key, _, *positions = draw_inputs(lanes=lanes, key_len=key_len)
    value = torch.eye(key_len, dtype=torch.float64).expand(lanes, H, key_len, key_len)
    return attend_all(query, key, value, *positions, dropout=dropout)


def test_dropout_drops_a_probability_or_scales_it_up():
    torch.manual_seed(4)
    dropped, whole = probabilities(dropout=0.25), probabilities(dropout=0.0)
    scaled = whole / 0.75
    assert torch.equal(dropped.isclose(scaled) | (dropped == 0), torch.ones_like(dropped, dtype=torch.bool))
    assert ((dropped == 0) & (whole > 0)).any()
    assert (dropped[whole > 0] > 0).any()


def test_dropout_drops_its_share_and_keeps_the_expectation():
    torch.manual_seed(4)
    dropped, whole = probabilities(dropout=0.25, lanes=1009), probabilities(dropout=0.0, lanes=1009)
    seen = whole > 0
    assert (dropped[seen] == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    # The mean of a row's sum is 1; its deviation is below sqrt(0.25 / 0.75) for each of 1009 x 3 x 5 rows.
    assert dropped.sum(-1).mean().item() == pytest.approx(1.0, abs=4 * math.sqrt(1 / 3 / (1009 * H * L)))


@pytest.mark.parametrize("passes", [AS_MEASURED, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
def test_dropout_is_the_same_with_and_without_a_gradient(monkeypatch, passes):
    cut(monkeypatch, passes)
    inputs = draw_inputs()
    torch.manual_seed(6)
    with_gradient = attend_all(*inputs, dropout=0.4)
    torch.manual_seed(6)
    with torch.no_grad():
        torch.testing.assert_close(attend_all(*inputs, dropout=0.4), with_gradient.detach(), rtol=0, atol=0)


def test_attention_dropout_acts_in_training_only():
    module = Attention(d_model=WIDTH, n_heads=H, d_head=D, dropout=0.5).double()
    module.attend = TiledAttention()
    context = draw(B, M + L, WIDTH)

    def out():
        query = module.project_queries(context[:, M:])
        return module(query, module.project_keys(context), ScoreTerms(M + L))

    assert not torch.equal(out(), out())
    module.eval()
    assert torch.equal(out(), out())


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


@pytest.mark.parametrize("passes", [AS_MEASURED, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
def test_a_workspace_that_was_used_changes_nothing(monkeypatch, passes):
    cut(monkeypatch, passes)
    workspace = Workspace()
    for number, (lanes, seg_len, key_len, reach) in enumerate([(B, L, M + L, 9), (B, L, M + L, 9), (1, 3, 7, 7)]):
        inputs = [
            (100.0 * number + 1) * tensor.detach()
            for tensor in draw_inputs(lanes=lanes, seg_len=seg_len, key_len=key_len, reach=reach)
        ]
        inputs = [tensor.requires_grad_() for tensor in inputs]
        weight = draw(lanes, H, seg_len, D, seed=9)
        expected, given = (attend(*inputs, reach=reach, workspace=place) for place in (None, workspace))
        assert torch.equal(given, expected)
        grads = [torch.autograd.grad((out * weight).sum(), inputs) for out in (expected, given)]
        assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("passes", [AS_MEASURED, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
@pytest.mark.parametrize("reach", [4, 9, M + L])
def test_a_workspace_forgets_scores_that_were_not_finite(monkeypatch, passes, reach):
    cut(monkeypatch, passes)
    workspace, inputs = Workspace(), draw_inputs(reach=reach)
    expected = attend(*inputs, reach=reach).detach()
    for poison in (math.nan, math.inf):
        poisoned = [tensor.detach().clone() for tensor in inputs]
        poisoned[0][0] = poison  # the first lane
        out = attend(*poisoned, reach=reach, workspace=workspace)
        if passes != AS_MEASURED:  # a pass of its own for each lane
            torch.testing.assert_close(out[1:], expected[1:], rtol=0, atol=1e-12)
        torch.testing.assert_close(attend(*inputs, reach=reach, workspace=workspace), expected, rtol=0, atol=1e-12)
    plain = [*inputs[:3], None, None, None]
    given, wanted = (attend(*plain, reach=reach, workspace=place) for place in (workspace, None))
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("passes", [AS_MEASURED, UNLIKE_BLOCKS])
def test_a_workspace_forgets_gradients_that_were_not_finite(monkeypatch, passes):
    cut(monkeypatch, passes)
    workspace, inputs = Workspace(), draw_inputs(reach=9)
    for weight in (math.nan, math.inf, 1.0):
        out = attend(*inputs, reach=9, workspace=workspace)
        grads = torch.autograd.grad((out * weight).sum(), inputs)
    expected = torch.autograd.grad(attend(*inputs, reach=9).sum(), inputs)
    torch.testing.assert_close(grads, expected, rtol=0, atol=0)


def test_a_workspace_lends_a_space_to_one_at_a_time_and_serves_training_after_evaluation():
    workspace = Workspace()

    def acquire(purpose, reach=9):
        return workspace.acquire(purpose, draw(1), rows=H, seg_len=L, key_len=M + L, reach=reach)

    with torch.inference_mode():
        first, second = (acquire("gradients") for _ in range(2))
    assert first is not second
    workspace.release(first)
    assert acquire("scores") is not first
    again = acquire("gradients")
    assert again is first
    again.by_key.copy_(draw(H, L, M + L))  # in inference mode made, outside it changed
    workspace.release(again)
    assert acquire("gradients", reach=8) is not first


@pytest.mark.parametrize("kind", ["rows", "space"])
@pytest.mark.parametrize("reach", [1, 4, M + L])
@pytest.mark.parametrize("seg_len", [1, L])
def test_scores_by_distance_are_seen_by_key_whatever_their_memory(kind, reach, seg_len):
    key_len = M + L
    sizes = {"rows": B * H, "seg_len": seg_len, "key_len": key_len, "reach": reach}
    space = (
        DenseScoreBuffer(draw(1), **sizes, position_keys=reach)
        if kind == "rows"
        else PaddedScoreBuffer(draw(1), **sizes, fill=-math.inf)
    )
    for seed in (3, 4):  # the second time it was used before
        score = draw(B * H, seg_len, reach, seed=seed)
        space.by_distance.copy_(score)
        np.testing.assert_array_equal(
            space.masked_by_key(torch.empty(B * H, seg_len, key_len, dtype=torch.float64)),
            shifted(score, seg_len, key_len),
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("passes", [AS_MEASURED, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
@pytest.mark.parametrize(("reach", "max_distance"), [(M + L, 0), (M + L, 3), (M + L, M), (9, 3), (9, 4), (9, 20)])
def test_equal_position_keys_need_not_be_repeated(monkeypatch, dtype, passes, reach, max_distance):
    cut(monkeypatch, passes)
    *inputs, position_key = (tensor.detach().to(dtype) for tensor in draw_inputs(reach=reach))
    position_key[:, : max(0, reach - max_distance)] = position_key[:, max(0, reach - 1 - max_distance), None]
    terms = ScoreTerms(reach, position_key)
    few = terms.without_repetition(max_distance, L)
    assert few.position_key.shape[1] == min(reach, max_distance + L)
    assert torch.equal(few.every_position_key(), position_key)
    for count in (reach, reach - 1, 4, 1):
        query, key, value, *biases = inputs
        keys = [key[:, :, -max(count, L) :], value[:, :, -max(count, L) :]]
        expected, given = (
            attend(query, *keys, *biases, one.nearest(count).position_key, reach=count) for one in (terms, few)
        )
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 0.02)


def test_layers_share_a_workspace_and_a_copy_of_a_model_has_its_own():
    import copy

    from tests.core.builders import small_model

    model = small_model()
    shared = {id(layer.attention.attend.workspace) for layer in model.layers}
    copied = {id(layer.attention.attend.workspace) for layer in copy.deepcopy(model).layers}
    assert len(shared) == len(copied) == 1
    assert shared != copied


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("passes", [AS_MEASURED, ONE_LANE, UNLIKE_BLOCKS, ONE_QUERY])
def test_bf16_reads_keys_with_gaps_between_heads(monkeypatch, dropout, passes):
    cut(monkeypatch, passes)
    dense = [tensor.detach().bfloat16() for tensor in draw_inputs(reach=9)]
    gaps = [torch.cat([tensor, tensor], dim=-2)[..., : tensor.shape[-2], :] for tensor in dense]
    outs = []
    for one in (dense, gaps):
        torch.manual_seed(7)
        inputs = [tensor.requires_grad_() for tensor in one]
        out = attend(*inputs, reach=9, dropout=dropout)
        outs.append((out, *torch.autograd.grad(out.float().sum(), inputs)))
    torch.testing.assert_close(*outs, rtol=0, atol=0)


KINDS = ("reference", "sdpa")


def by_kind(kind, *inputs, **how):
    """The output, and the gradient of a weighted sum of it for each input."""
    out = attend(*inputs, backend=kind, **how)
    wanted = [tensor for tensor in inputs if tensor is not None]
    return [out, *torch.autograd.grad((out * draw(*out.shape, seed=9)).sum(), wanted)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seg_len", "key_len"), SHAPES)
@pytest.mark.parametrize("unseen", [0, 1])
def test_every_kind_of_attention_is_the_same_function(kind, seg_len, key_len, unseen):
    reach = max(1, key_len - unseen)
    inputs = draw_inputs(seg_len=seg_len, key_len=key_len, reach=reach)
    expected = by_kind("auto", *inputs, reach=reach)
    for found, wanted in zip(by_kind(kind, *inputs, reach=reach), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_attention_does_without_positions(kind):
    inputs = [*draw_inputs()[:3], None, None, None]
    expected = by_kind("auto", *inputs, reach=M + L)
    for found, wanted in zip(by_kind(kind, *inputs, reach=M + L), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, "flex"])
def test_every_kind_of_attention_scores_far_distances_alike(kind):
    inputs = [tensor.detach().float() for tensor in draw_inputs(reach=L + 2)]
    inputs[-1][:, :L] = inputs[-1][:, :1]
    expected = attend(*inputs, reach=M + L - 1)
    torch.testing.assert_close(attend(*inputs, reach=M + L - 1, backend=kind), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_attention_drops_probabilities(kind):
    query, key, *_ = draw_inputs(lanes=40)
    value = torch.eye(M + L, dtype=query.dtype).expand(40, H, -1, -1)  # the output is the probabilities
    inputs = [query, key, value, None, None, None]
    whole = attend(*inputs, reach=M + L, backend=kind)
    dropped = attend(*inputs, reach=M + L, backend=kind, dropout=0.25)
    kept = dropped != 0
    assert kept[whole > 0].float().mean() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)
