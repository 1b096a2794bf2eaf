"""Dropout acts where the released code has it: a share of nearly 1 drops everything, so each place shows by pencil."""

import pytest
import torch

from tests.core.builders import draw_tokens, small_model

B, L, M = 2, 5, 7
ALL = 1 - 2**-20  # rounds to every entry


def training_model(norm):
    return small_model(norm=norm, dropout=0.0, attention_dropout=0.0).train()


def first_layer_sees(model, tokens):
    """What the first layer gets (hidden states, position keys), and the model's output."""
    seen = []
    handle = model.layers[0].register_forward_pre_hook(lambda _, given: seen.append((given[0], given[2].position_key)))
    out, _ = model(tokens, model.first_memory(B, M), mem_len=M)
    handle.remove()
    return *seen[0], out


def test_embedding_distance_encodings_and_output_are_dropped():
    model, tokens = training_model("post"), draw_tokens(B, L)
    assert all(tensor.count_nonzero() for tensor in first_layer_sees(model, tokens))
    model.dropout.share = model.encoding.dropout.share = ALL
    hidden, encoding, out = first_layer_sees(model, tokens)
    assert (hidden.shape[:2], encoding.shape[1]) == ((B, L), L)
    assert not hidden.count_nonzero()
    assert not encoding.count_nonzero()  # one mask over distances, shared by lanes and layers
    assert not out.count_nonzero()


def test_what_both_sublayers_give_is_dropped_before_the_residual_sum():
    hidden = torch.randn(B, L, small_model().settings.d_model, dtype=torch.float64)
    for norm in ("pre", "post"):
        model = training_model(norm)
        layer = model.layers[0]
        layer.dropout.share = ALL
        expected = hidden if norm == "pre" else layer.ff_norm(layer.attention_norm(hidden))
        given = layer(hidden, hidden[:, :0], model.score_terms(L, max_distance=None)[0])
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)


def test_feed_forward_activations_are_dropped():
    layer = training_model("post").layers[0]
    hidden = torch.randn(B, L, small_model().settings.d_model, dtype=torch.float64)
    layer.feed_forward.dropout.share = ALL
    given = layer.feed_forward(hidden)
    torch.testing.assert_close(given, layer.feed_forward.ff_2.bias.expand_as(given), rtol=0, atol=1e-12)


def test_attention_probabilities_are_dropped():
    model = training_model("post")
    attention = model.layers[0].attention
    segment = torch.randn(B, L, model.settings.d_model, dtype=torch.float64)
    given = [segment, attention.project_keys(segment), model.score_terms(L, max_distance=None)[0]]
    assert attention(*given).count_nonzero()
    attention.attention_dropout = ALL
    assert not attention(*given).count_nonzero()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_shares_of_a_recipe_reach_every_place(norm):
    model = small_model(norm=norm, dropout=0.3, attention_dropout=0.2)
    layers = list(model.layers)
    shares = [model.dropout.share, model.encoding.dropout.share, *(layer.dropout.share for layer in layers)]
    shares += [layer.feed_forward.dropout.share for layer in layers]
    assert set(shares) == {0.3}
    assert {layer.attention.attention_dropout for layer in layers} == {0.2}
