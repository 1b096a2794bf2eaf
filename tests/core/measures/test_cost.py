"""The formulas of cost, compared with calculations by hand and with the operations that PyTorch counts."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.core.builders import V, draw_tokens, model_settings, small_model, small_rnn
from tests.core.work_counters import unseen_flops_per_token
from txlcli.config.bands import bands
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.measures.cost import (
    evaluation_flops_per_token,
    step_flops_per_token,
    vocabulary_products,
    window_flops_per_prediction,
    zipf_shares,
)
from txlcli.core.model.losses import Objective
from txlcli.core.training.segments import band_shares

B, L, M = 3, 5, 7
sizes = partial(TrainSettings, max_steps=1)
COMPRESSIVE = {"arch": "compressive", "compressed_len": 3, "compression_rate": L}
MEMORY_TOKENS = {"arch": "rmt", "segment_len": L, "n_memory_tokens": 2}


def window(length):
    return EvalSettings(seg_len=length, mem_len=0)


def seeing(keys, max_distance=None):
    """Settings by which a query sees so many keys, without those of a compressed memory."""
    return EvalSettings(seg_len=1, mem_len=keys - 1, max_distance=max_distance, same_length="off")


def test_one_token_with_kept_keys_equals_a_calculation_by_hand():
    # H D = 33, d = 14, F = 17, 12 keys. A layer: four projections 4 x 14 x 33, scores and values 3 x 12 x 33,
    # feed-forward 2 x 14 x 17; two layers, then the softmax over 19 symbols. Each product is two operations.
    expected = 2 * (2 * (4 * 14 * 33 + 3 * 12 * 33 + 2 * 14 * 17) + 14 * 19)
    assert evaluation_flops_per_token(model_settings(), 19, seeing(12)) == expected == 14_580
    # SwiGLU has three matrices 14 x 11 instead of two 14 x 17: 34 / 3 is 11.
    expected = 2 * (2 * (4 * 14 * 33 + 3 * 12 * 33 + 3 * 14 * 11) + 14 * 19)
    assert evaluation_flops_per_token(model_settings(block="modern"), 19, seeing(12)) == expected


def test_distances_that_share_an_encoding_are_scored_once():
    # Of 12 keys at distances 0 .. 11, those from 4 on share one encoding: 5 products with distances instead of 12.
    model = model_settings()
    given = [evaluation_flops_per_token(model, V, seeing(12, limit)) for limit in (None, 11, 50, 4)]
    assert given[0] == given[1] == given[2]
    assert given[0] - given[3] == 2 * 2 * (12 - 5) * 33


def test_a_window_for_one_prediction_equals_a_calculation_by_hand():
    # Five tokens see 1 to 5 keys, 3 on average. The first layer computes all of them; the second the last token, with
    # the keys and values of the four before it; the softmax scores one.
    first = 5 * (4 * 14 * 33 + 3 * 3 * 33 + 2 * 14 * 17)
    second = 4 * 14 * 33 + 3 * 5 * 33 + 2 * 14 * 17 + 4 * 2 * 14 * 33
    assert window_flops_per_prediction(model_settings(), V, window(5)) == 2 * (first + second + 14 * V)
    # W = 2: five tokens see 1, 2, 2, 2 and 2 keys, 9 in all. The last layer projects all keys and values, too.
    first = 5 * (4 * 14 * 33 + 2 * 14 * 17) + 3 * 9 * 33
    second = 4 * 14 * 33 + 3 * 2 * 33 + 2 * 14 * 17 + 4 * 2 * 14 * 33
    given = window_flops_per_prediction(model_settings(window=2), V, window(5))
    assert given == pytest.approx(2 * (first + second + 14 * V), rel=1e-12)


def test_a_window_of_one_token_costs_one_token():
    model = model_settings(**ADAPTIVE)
    one = evaluation_flops_per_token(model, V, seeing(1))
    assert window_flops_per_prediction(model, V, window(1)) == pytest.approx(one, rel=1e-12)
    # Each token of a window is embedded, by a projection of its band's.
    embedded = sum(share * products for share, products in zip(ZIPF, EMBEDDED, strict=True))
    plain, adaptive = (
        window_flops_per_prediction(settings, V, window(7)) - evaluation_flops_per_token(settings, V, seeing(1))
        for settings in (model_settings(), model)
    )
    assert adaptive - plain == pytest.approx(2 * 6 * embedded, rel=1e-9)


def count(model, memory, tokens, targets=None, *, mem_len=M):
    """Count the operations of a training step, forward and backward, with PyTorch."""
    with FlopCounterMode(display=False) as counter:
        hidden, _ = model(tokens, memory, mem_len=mem_len)
        model.softmax.mean_loss(hidden, tokens if targets is None else targets).backward()
    return counter.get_total_flops()


def read_memory(model, mem_len):
    return model(draw_tokens(B, M), model.first_memory(B, mem_len), mem_len=mem_len)[1]


@pytest.mark.parametrize("mem_len", [0, M])
@pytest.mark.parametrize(
    "changed",
    [
        {"norm": "post"},
        {"norm": "pre"},
        {"position": "sinusoid"},
        {"position": "none"},
        {"position": "shaw", "n_positions": 5},
        {"feed_forward": "swiglu"},
        {"block": "modern", "norm": "pre"},
        {"gating": "gru", "norm": "pre"},
        {**COMPRESSIVE, "compression_rate": M, "compression": "mean", "memory_start": "zeros"},
    ],
    ids=str,
)
def test_a_training_step_equals_the_count_of_pytorch(mem_len, changed):
    model = small_model(dtype=torch.float32, **changed)
    counted = count(model, read_memory(model, mem_len), draw_tokens(B, L), mem_len=mem_len)
    formula = step_flops_per_token(model.settings, V, sizes(seg_len=L, mem_len=mem_len, batch_size=B))
    assert counted == pytest.approx(B * L * (formula + unseen_flops_per_token(model.settings, L)), rel=1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    ("changed", "seg_len", "mem_len", "rows"), [(COMPRESSIVE, L, M, L), (MEMORY_TOKENS, 3 * L, 0, L + 2 * 2)]
)
def test_a_step_with_a_trained_memory_equals_the_count_of_pytorch(norm, changed, seg_len, mem_len, rows):
    model = small_model(norm=norm, dtype=torch.float32, **changed).train()
    memory, tokens = model.full_memory(B, mem_len), draw_tokens(B, seg_len)
    with FlopCounterMode(display=False) as counter:
        model.objective(tokens, tokens, memory, Objective(mem_len=mem_len))[0].backward()
    formula = step_flops_per_token(model.settings, V, sizes(seg_len=seg_len, mem_len=mem_len, batch_size=B))
    unseen = unseen_flops_per_token(model.settings, rows) * rows / L
    assert counter.get_total_flops() == pytest.approx(B * seg_len * (formula + unseen), rel=1e-12)


def test_one_token_with_another_memory_equals_a_calculation_by_hand():
    # Seven tokens are read as 7 + 2 x 3 rows, which see 1 to 13 keys, 7 on average.
    model = model_settings(arch="rmt", segment_len=7, n_memory_tokens=3)
    layer = 4 * 14 * 33 + 3 * 7 * 33 + 2 * 14 * 17
    expected = 2 * (2 * layer * 13 / 7 + 14 * V)
    assert evaluation_flops_per_token(model, V, seeing(1)) == pytest.approx(expected, rel=1e-12)
    # 12 keys, rate 3: a third of a slot is made of 3 x 14 numbers and projected to keys and values, in two layers.
    model = model_settings(arch="compressive", compressed_len=5)
    added = 2 * 2 * (14 * 14 + 2 * 14 * 33 / 3)
    given = evaluation_flops_per_token(model, V, seeing(12 - 5))
    assert given == pytest.approx(evaluation_flops_per_token(model_settings(), V, seeing(12)) + added, rel=1e-12)


def test_auxiliary_classifiers_count_for_as_long_as_they_are_trained():
    # Two layers of 14 over 19 symbols: the first one predicts two tokens for a quarter of the training, the last one
    # the second token throughout, next to the model's own softmax.
    plain = model_settings(position="learned", n_positions=L)
    with_losses = dataclasses.replace(plain, auxiliary_losses=True)
    cost = [step_flops_per_token(model, V, sizes(seg_len=L, mem_len=0, batch_size=B)) for model in (plain, with_losses)]
    assert cost[1] - cost[0] == pytest.approx(6 * (2 * 0.25 + 1) * 19 * 14)


# V = 19 in bands of 5, 6 and 8 ids, 32, 8 and 2 wide, each projected to or from 14; the head scores two clusters, too.
ADAPTIVE = {"cutoffs": (5, 11), "div_val": 4, "d_embed": 32}
EMBEDDED = [14 * 32, 14 * 8, 14 * 2]
SCORED = [14 * 32 + (5 + 2) * 32, 14 * 8 + 6 * 8, 14 * 2 + 8 * 2]
ZIPF = [math.log(6) / math.log(20), math.log(12 / 6) / math.log(20), math.log(20 / 12) / math.log(20)]


def test_zipfs_law_gives_the_shares_of_the_bands():
    # log(1 + 1/1) + ... + log(1 + 1/5) = log 6: the ids 0 to 4 have the ranks 1 to 5.
    assert zipf_shares(bands(model_settings(**ADAPTIVE), V)) == pytest.approx(ZIPF, rel=1e-12)
    assert sum(ZIPF) == pytest.approx(1, rel=1e-12)


def test_embedding_and_softmax_of_an_adaptive_model_equal_a_calculation_by_hand():
    model = model_settings(**ADAPTIVE)
    embedded = sum(share * products for share, products in zip(ZIPF, EMBEDDED, strict=True))
    scored = SCORED[0] + ZIPF[1] * SCORED[1] + ZIPF[2] * SCORED[2]  # every token needs the head
    assert vocabulary_products(model, V) == pytest.approx((embedded, scored), rel=1e-12)
    layers = 2 * (4 * 14 * 33 + 3 * 12 * 33 + 2 * 14 * 17)
    given = evaluation_flops_per_token(model, V, seeing(12))
    assert given == pytest.approx(2 * (layers + embedded + scored), rel=1e-12)


def test_bands_as_wide_as_the_model_need_no_projection():
    scored = 14 * (7 + ZIPF[1] * 6 + ZIPF[2] * 8)
    assert vocabulary_products(model_settings(cutoffs=(5, 11)), V) == (0, pytest.approx(scored, rel=1e-12))
    assert vocabulary_products(model_settings(d_embed=6), V) == (6 * 14, 6 * 14 + 6 * V)


@pytest.mark.parametrize("tied", [True, False])
def test_an_adaptive_training_step_equals_the_count_of_pytorch(tied):
    # Zipf's shares are not whole numbers of tokens, so they are replaced by the actual tokens of each band.
    model = small_model(dtype=torch.float32, **ADAPTIVE, tie_embeddings=tied)
    tokens, targets = draw_tokens(B, L), torch.tensor([[0, 6, 1, 7, 2], [3, 18, 4, 10, 5], [0, 11, 1, 9, 2]])
    counted = count(model, read_memory(model, M), tokens, targets)
    read = [B * L] * 3  # each band embeds every token
    wanted = [15, 5, 2]  # all need the head
    ends = sum(count * products for count, products in zip(read + wanted, EMBEDDED + SCORED, strict=True))
    formula = step_flops_per_token(model.settings, V, sizes(seg_len=L, mem_len=M, batch_size=B))
    formula += unseen_flops_per_token(model.settings, L)
    # Forward and twice that backward, two operations each.
    by_zipf = 6 * sum(vocabulary_products(model.settings, V))
    assert counted == pytest.approx(B * L * (formula - by_zipf) + 6 * ends, rel=1e-12)


def test_shares_are_counted_in_a_text():
    cut = bands(model_settings(cutoffs=(7, 13)), V)
    assert band_shares(cut, np.array([0, 6, 7, 12, 3, 18, 1, 2])) == [5 / 8, 2 / 8, 1 / 8]
    even, head_only = (
        step_flops_per_token(model_settings(cutoffs=(7, 13)), V, sizes(seg_len=L, mem_len=M, batch_size=B), shares)
        for shares in ([1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0])
    )
    assert even - head_only == pytest.approx(6 * 14 * (6 + 6) / 3)


@pytest.mark.parametrize("arch", ["lstm", "qrnn"])
def test_a_training_step_of_a_recurrent_model_equals_the_count_of_pytorch(arch):
    model = small_rnn(arch)  # in float64 an LSTM runs as products that PyTorch counts
    counted = count(model, model.first_memory(B, 0), draw_tokens(B, L), mem_len=0)
    formula = step_flops_per_token(model.settings, V, sizes(seg_len=L, mem_len=0, batch_size=B))
    # No gradient goes back into the state that the segment before left: one product less in each lane and layer.
    without = 2 * B * 4 * (11 * 11 + 11 * 11 + 7 * 7) if arch == "lstm" else 0
    assert counted == pytest.approx(B * L * formula - without, rel=1e-12)
