"""Dropout keeps what it says, with the scale that keeps the expectation."""

import pytest
import torch

from txlcli.core.dropout import Dropout, keep_mask

CPU = torch.device("cpu")


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
