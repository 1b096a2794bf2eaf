"""Dropout acts where the released code has it: a rate of nearly 1 drops everything, which shows each place."""

import dataclasses

import pytest
import torch

from tests.core.builders import V, draw_tokens, model_settings, small_model, small_rnn
from txlcli.core.architectures.registry import new_model
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.layer import HiddenMemory
from txlcli.core.model.losses import Objective

B, L, M = 2, 5, 7
ALL = 1 - 2**-20  # rounds to 1, which drops every entry


def training_model(norm):
    return small_model(norm=norm, dropout=0.0, attention_dropout=0.0).train()


def first_inputs_and_output(model, tokens):
    """Return the inputs of the first layer (hidden states, position keys) and the output of the model."""
    seen = []
    handle = model.layers[0].register_forward_pre_hook(lambda _, given: seen.append((given[0], given[2].position_key)))
    out, _ = model(tokens, model.first_memory(B, M), mem_len=M)
    handle.remove()
    return *seen[0], out


def test_embedding_distance_encodings_and_output_are_dropped():
    model, tokens = training_model("post"), draw_tokens(B, L)
    assert all(tensor.count_nonzero() for tensor in first_inputs_and_output(model, tokens))
    for dropout in (model.embedding_dropout, model.encoding.dropout, model.output_dropout):
        dropout.rate = ALL
    hidden, encoding, out = first_inputs_and_output(model, tokens)
    assert (hidden.shape[:2], encoding.shape[1]) == ((B, L), L)
    assert not hidden.count_nonzero()
    assert not encoding.count_nonzero()  # one mask over distances, shared by lanes and layers
    assert not out.count_nonzero()


def test_the_output_of_both_sublayers_is_dropped_before_the_residual_sum():
    hidden = torch.randn(B, L, small_model().settings.d_model, dtype=torch.float64)
    for norm in ("pre", "post"):
        model = training_model(norm)
        layer = model.layers[0]
        layer.dropout.rate = layer.feed_forward_dropout.rate = ALL
        expected = hidden if norm == "pre" else layer.ff_norm(layer.attention_norm(hidden))
        given = layer(hidden, HiddenMemory(hidden=hidden[:, :0]), model.score_terms(L, max_distance=None)[0])
        torch.testing.assert_close(given.hidden, expected, rtol=0, atol=1e-12)


def test_feed_forward_activations_are_dropped():
    layer = training_model("post").layers[0]
    hidden = torch.randn(B, L, small_model().settings.d_model, dtype=torch.float64)
    layer.feed_forward.dropout.rate = ALL
    given = layer.feed_forward(hidden)
    torch.testing.assert_close(given, layer.feed_forward.ff_2.bias.expand_as(given), rtol=0, atol=1e-12)


def test_attention_probabilities_are_dropped():
    model = training_model("post")
    attention = model.layers[0].attention
    segment = torch.randn(B, L, model.settings.d_model, dtype=torch.float64)
    projected = attention.project(segment)
    given = [*projected, model.score_terms(L, max_distance=None)[0]]
    assert attention(*given).count_nonzero()
    attention.dropout = ALL
    assert not attention(*given).count_nonzero()


def test_places_have_their_own_rates_or_that_of_the_recipe():
    own = {"embedding_dropout": 0.4, "inner_dropout": 0.0, "output_dropout": 0.6, "word_dropout": 0.1}
    for model in (small_model(dropout=0.3, attention_dropout=0.2), small_rnn("qrnn", dropout=0.3)):
        rates = {module.rate for module in model.modules() if isinstance(module, Dropout)}
        assert rates - {0.0} == {0.3}
    model = small_rnn("lstm", dropout=0.3, **{key: rate for key, rate in own.items() if key != "inner_dropout"})
    places = (model.embedding_dropout, model.dropout, model.output_dropout, model.embedding.word_dropout)
    assert [place.rate for place in places] == [0.4, 0.3, 0.6, 0.1]
    model = small_model(dropout=0.3, attention_dropout=0.2, **own)
    layers = list(model.layers)
    assert {layer.attention.dropout for layer in layers} == {0.2}
    assert (model.embedding_dropout.rate, model.output_dropout.rate) == (0.4, 0.6)
    assert {layer.feed_forward.dropout.rate for layer in layers} == {0.0}
    assert {layer.projection_dropout.rate for layer in layers} == {0.0}
    assert {model.encoding.dropout.rate, *(layer.dropout.rate for layer in layers)} == {0.3}
    assert model.embedding.word_dropout.rate == 0.1
    model = small_model(dropout=0.3, projection_dropout=0.2, feed_forward_dropout=0.4, distance_dropout=0.6)
    assert model.encoding.dropout.rate == 0.6
    for layer in model.layers:
        rates = (layer.dropout, layer.projection_dropout, layer.feed_forward_dropout, layer.feed_forward.dropout)
        assert [place.rate for place in rates] == [0.3, 0.2, 0.4, 0.4]


@pytest.mark.parametrize(("variational", "mem_len"), [(True, M), (False, M), (True, 0)])
def test_queries_keys_and_values_are_dropped_with_one_mask_for_memory_and_segment(variational, mem_len):
    torch.manual_seed(3)
    model, tokens = small_model(projection_dropout=0.5, variational_dropout=variational).train(), draw_tokens(B, L)
    seen = []
    attend = model.layers[0].backend.attend

    def watched(*given, **options):
        seen.extend(given[:3])
        return attend(*given, **options)

    model.layers[0].backend = dataclasses.replace(model.layers[0].backend, attend=watched)
    memory = [torch.randn(B, mem_len, 14, dtype=torch.float64) for _ in range(2)]
    model(tokens, memory, mem_len=M)
    for projected, length in zip(seen, (L, mem_len + L, mem_len + L), strict=True):
        zero = projected == 0  # (B, H, x, D)
        assert zero.shape[2] == length
        assert 0.2 < zero.double().mean() < 0.8
        assert torch.equal(zero, zero[:, :, :1].expand_as(zero)) == variational
    assert len({tuple(projected[0, 0, 0].eq(0).tolist()) for projected in seen}) == 3  # each has a mask of its own


@pytest.mark.parametrize("variational", [True, False])
def test_tied_projections_of_distances_are_dropped_like_queries_and_keys(variational):
    torch.manual_seed(3)
    changed = {"position": "relative_tied", "projection_dropout": 0.5, "variational_dropout": variational}
    model = small_model(**changed, distance_dropout=0.0).train()
    layer = model.layers[0]
    (given, _) = model.score_terms(9, max_distance=None)
    terms = layer.attention.project_distances(given, layer.projection_dropout)
    zero = terms.position_key == 0  # (H, n, D)
    assert 0.2 < zero.double().mean() < 0.8
    assert torch.equal(zero, zero[:, :1].expand_as(zero)) == variational
    assert 0.2 < (terms.content_bias == 0).double().mean() < 0.8
    model.eval()
    (terms, _) = model.projected_terms(9, max_distance=None)
    assert terms.position_key.count_nonzero() == terms.position_key.numel()


@pytest.mark.parametrize("variational", [True, False])
def test_variational_dropout_applies_to_every_place(variational):
    model = small_model(dropout=0.3, variational_dropout=variational)
    places = [module for module in model.modules() if isinstance(module, Dropout)]
    assert len(places) == 3 + 2 * 4  # embedding, distances, output; four in each layer
    assert {place.variational for place in places} == {variational}


@pytest.mark.parametrize("cutoffs", [(), (5, 11)])
def test_a_word_is_dropped_at_every_occurrence_but_not_in_the_softmax(cutoffs):
    torch.manual_seed(5)
    model, tokens = small_model(cutoffs=cutoffs, word_dropout=0.5).train(), draw_tokens(B, 31)
    embedded = model.embed(tokens, torch.arange(31))
    dropped = {word for word in range(V) if (embedded[tokens == word].abs() < 1e-10).all()}
    assert 0 < len(dropped & set(tokens.flatten().tolist())) < len(set(tokens.flatten().tolist()))
    for word in set(tokens.flatten().tolist()) - dropped:
        vectors = embedded[tokens == word]
        assert torch.equal(vectors, vectors[:1].expand_as(vectors))
        whole = model.eval().embed(torch.tensor([[word]]), torch.arange(1))[0, 0]
        torch.testing.assert_close(vectors[0], 2 * whole, rtol=1e-12, atol=0)
    hidden = torch.randn(B, 31, model.settings.d_model, dtype=torch.float64)
    assert torch.equal(model.train().losses(hidden, tokens), model.eval().losses(hidden, tokens))


def test_gradients_of_a_deep_model_are_finite_where_the_first_words_are_dropped():
    settings = model_settings(n_layers=16, word_dropout=0.99)  # the norms of a zero multiply its gradient to 1e80
    model = new_model(settings, V, seed=1, device=torch.device("cpu")).train()  # its biases are 0, as in training
    tokens = draw_tokens(B, L)
    loss, *_ = model.objective(tokens, tokens.roll(-1, 1), model.first_memory(B, L), Objective(mem_len=L))
    loss.backward()
    assert model.embedding.tables[0].grad.isfinite().all()
    assert 0 < torch.nn.utils.get_total_norm([one.grad for one in model.parameters()]) < 1e20
