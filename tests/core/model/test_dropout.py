"""Dropout and word dropout: masks, scale, gradients."""

import pytest
import torch

from txlcli.core.model.dropout import Dropout, WordDropout

B, L, D, V = 7, 11, 5, 13


def test_kept_entries_are_scaled_and_the_gradient_follows_them():
    torch.manual_seed(11)
    hidden = torch.ones(7, 11, requires_grad=True)
    out = Dropout(0.25)(hidden)
    assert out.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    out.sum().backward()
    assert torch.equal(hidden.grad, out.detach())


def test_nothing_is_dropped_in_evaluation_or_with_rate_0():
    tokens, embedded = occurrences()
    for dropout in (Dropout(0.0), Dropout(0.9).eval()):
        assert dropout(embedded) is embedded
    for dropout in (WordDropout(0.0, V), WordDropout(0.9, V).eval()):
        assert dropout(embedded, tokens) is embedded


def test_a_variational_mask_is_shared_by_positions_and_differs_between_lanes_and_channels():
    torch.manual_seed(13)
    out = Dropout(0.5, variational=True)(torch.ones(B, L, D))
    assert torch.equal(out, out[:, :1].expand_as(out))
    lanes = {tuple(row) for row in out[:, 0].tolist()}
    channels = {tuple(column) for column in out[:, 0].T.tolist()}
    assert len(lanes) > 1
    assert len(channels) > 1


def test_a_16_bit_mask_does_not_round_the_scale():
    # 10 / 7 is 1.4296875 in bfloat16, and 11 times that 15.75; rounded once, at the end, it is 15.6875.
    for dropout in (Dropout(0.3), Dropout(0.3, variational=True)):
        out = dropout(torch.full((B, L, D), 11.0, dtype=torch.bfloat16))
        assert out.dtype == torch.bfloat16
        assert out.unique().tolist() == [0.0, 15.6875]


def occurrences():
    """Return tokens (B, L) whose words repeat, and vectors of other entries than those of dropped words."""
    tokens = torch.arange(B * L).view(B, L) % V
    return tokens, torch.full((B, L, D), 3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_dropped_word_is_small_but_not_zero(dtype):
    torch.manual_seed(29)
    tokens, embedded = occurrences()
    out = WordDropout(0.5, V)(embedded.to(dtype), tokens)
    assert out.dtype == dtype
    small, whole = out.unique().tolist()
    assert 0 < small < 1e-4
    assert whole == 6.0
