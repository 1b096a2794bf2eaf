"""Dropout keeps what it says, with the scale that keeps the expectation."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from txlcli.core.kernels.dropout_mask import keep_mask
from txlcli.core.kernels.relu_dropout import relu_dropout
from txlcli.core.model.dropout import Dropout, WordDropout

CPU = torch.device("cpu")
B, L, D, V = 7, 11, 5, 13


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_one_asked_for(share):
    torch.manual_seed(3)
    kept = keep_mask(torch.Size((701, 997)), share, CPU)
    deviation = (share * (1 - share) / kept.numel()) ** 0.5
    assert abs(1 - share - kept.double().mean().item()) < 4 * deviation


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5])
def test_neighbours_are_drawn_independently(lag):
    torch.manual_seed(5)
    kept = keep_mask(torch.Size((500_009,)), 0.5, CPU).double() - 0.5
    correlation = (kept[:-lag] * kept[lag:]).mean().item() / 0.25
    assert abs(correlation) < 4 / 500_009**0.5


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3, 5)])
def test_any_shape_comes_back(shape):
    assert keep_mask(torch.Size(shape), 0.3, CPU).shape == shape


@pytest.mark.parametrize(("share", "kept"), [(0.0, 1.0), (1e-9, 1.0), (1 - 1e-9, 0.0)])
def test_a_share_at_either_end_keeps_all_or_nothing(share, kept):
    assert keep_mask(torch.Size((1009,)), share, CPU).double().mean() == kept


def test_the_generator_decides_and_moves_on():
    torch.manual_seed(7)
    first, second = (keep_mask(torch.Size((101,)), 0.5, CPU) for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(first, keep_mask(torch.Size((101,)), 0.5, CPU))
    assert not torch.equal(first, second)


def test_kept_entries_are_scaled_and_the_gradient_follows_them():
    torch.manual_seed(11)
    hidden = torch.ones(7, 11, requires_grad=True)
    out = Dropout(0.25)(hidden)
    assert out.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    out.sum().backward()
    assert torch.equal(hidden.grad, out.detach())


def test_nothing_is_dropped_outside_training_or_with_share_0():
    hidden = torch.randn(5, 3)
    assert Dropout(0.0)(hidden) is hidden
    assert Dropout(0.9).eval()(hidden) is hidden


def test_a_narrow_format_stays_narrow():
    assert Dropout(0.5)(torch.ones(5, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_variational_mask_is_shared_by_the_positions_and_drawn_for_every_lane_and_channel():
    torch.manual_seed(13)
    out = Dropout(0.5, variational=True)(torch.ones(B, L, D))
    assert torch.equal(out, out[:, :1].expand_as(out))
    of_lanes = {tuple(row) for row in out[:, 0].tolist()}
    of_channels = {tuple(column) for column in out[:, 0].T.tolist()}
    assert len(of_lanes) > 1
    assert len(of_channels) > 1


def test_a_variational_mask_is_shared_by_the_distances():
    torch.manual_seed(17)
    out = Dropout(0.5, variational=True)(torch.ones(L, 101))
    assert torch.equal(out, out[:1].expand_as(out))
    assert set(out[0].tolist()) == {0.0, 2.0}


def test_every_segment_has_a_mask_of_its_own():
    torch.manual_seed(19)
    dropout = Dropout(0.5, variational=True)
    first, second = (dropout(torch.ones(B, L, D)) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_variational_dropout_keeps_the_expectation(share):
    torch.manual_seed(23)
    out = Dropout(share, variational=True)(torch.ones(1009, 2, 997, dtype=torch.float64))
    deviation = (share / (1 - share) / (1009 * 997)) ** 0.5
    assert abs(out.mean().item() - 1) < 4 * deviation


def test_the_gradient_follows_the_shared_mask():
    hidden = torch.ones(B, L, D, requires_grad=True)
    out = Dropout(0.25, variational=True)(hidden)
    out.sum().backward()
    assert torch.equal(hidden.grad, out.detach())


def test_a_16_bit_mask_does_not_round_the_scale():
    # 10 / 7 is 1.4296875 in bfloat16, and 11 times that 15.75; rounded once, at the end, it is 15.6875.
    for dropout in (Dropout(0.3), Dropout(0.3, variational=True)):
        out = dropout(torch.full((B, L, D), 11.0, dtype=torch.bfloat16))
        assert out.dtype == torch.bfloat16
        assert out.unique().tolist() == [0.0, 15.6875]


def occurrences():
    """Tokens (B, L) in which every word stands several times, but first in no lane; and vectors without a zero."""
    tokens = torch.arange(B * L).view(B, L) % V
    tokens[:, 0] = V
    return tokens, torch.full((B, L, D), 3.0)


def test_every_occurrence_of_a_word_is_dropped_together_in_all_lanes():
    torch.manual_seed(29)
    tokens, embedded = occurrences()
    out = WordDropout(0.5, V + 1)(embedded, tokens)
    kinds = {word: set(out[tokens == word].flatten().tolist()) for word in range(V)}
    assert {len(values) for values in kinds.values()} == {1}
    assert set.union(*kinds.values()) == {0.0, 6.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_position_is_kept_whatever_its_word(dtype):
    tokens = torch.zeros(B, L, dtype=torch.long)
    seen = set()
    for _ in range(20):
        out = WordDropout(0.5, V)(torch.full((B, L, D), 3.0, dtype=dtype), tokens)
        assert out.dtype == dtype
        assert out[:, 0].unique().tolist() == [3.0]
        seen |= set(out[:, 1:].unique().tolist())
    assert seen == {0.0, 6.0}


def test_word_dropout_keeps_the_expectation():
    torch.manual_seed(31)
    tokens = torch.arange(500_009)[None]
    out = WordDropout(0.2, 500_009)(torch.ones(1, 500_009, 1, dtype=torch.float64), tokens)
    assert abs(out.mean().item() - 1) < 4 * (0.2 / 0.8 / 500_009) ** 0.5


def test_no_word_is_dropped_outside_training_or_with_share_0():
    tokens, embedded = occurrences()
    assert WordDropout(0.0, V + 1)(embedded, tokens) is embedded
    assert WordDropout(0.9, V + 1).eval()(embedded, tokens) is embedded


def test_the_generator_decides_which_words_and_channels_are_dropped():
    tokens, embedded = occurrences()
    for one in (lambda: WordDropout(0.5, V + 1)(embedded, tokens), lambda: Dropout(0.5, variational=True)(embedded)):
        torch.manual_seed(37)
        first = one()
        torch.manual_seed(37)
        assert torch.equal(one(), first)


def test_shapes_can_be_worked_out_without_contents():
    with FakeTensorMode():
        tokens, embedded = occurrences()
        assert WordDropout(0.5, V + 1)(embedded, tokens).shape == (B, L, D)
        assert Dropout(0.5, variational=True)(embedded).shape == (B, L, D)


@pytest.mark.parametrize("variational", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_dropped_relu_is_dropout_of_relu_with_its_gradient(variational, dtype, share):
    given = torch.randn(7, 11, 5, dtype=dtype)
    given[0, 0] = 0.0
    weight, dropout, found = torch.randn(7, 11, 5, dtype=dtype), Dropout(share, variational=variational), []
    for function in (relu_dropout, lambda hidden, dropout: dropout(hidden.relu())):
        leaf = given.clone().requires_grad_()
        torch.manual_seed(3)
        out = function(leaf * 1, dropout)  # no leaf is overwritten
        (grad,) = torch.autograd.grad((out * weight).sum(), leaf)
        found.append((out.detach(), grad))
    torch.testing.assert_close(*found, rtol=torch.finfo(dtype).eps * 2, atol=0)


def test_a_dropped_relu_keeps_its_result_alone():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, id):
        out = relu_dropout(torch.randn(7, 11, requires_grad=True) * 1, Dropout(0.5))
    assert [tensor.data_ptr() for tensor in kept if tensor.dim()] == [out.data_ptr()]
