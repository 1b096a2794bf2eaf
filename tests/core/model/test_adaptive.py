"""Adaptive embedding and softmax, compared with the oracle; tails are computed only where they are needed."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests import reference
from tests.core import oracle
from tests.core.attention_cases import draw
from tests.core.builders import draw_tokens, make_decoder, model_settings, read_segments, small_model
from tests.core.work_counters import AllocationCounter
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.kernels.table_rows import RowsOfTable
from txlcli.core.model.losses import Objective
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments

V, CUTOFFS = 19, (5, 11)  # bands of 5, 6 and 8 ids
B, L, M, T = 2, 5, 7, 23

CASES = {
    "div_val_1": {},
    "div_val_1_narrow": {"d_embed": 6},
    "div_val_2": {"div_val": 2},
    "div_val_4_wide": {"div_val": 4, "d_embed": 32},
    "head_as_wide_as_the_model": {"div_val": 2, "project_same_width": False},
    "untied_tables": {"div_val": 2, "tie_embeddings": False},
    "all_projections_tied": {"div_val": 2, "tie_projections": (True, True, True)},
    "no_projections_tied": {"div_val": 2, "tie_projections": (False, False, False)},
    "nothing_tied_narrow": {"d_embed": 6, "tie_embeddings": False, "tie_projections": (False, False, False)},
}
ENDS = {
    "zeros": {"memory_start": "zeros"},
    "zeros_pre": {"memory_start": "zeros", "norm": "pre"},
    "pre_released": {"norm": "pre_released"},
    "norm_eps": {"norm_eps": 0.1},
    "norm_eps_pre": {"norm_eps": 0.1, "norm": "pre"},
    "everything": {
        **{"cutoffs": CUTOFFS, "div_val": 4, "d_embed": 32, "memory_start": "zeros", "norm": "pre_released"},
        **{"norm_eps": 0.1, "tie_biases": False},
    },
}
SINGLE = {"one_band": {"cutoffs": ()}, "one_narrow_band": {"cutoffs": (), "d_embed": 6}}
EVERY_CASE = {**CASES, **SINGLE}


def adaptive_model(**changed):
    return small_model(**{"cutoffs": CUTOFFS, **changed})


def draw_hidden(count, *, seed=7, dtype=torch.float64):
    return torch.randn(count, 14, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def expected_log_probs(model, hidden):
    weights = oracle.weights_of(oracle.numbers_of(model), model.settings)
    return np.stack([reference.token_log_probs(row, weights) for row in hidden.double().numpy()])


def test_parameters_of_an_adaptive_model_equal_a_calculation_by_hand():
    layers = 2 * (5 * 14 * 33 + 2 * 14 * 17 + 17 + 14 + 2 * 2 * 14) + 2 * 33
    tables = 5 * 32 + 6 * 8 + 8 * 2
    projections = 14 * (32 + 8 + 2)
    ends = tables + projections + V + 2 * 32 + 2  # a bias per id; a vector as wide as the head and a bias per cluster

    def counted(**changed):
        return count_parameters(model_settings(cutoffs=CUTOFFS, div_val=4, d_embed=32, **changed), V)

    assert counted(tie_projections=(True,) * 3) == layers + ends
    assert counted() == layers + ends + 14 * 32  # the head's projection is not shared
    assert counted(tie_projections=(False,) * 3) == layers + ends + projections
    assert counted(tie_embeddings=False) == layers + ends + 14 * 32 + tables
    # With div_val = 1, one projection embeds all bands, and each band of the softmax has its own or that one.
    narrow = layers + V * 6 + 6 * 14 + V + 2 * 6 + 2
    assert count_parameters(model_settings(cutoffs=CUTOFFS, d_embed=6, tie_projections=(False,) * 3), V) == (
        narrow + 3 * 6 * 14
    )
    assert count_parameters(model_settings(cutoffs=CUTOFFS, d_embed=6), V) == narrow + 6 * 14


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_log_probs_and_losses_equal_the_oracle(case):
    model, hidden = adaptive_model(**case), draw_hidden(7)
    log_probs = model.softmax.log_probs(hidden).detach()
    expected = expected_log_probs(model, hidden)
    np.testing.assert_allclose(log_probs, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-12)
    for targets in TARGETS.values():
        losses = model.softmax.losses(hidden, torch.tensor(targets))
        wanted = reference.cross_entropy_nats(expected, targets)
        np.testing.assert_allclose(losses.detach(), wanted, rtol=0, atol=1e-11)


TARGETS = {
    "every_band": [18, 0, 4, 5, 10, 11, 3],
    "head_only": [4, 0, 2, 1, 3, 4, 0],
    "no_head": [10, 18, 5, 11, 6, 17, 12],
    "one_tail": [11, 12, 18, 11, 15, 14, 13],
}


def test_a_band_without_targets_has_a_gradient_of_zeros():
    model = adaptive_model(div_val=2, tie_embeddings=False, tie_projections=(False,) * 3)
    hidden = draw_hidden(3).requires_grad_()
    model.softmax.losses(hidden, torch.tensor([6, 1, 9])).sum().backward()
    softmax = model.softmax
    unneeded = [softmax.tables[2], softmax.biases[2], softmax.projections["2"]]
    for parameter in unneeded:
        assert parameter.grad is not None
        assert not parameter.grad.any()
    for name, parameter in softmax.named_parameters():
        if all(parameter is not other for other in unneeded):
            assert parameter.grad.any(), name
    model.embedding(torch.tensor([[6, 1]])).sum().backward()
    assert model.embedding.tables[2].grad is not None
    assert not model.embedding.tables[2].grad.any()


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_the_likeliest_tokens_are_the_top_of_all(case):
    model = adaptive_model(**case)
    for seed, count in itertools.product(range(3), [1, 2, 5, 6, 13, V, V + 4]):
        hidden = draw_hidden(1, seed=seed)
        scores, tokens = model.softmax.likeliest(hidden, count)
        expected, ids = model.softmax.log_probs(hidden)[0].topk(min(count, V))
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12)
        assert tokens.tolist() == ids.tolist()


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_bf16_is_close_to_fp32_and_keeps_the_softmax_in_fp32(case):
    model = adaptive_model(dtype=torch.float32, std=0.1, **case)
    hidden, targets = draw_hidden(7, dtype=torch.float32), torch.tensor(TARGETS["every_band"])

    def results():
        return (
            model.softmax.losses(hidden, targets),
            model.softmax.log_probs(hidden),
            model.softmax.likeliest(hidden[:1], 3)[0],
            model.embed(targets[None], torch.arange(len(targets))),
        )

    exact = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = results()
    assert not torch.equal(rounded[0], exact[0])
    for near, true in zip(rounded, exact, strict=True):
        assert near.dtype == torch.float32
        assert torch.isfinite(near).all()
        torch.testing.assert_close(near, true, rtol=0, atol=0.03)


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_a_copy_for_decoding_has_the_same_distribution_and_is_independent(case):
    model = adaptive_model(dtype=torch.float32, std=0.1, **case)
    before = copy.deepcopy(model.state_dict())
    hidden = draw_hidden(7, dtype=torch.float32)
    same = model.softmax.for_decoding(torch.float32)
    rounded = model.softmax.for_decoding(torch.bfloat16)
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in (*same.parameters(), *rounded.parameters()))
    expected = model.softmax.log_probs(hidden)
    near = rounded.log_probs(hidden.bfloat16())
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, expected, rtol=0, atol=0.03)
    torch.testing.assert_close(rounded.losses(hidden.bfloat16(), torch.tensor([18] * 7)), -near[:, 18])
    assert torch.equal(same.log_probs(hidden), expected)
    with torch.no_grad():
        for parameter in same.parameters():
            parameter.fill_(math.nan)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "case",
    [*({"cutoffs": CUTOFFS, **case} for case in CASES.values()), *SINGLE.values(), *ENDS.values()],
    ids=[*CASES, *SINGLE, *ENDS],
)
def test_a_whole_model_with_memory_equals_the_oracle(case):
    oracle.assert_equals_oracle(small_model(**case), draw_tokens(B, 14), [L, L, 1, 3], mem_len=M)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_decoder_equals_the_model(case):
    model, tokens, targets = adaptive_model(**case), draw_tokens(B, T), draw_tokens(B, T, seed=5)
    expected, _ = read_segments(model, tokens, [L, L, L, L, 3], mem_len=M)
    decoder = make_decoder(model, batch_size=B, mem_len=M, seg_len=L)
    parts = []
    for read, wanted in zip(tokens.split(L, dim=1), targets.split(L, dim=1), strict=True):
        hidden = decoder.read(read)
        log_probs = decoder.log_probs(hidden)
        parts.append(log_probs)
        chosen = log_probs.gather(-1, wanted[..., None])[..., 0]
        torch.testing.assert_close(decoder.losses(hidden, wanted), -chosen, rtol=0, atol=1e-12)
        scores, ids = decoder.likeliest(hidden[0, -1:], 3)
        top = log_probs[0, -1].topk(3)
        torch.testing.assert_close(scores, top.values, rtol=0, atol=1e-12)
        assert torch.equal(ids, top.indices)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected.detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("cutoffs", [(), (5, 11)])
def test_gradients_of_rows_sum_to_the_gradient_of_the_whole_table(cutoffs):
    original, tokens, results = small_model(cutoffs=cutoffs), draw_tokens(1, 4), []
    for rows in (False, True):
        model = original.on(gradient_of_rows=rows)
        model.zero_grad()
        objective, _, _ = model.objective(tokens, tokens.roll(-1, 1), model.first_memory(1, 0), Objective(mem_len=0))
        objective.backward()
        results.append([parameter.grad for parameter in model.parameters()])
    assert not any(grad.is_sparse for grad in results[1])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-14)


def test_gradients_of_rows_are_added_in_place():
    embedding = small_model(vocab_size=997).on(gradient_of_rows=True).embedding
    (table,), tokens = embedding.tables, torch.tensor([[3, 5, 3]])
    before, expected = torch.ones_like(table), torch.ones_like(table)
    table.grad = before
    expected[3], expected[5] = 3, 2
    with AllocationCounter() as counter:
        embedding(tokens).sum().backward()
    assert table.grad is before
    assert torch.equal(table.grad, expected)
    assert counter.bytes < table.nbytes / 2
    table.grad = None
    embedding(tokens).sum().backward()
    assert torch.equal(table.grad, expected - 1)


def test_rows_of_a_table_on_a_gpu_add_their_gradients_in_place_to_those_of_the_softmax():
    table = torch.nn.Parameter(draw(997, 3))
    ids = torch.tensor([[2, 5, 2], [0, 5, 5]])
    weights = draw(2, 3, 3)

    def loss(rows):
        return (rows * weights).sum() + torch.mm(table, weights[0]).sum()

    [expected] = torch.autograd.grad(loss(F.embedding(ids, table)), table)
    rows = RowsOfTable.apply(table.detach().requires_grad_(), ids, [table])
    with AllocationCounter() as counter:
        loss(rows).backward()
    torch.testing.assert_close(table.grad, expected, rtol=0, atol=1e-14)
    assert counter.bytes < 4 * table.nbytes  # product, its gradient, and the table's, once
    table.grad = None
    (RowsOfTable.apply(table.detach().requires_grad_(), ids, [table]) * weights).sum().backward()
    assert torch.equal(table.grad.abs().sum(dim=1).nonzero()[:, 0], torch.tensor([0, 2, 5]))


@pytest.mark.parametrize("tied", [True, False])
def test_training_on_a_cpu_uses_gradients_of_rows_for_tied_tables(tied):
    model = small_model(tie_embeddings=tied, dtype=torch.float32)
    settings = TrainSettings(seg_len=5, mem_len=5, batch_size=2, max_steps=2)
    segments = TrainingSegments(draw_tokens(1, 50)[0].numpy(), settings)
    training = Training(model, settings, segments)
    assert training.model.embedding.backend.gradient_of_rows == tied
    assert not model.embedding.backend.gradient_of_rows
    training.update()


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_on_a_cpu_reuses_the_memory_of_the_last_gradients(tied):
    model = small_model(cutoffs=CUTOFFS, tie_embeddings=tied)
    tables = list(model.embedding.tables if tied else model.softmax.tables)
    places = []
    for _ in range(2):
        tokens = draw_tokens(1, 40)
        model.losses(model.embed(tokens, torch.arange(40)), tokens).mean().backward()
        places.append({table.grad.data_ptr() for table in tables})
        model.forget_gradients()
        assert all(parameter.grad is None for parameter in model.parameters())
    assert places[0] == places[1]


def test_a_step_writes_no_gradient_into_the_bucket_of_several_processes():
    model, tokens = small_model(tie_embeddings=False), draw_tokens(1, 40)
    [table] = model.softmax.tables
    bucket = table.new_zeros(3 + table.numel())
    table.grad = bucket[3:].view(table.shape)
    model.forget_gradients()
    model.losses(model.embed(tokens, torch.arange(40)), tokens).mean().backward()
    assert table.grad.untyped_storage().data_ptr() != bucket.data_ptr()
