"""Attention maps, compared with the oracle's weights and with heads that are constructed to look at given distances."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from tests import reference
from tests.core import oracle
from tests.core.builders import POSITIONS, draw_tokens, small_model
from txlcli.config.settings import EvalSettings
from txlcli.config.traits import ENCODING_TRAITS
from txlcli.core.measures import attention_maps
from txlcli.core.measures.attention_maps import TOTAL, AttentionMaps, first_query, strongest, term_scores
from txlcli.core.model.attention import distance_encoding
from txlcli.core.reading.scoring import Stream

L, M, H, D, WIDTH, N = 5, 7, 3, 11, 14, 2
FIRST = 10  # two segments fill the memory
COUNTED = 13  # two whole segments, and one of 3 tokens
R = 4
TERMS = ("a", "b", "d", "abcd")
assert_close = partial(np.testing.assert_allclose, atol=1e-10)


def eval_settings(*, mem_len=M, seg_len=L, same_length="off", max_distance=None):
    return EvalSettings(mem_len=mem_len, seg_len=seg_len, same_length=same_length, max_distance=max_distance)


def observe(model, tokens, settings, *, at, rows, **options):
    return attention_maps.observe(Stream(model, tokens, tokens, settings, **options), at=at, rows=rows)


def stream(count=FIRST + COUNTED):
    return draw_tokens(1, count)[0].numpy()


def shares(scores, names):
    """Return the softmax of the sum of some terms over the allowed pairs, (H, L, K), pair by pair."""
    total = sum(getattr(scores, name) for name in names) / math.sqrt(D)
    attended = np.zeros(total.shape)
    for h, i, _ in np.ndindex(total.shape):
        seen = [j for j in range(total.shape[2]) if (i, j) in scores.allowed]
        attended[h, i, seen] = np.exp(reference.log_softmax(total[h, i, seen]))
    return attended


def by_distance(numbers, allowed, *, past, reach, empty=np.nan):
    """Arrange numbers of pairs (H, L, K) by distance (H, L, n), the nearest first; `empty` where no key is seen."""
    arranged = np.full((*numbers.shape[:2], reach), empty)
    for i, j in allowed:
        arranged[:, i, past + i - j] = numbers[:, i, j]
    return arranged


def by_position(rows):
    """Arrange rows by distance (N, H, R, n) by position: what is at distance 1 for a query was at 0 for the last."""
    arranged, reach = np.full(rows.shape, np.nan), rows.shape[3]
    for row, column in np.ndindex(rows.shape[2:]):
        if (distance := reach - 1 + row - column) < reach:
            arranged[:, :, row, column] = rows[:, :, row, distance]
    return arranged


def oracle_weights(model, tokens, settings, reach, key_limit):
    """Return the weights of all queries by distance (N, H, T, n), by term and in total, and the share of memory."""
    weights, limits = oracle.weights_of(oracle.numbers_of(model), model.settings), {"key_limit": key_limit}
    memory = reference.first_memory(weights)
    results = {name: [[] for _ in range(N)] for name in (*TERMS, "memory")}
    for begin in range(0, len(tokens), L):
        hidden = np.stack([reference.embed(token, weights) for token in tokens[begin : begin + L].tolist()])
        for number, past in enumerate(memory):
            layer, limits["max_distance"] = reference.layer_weights(weights, number), settings.max_distance
            scores = reference.attention_scores(hidden, past, layer, **limits)
            for name in TERMS:
                by_key = shares(scores, name)
                results[name][number].append(by_distance(by_key, scores.allowed, past=len(past), reach=reach))
            whole = reference.attention_weights(scores, head_width=D)
            assert_close(whole, shares(scores, "abcd"), atol=1e-12)
            results["memory"][number].append(whole[:, :, : len(past)].sum(-1))
            layer_input, hidden = hidden, reference.attention_layer(hidden, past, layer, **limits)
            memory[number] = reference.update_memory(layer_input, past, mem_len=settings.mem_len)
    return {name: np.stack([np.concatenate(parts, axis=1) for parts in layers]) for name, layers in results.items()}


@pytest.mark.parametrize(
    ("same_length", "key_limit", "max_distance"),
    [("off", None, None), ("off", None, 1), ("m", 7, 3), ("m_plus_one", 8, None)],
)
def test_attention_maps_equal_the_oracle_averaged_over_the_queries(same_length, key_limit, max_distance):
    model, tokens, reach = small_model(), stream(), key_limit or M + L
    settings = eval_settings(same_length=same_length, max_distance=max_distance)
    given = observe(model, tokens, settings, at=FIRST + 3, rows=R)
    weights = oracle_weights(model, tokens, settings, reach, key_limit)
    assert_close(given.rows, by_position(weights["abcd"][:, :, FIRST + 3 : FIRST + 3 + R]), atol=1e-6)
    counted = {name: np.nan_to_num(each[:, :, FIRST:]) for name, each in weights.items()}
    means = {name: each.mean(axis=2) for name, each in counted.items()}
    assert given.by_distance.shape == (N, H, reach)
    assert given.by_term.keys() == {"a", "b", "d"}
    for name, averaged in {"abcd": given.by_distance, **given.by_term, "memory": given.memory_share}.items():
        assert_close(averaged, means[name])
    assert_close(
        given.entropy_nats, -(counted["abcd"] * np.log(np.maximum(counted["abcd"], 1e-300))).sum(-1).mean(axis=2)
    )
    assert (given.first, given.queries, given.at) == (FIRST, COUNTED, FIRST + 3)
    assert given.mean_distance.shape == (N, H)
    assert_close(given.mean_distance[1, 2], sum(r * given.by_distance[1, 2, r] for r in range(reach)))


@pytest.mark.parametrize("term", "abcd")
@pytest.mark.parametrize("max_distance", [None, 3])
@pytest.mark.parametrize("key_limit", [None, 6])
def test_each_term_equals_the_oracle_and_they_sum_to_the_score(term, max_distance, key_limit):
    model = small_model(n_layers=1)
    weights = oracle.weights_of(oracle.numbers_of(model), model.settings)
    context = torch.randn(1, M + L, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    attention, reach = model.layers[0].attention, key_limit or M + L
    (terms,) = model.score_terms(reach, max_distance=max_distance)
    keys, _ = attention.project_keys_values(context)
    given = term_scores(attention.project_queries(context[:, M:])[0], keys[0], terms)
    past, hidden = context[0].numpy()[:M], context[0].numpy()[M:]
    limits, layer = {"max_distance": max_distance, "key_limit": key_limit}, reference.layer_weights(weights, 0)
    scores = reference.attention_scores(hidden, past, layer, **limits)
    for name, wanted in ((term, getattr(scores, term)), (TOTAL, scores.a + scores.b + scores.c + scores.d)):
        expected = by_distance(wanted / math.sqrt(D), scores.allowed, past=M, reach=reach, empty=-np.inf)
        assert_close(given[name], expected)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("reach", [6, M + L])
def test_the_weights_times_the_values_equal_the_output_of_attention(position, reach):
    model = small_model(n_layers=1, **POSITIONS[position])
    context = torch.randn(1, M + L, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    attention = model.layers[0].attention
    (terms,) = model.score_terms(reach, max_distance=None)
    keys, values = attention.project_keys_values(context)
    scores = term_scores(attention.project_queries(context[:, M:])[0], keys[0], terms)
    weights = scores[TOTAL].softmax(-1).flip(-1)  # (H, L, n)
    windows = torch.nn.functional.pad(values[0], (0, 0, reach, 0)).unfold(1, reach, 1)[:, M + 1 :]  # (H, L, D, n)
    mixed = (weights[:, :, None] * windows).sum(-1)  # (H, L, D)
    expected = attention(attention.project_queries(context[:, M:]), keys, values, terms)[0]
    torch.testing.assert_close(attention.w_o(mixed.transpose(0, 1).flatten(1)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("position", POSITIONS)
def test_the_terms_of_the_encoding_are_averaged(position):
    model = small_model(**POSITIONS[position])
    maps = observe(model, stream(), eval_settings(same_length="m"), at=FIRST, rows=1)
    relative = {key: ["a", "b", "d"] for key in ("relative", "relative_tied")}
    wanted = {**relative, "shaw": ["a", "b"], "alibi": ["a", "d"], "t5": ["a", "d"]}.get(position, [])
    assert list(maps.by_term) == list(ENCODING_TRAITS[position].score_terms) == wanted
    for averaged in (maps.by_distance, *maps.by_term.values()):
        assert_close(averaged.sum(-1), 1, atol=1e-12)


def model_looking_at(distances):
    """Return a model whose head h of layer n looks only at distance distances[n][h].

    Without queries the score is (d), here <R_r, R_k> times a large number, which is largest at r = k.
    """
    model = small_model(n_layers=len(distances))
    with torch.no_grad():
        model.encoding.content_bias.zero_()
        model.encoding.position_bias.zero_()[..., 0] = 1.0
        for layer, projection, wanted in zip(model.layers, model.encoding.w_k_position, distances, strict=True):
            layer.attention.w_q.weight.zero_()
            projection.weight.zero_()
            for head, distance in enumerate(wanted):
                projection.weight[head * D] = 1e3 * distance_encoding(torch.tensor([distance]), WIDTH)[0]
    return model


def test_a_head_that_looks_at_one_distance_is_shown_so():
    wanted = [(0, 3, 6), (2, 5, 1)]
    maps = observe(model_looking_at(wanted), stream(FIRST + 3 * L), eval_settings(same_length="m"), at=FIRST, rows=R)
    assert_close(maps.by_distance, np.eye(M)[np.array(wanted)])
    assert_close(maps.by_term["d"], np.eye(M)[np.array(wanted)])
    assert_close(maps.by_term["a"], np.full((N, H, M), 1 / M))
    assert_close(maps.by_term["b"], np.full((N, H, M), 1 / M))
    assert_close(maps.mean_distance, wanted)
    assert_close(maps.width, 1, atol=1e-08)
    assert_close(maps.entropy_nats, 0, atol=1e-08)
    # Distance k leaves the segment for its first k queries: k of L, all of them where k >= L.
    assert_close(maps.memory_share, [[0, 3 / L, 1], [2 / L, 1, 1 / L]])


def maps_of(by_distance):
    """Return maps without the other fields."""
    by_distance = np.array(by_distance)
    none = np.zeros(by_distance.shape[:2])
    return AttentionMaps(by_distance, {}, none, none, 0, 1, 0, none)


def test_widest_heads_are_sorted_by_width():
    # Widths: exp of the entropy. 4, 1, 2 and 2: the distance makes no difference, and equal ones keep their order.
    maps = maps_of([[[0.25] * 4, [0, 0, 0, 1.0]], [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]])
    assert_close(maps.width, [[4, 1], [2, 2]])
    assert_close(maps.mean_distance, [[1.5, 3], [0.5, 2.5]])
    assert maps.widest(4) == [(1, 1), (2, 1), (2, 2), (1, 2)]
    assert maps.widest(1) == [(1, 1)]


def test_the_top_fifth_is_counted_among_the_keys_of_each_query():
    nan = np.nan
    attention = np.array(
        [
            [0.1, 0.5, 0.1, 0.1, 0.1, 0.1],  # six positions: two, and of the equal ones the nearest
            [nan, 0.3, 0.3, 0.2, 0.1, 0.1],  # five positions: one
            [nan, nan, nan, nan, nan, 0.9],  # one position: that one
            [nan, nan, nan, nan, nan, nan],
        ]
    )
    marked = [np.flatnonzero(row).tolist() for row in strongest(attention)]
    assert marked == [[1, 5], [2], [5], []]
    assert strongest(np.arange(35.0)[None]).nonzero()[1].tolist() == list(range(28, 35))


def test_rows_end_with_the_text():
    done = []
    maps = observe(small_model(), stream(), eval_settings(), at=FIRST + COUNTED - 2, rows=R, on_tokens=done.append)
    assert done == [5, 10, 15, 20, 23]
    assert maps.rows.shape == (N, H, 2, M + L)
    assert_close(np.nansum(maps.rows[:, :, 0], axis=-1), 1, atol=1e-06)


def test_without_memory_no_attention_leaves_the_segment():
    maps = observe(small_model(), stream(), eval_settings(mem_len=0), at=0, rows=R)
    assert (maps.first, maps.queries, maps.distances) == (0, FIRST + COUNTED, L)
    np.testing.assert_array_equal(maps.memory_share, 0)
    assert_close(maps.by_distance.sum(-1), 1, atol=1e-12)
    assert np.isnan(maps.rows[0, 0, 0]).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(("mem_len", "first"), [(0, 0), (1, 5), (5, 5), (6, 10), (10, 10)])
def test_whole_segments_fill_the_memory_before_the_first_query_counts(mem_len, first):
    assert first_query(eval_settings(mem_len=mem_len)) == first


def test_reduced_precision_changes_the_maps_slightly():
    model, tokens = small_model(dtype=torch.float32), stream()
    exact = observe(model, tokens, eval_settings(), at=FIRST, rows=R)
    rounded = observe(model.on(precision="bf16"), tokens, eval_settings(), at=FIRST, rows=R)
    assert_close(rounded.by_distance.sum(-1), 1, atol=1e-06)
    difference = np.abs(rounded.by_distance - exact.by_distance).max()
    assert 1e-6 < difference < 0.05
