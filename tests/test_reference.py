"""The oracle against a pencil: every expected number was worked out by hand."""

import math

import numpy as np
import pytest

from tests import reference

IDENTITY = np.eye(2)
ZERO = np.zeros((2, 2))
SIN_1, COS_1, COS_2 = 0.8414709848078965, 0.5403023058681398, -0.4161468365471424


def plain_norm(d=2):
    return np.ones(d), np.zeros(d)


def tiny_layer(**changed):
    """d = D = 2, H = 1, every matrix the identity, u = v = 0, and a feed-forward that adds nothing."""
    layer = {
        **dict.fromkeys(("w_q", "w_k_content", "w_v", "w_k_position", "w_o"), IDENTITY),
        **{"content_bias": np.zeros((1, 2)), "position_bias": np.zeros((1, 2))},
        **{"attention_norm": plain_norm(), "ff_norm": plain_norm()},
        **{"ff_1": (np.zeros((2, 3)), np.zeros(3)), "ff_2": (np.zeros((3, 2)), np.zeros(2))},
    }
    return layer | changed


def random_weights(*, norm="post", bias_per_layer=False):
    rng = np.random.default_rng(7)
    N, V, d, H, D, F = 2, 13, 4, 3, 5, 7

    def draw(*shape):
        return rng.normal(size=shape)

    bias_shape = (N, H, D) if bias_per_layer else (H, D)
    layers = [
        {
            **{name: draw(d, H * D) for name in ("w_q", "w_k_content", "w_v", "w_k_position")},
            **{"w_o": draw(H * D, d), "attention_norm": (draw(d), draw(d)), "ff_norm": (draw(d), draw(d))},
            **{"ff_1": (draw(d, F), draw(F)), "ff_2": (draw(F, d), draw(d))},
        }
        for _ in range(N)
    ]
    weights = {"embedding": draw(V, d), "softmax_bias": draw(V), "layers": layers}
    weights |= {"content_bias": draw(*bias_shape), "position_bias": draw(*bias_shape)}
    return weights | ({"final_norm": (draw(d), draw(d))} if norm == "pre" else {})


def test_distance_encoding_is_sines_then_cosines():
    # d = 4: frequencies 1 and 1/10000^(2/4) = 0.01, so distance 100 has the angles 100 and 1.
    np.testing.assert_allclose(
        reference.distance_encoding(100, 4), [-0.5063656411097588, SIN_1, 0.8623188722876839, COS_1], rtol=1e-13
    )
    np.testing.assert_array_equal(reference.distance_encoding(0, 4), [0, 0, 1, 1])


def test_relative_shift_puts_distance_m_plus_i_minus_j_at_i_j():
    # L = 2, M = 1, K = 3; columns score distances 2, 1, 0. Row 0 needs 1, 0, -; row 1 needs 2, 1, 0.
    score = np.array([[12.0, 11.0, 10.0], [22.0, 21.0, 20.0]])
    expected = [[11.0, 10.0, math.nan], [22.0, 21.0, 20.0]]
    np.testing.assert_array_equal(reference.relative_shift_by_definition(score), expected)


def test_allowed_pairs_are_the_past_and_the_token_itself():
    assert reference.allowed_pairs(seg_len=2, mem_len=1) == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}
    assert reference.allowed_pairs(seg_len=2, mem_len=1, key_limit=2) == {(0, 0), (0, 1), (1, 1), (1, 2)}
    assert reference.allowed_pairs(seg_len=2, mem_len=1, key_limit=1) == {(0, 1), (1, 2)}


def test_four_terms_by_hand():
    # Identity weights: queries (1,0) and (0,1); keys (2,1), (1,0), (0,1); R_t = (sin t, cos t).
    layer = tiny_layer(content_bias=np.array([[0.5, 0.0]]), position_bias=np.array([[0.0, 0.25]]))
    scores = reference.attention_scores(IDENTITY, np.array([[2.0, 1.0]]), layer)
    np.testing.assert_allclose(scores.a, [[[2, 1, 0], [1, 0, 1]]])
    np.testing.assert_allclose(scores.b, [[[SIN_1, 0, math.nan], [COS_2, COS_1, 1]]])  # distances 1 0 - / 2 1 0
    np.testing.assert_allclose(scores.c, [[[1, 0.5, 0], [1, 0.5, 0]]])  # half of each key's first entry
    np.testing.assert_allclose(scores.d, [[[COS_1 / 4, 0.25, math.nan], [COS_2 / 4, COS_1 / 4, 0.25]]])
    assert scores.allowed == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}


def test_max_distance_shares_the_encoding_of_the_farthest():
    layer = tiny_layer()
    scores = reference.attention_scores(IDENTITY, np.array([[2.0, 1.0]]), layer, max_distance=1)
    np.testing.assert_allclose(scores.b, [[[SIN_1, 0, math.nan], [COS_1, COS_1, 1]]])  # distances 1 0 - / 1 1 0
    np.testing.assert_allclose(scores.a, reference.attention_scores(IDENTITY, np.array([[2.0, 1.0]]), layer).a)


def test_a_matrix_maps_row_vectors():
    # q = (1,0) W = (3,4), the first row of W; as a column it would be (3,5).
    layer = tiny_layer(w_q=np.array([[3.0, 4.0], [5.0, 6.0]]))
    scores = reference.attention_scores(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), layer)
    np.testing.assert_allclose(scores.a, [[[4, 3]]])


def test_head_h_owns_its_block_of_columns():
    # H = 2, D = 1: head 0 sees column 0 of every matrix, head 1 column 1.
    layer = tiny_layer(content_bias=np.array([[10.0], [100.0]]), position_bias=np.array([[1.0], [2.0]]))
    scores = reference.attention_scores(np.array([[2.0, 3.0]]), np.zeros((0, 2)), layer)
    np.testing.assert_allclose(scores.a, [[[4]], [[9]]])
    np.testing.assert_allclose(scores.b, [[[0]], [[3]]])  # R_0 = (0, 1)
    np.testing.assert_allclose(scores.c, [[[20]], [[300]]])
    np.testing.assert_allclose(scores.d, [[[0]], [[2]]])


def two_token_layer(**changed):
    """Scores of (0,1) with itself sqrt(2) ln 3, with (1,0) zero: its softmax after 1/sqrt(2) is 1/4, 3/4."""
    return tiny_layer(w_q=IDENTITY * math.sqrt(2) * math.log(3), w_k_position=ZERO, **changed)


def test_two_tokens_by_hand():
    layer, nothing = two_token_layer(), np.zeros((0, 2))
    scores = reference.attention_scores(IDENTITY, nothing, layer)
    np.testing.assert_allclose(reference.attention_weights(scores, head_width=2), [[[1, 0], [0.25, 0.75]]])
    np.testing.assert_allclose(reference.attention(IDENTITY, nothing, layer), [[1, 0], [0.25, 0.75]])
    # Post-norm: residual (2,0), (.25,1.75); deviations 1 and .75; the first norm leaves nearly (1,-1), (-1,1) and the
    # second, after a feed-forward of zero, changes only the sixth digit.
    hidden = reference.attention_layer(IDENTITY, nothing, layer)
    np.testing.assert_allclose(hidden, [[1, -1], [-1, 1]], atol=2e-5)


def test_key_limit_one_attends_to_itself_only():
    layer, nothing = two_token_layer(), np.zeros((0, 2))
    np.testing.assert_allclose(reference.attention(IDENTITY, nothing, layer, key_limit=1), IDENTITY)


def test_values_pass_through_the_output_projection():
    swap_and_double = np.array([[0.0, 2.0], [2.0, 0.0]])
    layer = two_token_layer(w_v=np.array([[1.0, 0.0], [0.0, 3.0]]), w_o=swap_and_double)
    # values (1,0), (0,3); mixed (1,0), (.25,2.25); swapped and doubled.
    np.testing.assert_allclose(reference.attention(IDENTITY, np.zeros((0, 2)), layer), [[0, 2], [4.5, 0.5]])


def test_layer_norm_uses_the_biased_variance_and_its_epsilon():
    # (1, 3, 5, 7): mean 4, variance (9+1+1+9)/4 = 5.   (0, .004): deviation .002, variance 4e-6 beside 1e-5.
    root = math.sqrt(5.00001)
    gain, bias = np.array([1.0, 1.0, 2.0, 1.0]), np.array([0.0, 0.0, 0.0, 10.0])
    normed = reference.layer_norm(np.array([[1.0, 3.0, 5.0, 7.0]]), (gain, bias))
    np.testing.assert_allclose(normed, [[-3 / root, -1 / root, 2 / root, 3 / root + 10]])
    small = reference.layer_norm(np.array([[0.0, 0.004]]), plain_norm())
    np.testing.assert_allclose(small, [[-0.534522483824849, 0.534522483824849]])  # .002 / sqrt(1.4e-5) = 2 / sqrt(14)


FEED_FORWARD = {
    "ff_1": (np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]), np.array([0.0, 0.0, -3.0])),
    "ff_2": (np.array([[2.0, 5.0], [7.0, 7.0], [9.0, 9.0]]), np.array([0.5, -1.0])),
}


def test_feed_forward_by_hand():
    # (1,-1) -> (1,-1,-2) -> ReLU (1,0,0) -> (2,5) + (.5,-1)
    np.testing.assert_allclose(reference.feed_forward(np.array([[1.0, -1.0]]), FEED_FORWARD), [[2.5, 4.0]])


def test_pre_norm_normalises_the_raw_memory_and_keeps_the_residual_raw():
    # No scores: one token (2,0) averages itself and the memory (6,2), both (1,-1) once normalised: (3,-1).
    # That normalised is (1,-1), to which the feed-forward answers (2.5,4): (5.5,3). Raw memory would have differed.
    layer = tiny_layer(w_q=ZERO, **FEED_FORWARD)
    hidden = reference.attention_layer(np.array([[2.0, 0.0]]), np.array([[6.0, 2.0]]), layer, norm="pre")
    np.testing.assert_allclose(hidden, [[5.5, 3.0]], atol=1e-4)


def test_post_norm_projects_the_raw_memory():
    # The average of (2,0) and (6,2) is (4,1); residual (6,1) -> (1,-1) -> + (2.5,4) = (3.5,3) -> (1,-1)
    layer = tiny_layer(w_q=ZERO, **FEED_FORWARD)
    two, memory = np.array([[2.0, 0.0]]), np.array([[6.0, 2.0]])
    np.testing.assert_allclose(reference.attention(two, memory, layer), [[4, 1]])
    np.testing.assert_allclose(reference.attention_layer(two, memory, layer), [[1, -1]], atol=2e-4)


def test_each_half_of_a_layer_has_its_own_norm():
    # A norm of gain and bias 0 says (0,0), to which the feed-forward answers (.5,-1).
    silent, loud = (np.zeros(2), np.zeros(2)), (np.array([10.0, 10.0]), np.array([0.0, 5.0]))
    two, memory = np.array([[2.0, 0.0]]), np.array([[6.0, 2.0]])
    post = tiny_layer(w_q=ZERO, **FEED_FORWARD) | {"attention_norm": silent, "ff_norm": loud}
    np.testing.assert_allclose(reference.attention_layer(two, memory, post), [[10, -5]], atol=2e-4)
    pre = tiny_layer(w_q=ZERO, **FEED_FORWARD) | {"ff_norm": silent}  # (3,-1) as above, + (.5,-1)
    np.testing.assert_allclose(reference.attention_layer(two, memory, pre, norm="pre"), [[3.5, -2]], atol=1e-4)


def tiny_model(**changed):
    """V = 3, d = 2, no layers; token 0 has logits sqrt(2) (1, 0, 1) + bias = (0, ln 2, ln 3)."""
    root = math.sqrt(2)
    embedding = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    bias = np.array([-root, math.log(2), math.log(3) - root])
    shared = {"content_bias": np.zeros((1, 2)), "position_bias": np.zeros((1, 2))}
    return {"embedding": embedding, "softmax_bias": bias, "layers": [], **shared} | changed


def test_softmax_is_tied_to_the_embedding_scaled_by_root_d():
    log_probs, memory = reference.forward([0], [], tiny_model(), mem_len=0)
    np.testing.assert_allclose(np.exp(log_probs), [[1 / 6, 2 / 6, 3 / 6]])
    assert memory == []


def test_pre_norm_ends_with_the_final_norm():
    # (sqrt 2, 0) becomes (1,-1) times gain 0 plus (0,1): logits (0,1,1) + bias of -1 on the last two = 0.
    final_norm = np.zeros(2), np.array([0.0, 1.0])
    weights = tiny_model(softmax_bias=np.array([0.0, -1.0, -1.0]), final_norm=final_norm)
    np.testing.assert_allclose(np.exp(reference.forward([0], [], weights, mem_len=0, norm="pre")[0]), [[1 / 3] * 3])


def test_the_released_pre_norm_has_no_final_norm():
    log_probs, _ = reference.forward([0], [], tiny_model(), mem_len=0, norm="pre_released")
    np.testing.assert_allclose(np.exp(log_probs), [[1 / 6, 2 / 6, 3 / 6]])


def test_the_epsilon_reaches_both_norms_of_a_layer():
    # No scores: (2,0) attends to itself. Post: (4,0) over sqrt(4 + 12) = (.5,-.5), that over sqrt(.25 + 12) = 3.5.
    two, nothing, layer = np.array([[2.0, 0.0]]), np.zeros((0, 2)), tiny_layer(w_q=ZERO)
    np.testing.assert_allclose(reference.attention_layer(two, nothing, layer, norm_eps=12), [[1 / 7, -1 / 7]])
    # Pre: (1,-1) over sqrt(1 + 3) is added: (2.5,-.5). Its norm has 1.5 over sqrt(2.25 + 3).
    hidden = reference.attention_layer(two, nothing, layer | FEED_FORWARD, norm="pre", norm_eps=3)
    normed = 1.5 / math.sqrt(5.25)
    np.testing.assert_allclose(hidden, [[2.5 + 2 * normed + 0.5, -0.5 + 5 * normed - 1]])


def test_the_epsilon_reaches_the_final_norm():
    # (sqrt 2, 0) has the variance 1/2: over sqrt(1/2 + 3/2) it is (.5,-.5), so the logits are (.5,-.5,0) + bias.
    bias = np.array([-0.5, 0.5 + math.log(2), math.log(3)])
    weights = tiny_model(softmax_bias=bias, final_norm=plain_norm())
    log_probs, _ = reference.forward([0], [], weights, mem_len=0, norm="pre", norm_eps=1.5)
    np.testing.assert_allclose(np.exp(log_probs), [[1 / 6, 2 / 6, 3 / 6]])


def test_a_memory_of_zeros_is_attended_to_from_the_first_token():
    # No scores: (sqrt 2, 0), normed to (.5,-.5), is averaged with three zeros: (.125,-.125) is added to it.
    root = math.sqrt(2)
    bias = np.array([-root - 0.125, 0.125 + math.log(2), math.log(3) - root])
    weights = tiny_model(layers=[tiny_layer(w_q=ZERO)], softmax_bias=bias)
    options = {"mem_len": 3, "norm": "pre_released", "norm_eps": 1.5}
    (log_probs,), memory = reference.forward_segments([[0]], weights, memory_start="zeros", **options)
    np.testing.assert_allclose(np.exp(log_probs), [[1 / 6, 2 / 6, 3 / 6]])
    np.testing.assert_allclose(memory[0], [[0, 0], [0, 0], [root, 0]])
    (without,), memory = reference.forward_segments([[0]], weights, memory_start="empty", **options)
    assert memory[0].shape == (1, 2)
    assert np.abs(without - log_probs).max() > 0.1


def banded_model(**changed):
    """d = 2; ids 0 | 1, 2 | 3, 4; every entry of a table or a projection shows in some number below."""
    embedding = [
        (np.array([[7.0, 1.0]]), np.array([[2.0, 0.0], [0.0, 1.0]])),
        (np.array([[3.0], [5.0]]), np.array([[1.0, -1.0]])),
        (np.array([[1.0, 2.0], [4.0, 8.0]]), None),
    ]
    softmax = [
        (np.array([[1.0, 0.0]]), None, np.array([-math.log(2)])),
        (np.array([[1.0], [2.0]]), np.array([[1.0], [0.0]]), np.array([0.0, math.log(2)])),
        (np.array([[0.0, 0.0], [0.0, 1.0]]), None, np.zeros(2)),
    ]
    clusters = np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([0.0, -math.log(2)])
    return {"embedding": embedding, "softmax": softmax, "clusters": clusters, "layers": []} | changed


def test_a_token_is_embedded_by_its_band_and_projected_to_the_width_of_the_model():
    root = math.sqrt(2)  # of the model's width 2, not of the band's
    expected = [(14, 1), (3, -3), (5, -5), (1, 2), (4, 8)]
    for token, vector in enumerate(expected):
        np.testing.assert_allclose(reference.embed(token, banded_model()), np.array(vector) * root)
    with pytest.raises(ValueError, match="no band holds token 5"):
        reference.embed(5, banded_model())


HIDDEN = np.log([2.0, 3.0])


def test_a_tail_shares_the_probability_of_its_cluster():
    # exp of the logits. Head: 2 / 2 = 1; clusters 3 and 6 / 2 = 3. Tail 0: 2 and 4 x 2 = 8; tail 1: 1 and 3.
    expected = [1 / 7, 3 / 7 * 0.2, 3 / 7 * 0.8, 3 / 7 * 0.25, 3 / 7 * 0.75]
    np.testing.assert_allclose(np.exp(reference.token_log_probs(HIDDEN, banded_model())), expected)


def test_clusters_stand_for_the_tails_in_their_order():
    clusters = np.array([[0.0, 1.0], [1.0, 1.0]]), np.zeros(2)  # 3 and 6 beside the head's 1
    expected = [0.1, 0.3 * 0.2, 0.3 * 0.8, 0.6 * 0.25, 0.6 * 0.75]
    np.testing.assert_allclose(np.exp(reference.token_log_probs(HIDDEN, banded_model(clusters=clusters))), expected)


def test_clusters_read_the_projection_of_the_head():
    # Swapped, (ln 3, ln 2): 3 / 2 for the head, clusters 2 and 6; the tails see the hidden state as it was.
    swap, no_bias = np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros(2)
    weights = banded_model(clusters=(np.array([[0.0, 1.0], [1.0, 1.0]]), no_bias))
    table, _, bias = weights["softmax"][0]
    weights["softmax"][0] = (table, swap, bias)
    expected = np.array([1.5, 2 * 0.2, 2 * 0.8, 6 * 0.25, 6 * 0.75]) / 9.5
    np.testing.assert_allclose(np.exp(reference.token_log_probs(HIDDEN, weights)), expected)


def test_memory_keeps_the_last_raw_layer_inputs():
    root = math.sqrt(2)
    weights = tiny_model(layers=[tiny_layer()] * 2)
    (_, _), memory = reference.forward_segments([[0, 1], [2, 0]], weights, mem_len=3)
    np.testing.assert_allclose(memory[0], [[0, root], [root, root], [root, 0]])  # layer 0: embeddings, before any norm
    assert memory[1].shape == (3, 2)
    np.testing.assert_allclose(np.abs(memory[1]), np.ones((3, 2)), atol=2e-3)  # layer 1: layer 0's normed output
    (_,), empty = reference.forward_segments([[0, 1]], weights, mem_len=0)
    assert [rows.shape for rows in empty] == [(0, 2), (0, 2)]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_memory_gives_the_log_probs_of_one_long_segment(norm):
    weights, tokens = random_weights(norm=norm), [3, 1, 4, 1, 5, 9, 2]
    (whole,), _ = reference.forward_segments([tokens], weights, mem_len=7, norm=norm)
    parts, _ = reference.forward_segments([tokens[:3], tokens[3:4], tokens[4:]], weights, mem_len=7, norm=norm)
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-12)
    np.testing.assert_allclose(np.exp(whole).sum(axis=1), np.ones(7))


def test_a_later_token_changes_no_earlier_prediction():
    weights = random_weights()
    (one,), _ = reference.forward_segments([[3, 1, 4, 1, 5]], weights, mem_len=0)
    (other,), _ = reference.forward_segments([[3, 1, 4, 8, 5]], weights, mem_len=0)
    np.testing.assert_array_equal(one[:3], other[:3])
    assert np.all(np.abs(one[3:] - other[3:]).max(axis=1) > 1e-3)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("limit", [{"key_limit": 1}, {"max_distance": 0}])
def test_limits_on_distance_reach_every_segment(norm, limit):
    # One layer: alone (key_limit 1) or without order (max_distance 0), token 4 minds no exchange before it.
    weights = random_weights(norm=norm)
    weights["layers"] = weights["layers"][:1]

    def last(tokens, **limits):
        return reference.forward_segments([tokens, [4]], weights, mem_len=2, norm=norm, **limits)[0][1]

    np.testing.assert_allclose(last([3, 1], **limit), last([1, 3], **limit), atol=1e-12)
    assert np.abs(last([3, 1]) - last([1, 3])).max() > 1e-3


def test_attention_agrees_with_appendix_b():
    # q Q^T with Q in falling order of distance, shifted, is term (b); v Q^T, the same for every row, is term (d).
    layer = reference.layer_weights(random_weights(bias_per_layer=True), 1)
    rng = np.random.default_rng(11)
    hidden, memory, D = rng.normal(size=(3, 4)), rng.normal(size=(2, 4)), 5
    scores = reference.attention_scores(hidden, memory, layer)
    encodings = np.stack([reference.distance_encoding(distance, 4) for distance in (4, 3, 2, 1, 0)])
    for h in range(3):
        query, position_key = (
            x @ layer[name][:, h * D : (h + 1) * D] for x, name in ((hidden, "w_q"), (encodings, "w_k_position"))
        )
        position_bias = np.stack([layer["position_bias"][h]] * 3)
        for term, left in ((scores.b, query), (scores.d, position_bias)):
            np.testing.assert_allclose(term[h], reference.relative_shift_by_definition(left @ position_key.T))


def test_biases_are_shared_or_one_per_layer():
    weights = tiny_model(layers=[tiny_layer()] * 2, content_bias=np.array([[[1.0, 2.0]], [[3.0, 4.0]]]))
    np.testing.assert_array_equal(reference.layer_weights(weights, 1)["content_bias"], [[3, 4]])
    np.testing.assert_array_equal(reference.layer_weights(weights, 1)["position_bias"], [[0, 0]])


def test_cross_entropy_is_minus_the_log_probability_of_each_target():
    log_probs = np.log([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    np.testing.assert_allclose(
        reference.cross_entropy_nats(log_probs, [1, 2]), [1.3862943611198906, 0.2231435513142097]
    )


def test_a_complex_step_passes_the_relu_where_it_is_open():
    # At (1,-1) only the first unit is open: the answer is (2 x_0 + .5, 5 x_0 - 1).
    def slope(of, along):
        return reference.complex_step_gradient(
            lambda x: reference.feed_forward(x, FEED_FORWARD)[0, of], np.array([[1.0, -1.0]]), (0, along)
        )

    assert [slope(0, 0), slope(1, 0), slope(0, 1), slope(1, 1)] == [2, 5, 0, 0]


def test_a_complex_step_gives_the_gradient_of_cross_entropy():
    # The loss of logit 1 of (0, ln 2, ln 3) has the gradient P - (0,1,0) = (1/6, 1/3 - 1, 1/2).
    logits = np.log([1.0, 2.0, 3.0])
    slopes = [
        reference.complex_step_gradient(lambda x: -reference.log_softmax(x)[1], logits, (entry,)) for entry in range(3)
    ]
    np.testing.assert_allclose(slopes, [1 / 6, -2 / 3, 1 / 2])
