"""The encodings of Table 6, against the oracle and calculations by hand; with memory, without, and read in parts."""

import math

import numpy as np
import pytest
import torch

from tests import reference
from tests.core import oracle
from tests.core.builders import POSITIONS, V, assert_close, draw_tokens, make_decoder, read_parts, small_model
from tests.extensions import registered_slopes
from txlcli.config.traits import ENCODING_TRAITS
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.kernels.modes import autocast
from txlcli.core.model import encodings
from txlcli.core.model.encodings import T5Encoding, alibi_slopes
from txlcli.core.model.losses import Objective

B, L, M = 2, 5, 7
D, H = 11, 3
EVERY = {**POSITIONS, "slopes": {"position": "slopes"}}  # and one that is registered from outside the package
BY_ORACLE = ["relative_tied", "rotary", "alibi", "t5", "none"]


@pytest.fixture(autouse=True)
def slopes():
    with registered_slopes():
        yield


def test_every_encoding_has_a_class_and_traits():
    assert ENCODING_TRAITS.keys() == encodings.ENCODINGS.keys()


def test_shaw_scores_a_distance_by_the_learned_vector_of_that_distance():
    # Score of query q and a key at distance 2: q . k + q . table[2], over sqrt(D); distance 9 takes the last vector, 5.
    model = small_model(n_layers=1, **POSITIONS["shaw"])
    (terms,) = model.score_terms(10, max_distance=None)
    table = model.encoding.distance_tables[0]  # (6, H * D)
    assert terms.position_key.shape == (H, 10, D)
    for distance, row in ((0, 0), (2, 2), (5, 5), (9, 5)):
        torch.testing.assert_close(terms.position_key[:, 9 - distance].flatten(), table[row])
    assert (terms.content_bias, terms.position_bias) == (None, None)
    (limited,) = model.score_terms(10, max_distance=1)
    torch.testing.assert_close(limited.position_key[:, 0].flatten(), table[1])


def scores_of(model, context, mem_len):
    """The scores (B, H, L, K) of the first layer before the softmax, pair by pair, from its own matrices."""
    attention, terms = model.layers[0].attention, model.score_terms(context.shape[1], max_distance=None)[0]
    query = attention.w_q(context[:, mem_len:]).unflatten(-1, (H, D))
    key = attention.w_k_content(context).unflatten(-1, (H, D))
    total = torch.full((len(context), H, query.shape[1], key.shape[1]), -math.inf, dtype=torch.float64)
    for i in range(query.shape[1]):
        for j in range(mem_len + i + 1):
            distance = mem_len + i - j
            for h in range(H):
                score = (query[:, i, h] * key[:, j, h]).sum(-1)
                if terms.position_key is not None:
                    score = score + (query[:, i, h] * terms.position_key[h, -1 - distance]).sum(-1)
                total[:, h, i, j] = score / math.sqrt(D)
    return total


@pytest.mark.parametrize("position", ["shaw", "sinusoid", "learned"])
@pytest.mark.parametrize("mem_len", [0, M])
def test_attention_weighs_by_the_scores_pair_by_pair(position, mem_len):
    model = small_model(n_layers=1, **EVERY[position])
    context = torch.randn(B, mem_len + L, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    attention = model.layers[0].attention
    keys, values = attention.project_keys_values(context)
    query, terms = attention.project_queries(context[:, mem_len:]), model.score_terms(mem_len + L, max_distance=None)
    given = attention(query, keys, values, terms[0])
    mixed = scores_of(model, context, mem_len).softmax(-1) @ values  # (B, H, L, D)
    torch.testing.assert_close(given, attention.w_o(mixed.transpose(1, 2).flatten(2)), rtol=0, atol=1e-10)


def test_sinusoids_of_positions_are_added_once_to_the_embeddings():
    model, tokens = small_model(**POSITIONS["sinusoid"]), draw_tokens(B, L)
    embedded = model.embedding(tokens) * math.sqrt(14)
    expected = embedded + torch.tensor(np.stack([reference.distance_encoding(p, 14) for p in range(L)]))
    torch.testing.assert_close(model.embed(tokens, torch.arange(L)), expected, rtol=0, atol=1e-12)
    hidden = torch.randn(B, L, 14, dtype=torch.float64)
    assert torch.equal(model.encoding.add_to_layer_input(hidden, 1, torch.arange(L)), hidden)


def test_learned_positions_are_added_to_the_input_of_every_layer():
    model = small_model(**POSITIONS["learned"])
    hidden = torch.randn(B, 3, 14, dtype=torch.float64)
    for layer in range(2):
        given = model.encoding.add_to_layer_input(hidden, layer, torch.tensor([4, 0, 2]))
        expected = hidden + model.encoding.position_tables[layer][torch.tensor([4, 0, 2])]
        torch.testing.assert_close(given, expected)


def test_rotary_scores_are_products_of_complex_numbers_turned_by_their_positions():
    # Pair c of a head is the number x_c + i x_(c + D/2), which position p turns by p * 10000 ** (-2c / D).
    model = small_model(**POSITIONS["rotary"])
    heads = torch.randn(B, H, L, D + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    positions = torch.tensor([3, 0, 7, 1, 100_000])
    turned = model.encoding.rotation(positions).apply(heads)
    pairs = np.arange((D + 1) // 2)
    factor = np.exp(1j * positions.numpy()[:, None] * 10_000.0 ** (-2 * pairs / (D + 1)))
    expected = torch.view_as_real(torch.complex(*heads.chunk(2, dim=-1)) * torch.tensor(factor))
    torch.testing.assert_close(torch.stack(turned.chunk(2, dim=-1), dim=-1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", BY_ORACLE)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("mem_len", "key_limit"), [(0, None), (M, None), (M, M)])
def test_segments_equal_the_oracle(position, norm, mem_len, key_limit):
    model, tokens = small_model(norm=norm, **EVERY[position]), draw_tokens(B, 2 * L + 4)
    oracle.assert_equals_oracle(model, tokens, [L, L, 3, 1], mem_len=mem_len, key_limit=key_limit)


@pytest.mark.parametrize(("backend", "max_distance"), [("auto", None), ("reference", 20)])
def test_a_long_text_with_the_biases_of_t5_equals_the_oracle(backend, max_distance):
    model, tokens = small_model(n_layers=1, position="t5"), draw_tokens(1, 150)  # distances of all buckets
    model = model.on(attention=backend)
    oracle.assert_equals_oracle(model, tokens, [143, 7], mem_len=143, max_distance=max_distance)


def test_slopes_of_alibi_are_the_published_ones():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(1) == [1 / 256]
    # Twelve heads: those of eight, then the 1st, 3rd, 5th and 7th of sixteen, 2^(-1/2), 2^(-3/2), ...
    assert alibi_slopes(12) == [*alibi_slopes(8), *(2**-power for power in (0.5, 1.5, 2.5, 3.5))]
    for n_heads in range(1, 70):
        expected = [reference.alibi_slope(head, n_heads) for head in range(n_heads)]
        assert alibi_slopes(n_heads) == pytest.approx(expected, rel=1e-12)


def test_buckets_of_t5_are_the_published_ones():
    # 16 + floor(16 ln(d / 16) / ln 8) from distance 16 on: 20 at d = 27 or more, 24 from 46, 28 from 77, 31 from 113.
    distances = torch.tensor([0, 1, 15, 16, 18, 19, 26, 27, 45, 46, 76, 77, 112, 113, 127, 128, 129, 10_000])
    expected = [0, 1, 15, 16, 16, 17, 19, 20, 23, 24, 27, 28, 30, 31, 31, 31, 31, 31]
    assert T5Encoding.buckets(distances).tolist() == expected
    assert T5Encoding.buckets(torch.arange(300)).tolist() == [reference.t5_bucket(d) for d in range(300)]


def test_rotary_positions_far_into_a_text_score_as_at_its_beginning():
    model, tokens = small_model(dtype=torch.float32, **POSITIONS["rotary"]), draw_tokens(B, 6 * L)
    early, late = (make_decoder(model, batch_size=B, mem_len=M, seg_len=L) for _ in range(2))
    late.read(tokens[:, :1])
    for _ in range(1_000):  # 5,000 tokens of another text
        late.read(tokens[:, :L])
    parts = tokens.split(L, dim=1)
    for part in parts[:5]:  # everything that two layers can see
        early.read(part), late.read(part)
    torch.testing.assert_close(late.read(parts[5]), early.read(parts[5]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("position", EVERY)
def test_a_segment_read_token_by_token_has_equal_positions(position):
    model, tokens = small_model(**EVERY[position]), draw_tokens(B, 4 * L)
    # Every query may see M keys, so that only the positions could make the two differ.
    options = {"batch_size": B, "mem_len": M, "same_length": "m"}
    whole, single = (make_decoder(model, seg_len=L, **options) for _ in range(2))
    assert_close(read_parts(single, tokens, [1]), read_parts(whole, tokens, [L]))


@pytest.mark.parametrize("position", EVERY)
def test_a_segment_read_without_a_prediction_is_remembered(position):
    model, tokens = small_model(**EVERY[position]), draw_tokens(B, 2 * L)
    predicting, silent = (make_decoder(model, batch_size=B, mem_len=M, seg_len=L) for _ in range(2))
    first, second = tokens.split(L, dim=1)
    predicting.read(first)
    assert silent.read_last(first, count=0).shape[1] == 0
    torch.testing.assert_close(silent.read(second), predicting.read(second), rtol=0, atol=0)


def test_parameter_counts_equal_a_calculation_by_hand():
    layer = 4 * 14 * H * D + 2 * 14 * 17 + 17 + 14 + 4 * 14
    shared = V * 14 + V + 2 * layer
    settings = {position: small_model(**changed).settings for position, changed in POSITIONS.items()}
    assert count_parameters(settings["relative"], V) == shared + 2 * 14 * H * D + 2 * 2 * H * D
    assert count_parameters(settings["shaw"], V) == shared + 2 * 6 * H * D
    assert count_parameters(settings["sinusoid"], V) == shared
    assert count_parameters(settings["learned"], V) == shared + 2 * L * 14
    assert count_parameters(settings["t5"], V) == shared + 32 * H
    assert count_parameters(settings["alibi"], V) == count_parameters(settings["none"], V) == shared


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("position", EVERY)
def test_every_encoding_trains_and_reads_in_bf16_with_every_backend(position, backend):
    model = small_model(**EVERY[position]).float()
    model = model.on(attention=backend)
    tokens, memory = draw_tokens(2, 4), model.full_memory(2, 4)
    losses = {}
    for precision in ("fp32", "bf16"):
        with autocast(torch.device("cpu"), precision):
            losses[precision], _, _ = model.objective(tokens, tokens, memory, Objective(mem_len=4))
        losses[precision].backward()
        reader = make_decoder(model.eval(), batch_size=2, mem_len=4, seg_len=4, precision=precision)
        losses[f"read {precision}"] = reader.losses(reader.read(tokens), tokens).mean()
        model.train()
    assert losses["bf16"].item() == pytest.approx(losses["fp32"].item(), rel=0.01)
    assert losses["read bf16"].item() == pytest.approx(losses["read fp32"].item(), rel=0.01)
