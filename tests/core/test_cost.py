"""The formulas count what PyTorch does."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.core.builders import V, draw_tokens, model_settings, small_model
from txlcli.core.cost import decoding_flops_per_token, training_flops_per_token

B, L, M = 3, 5, 7


def test_one_token_with_kept_keys_by_pencil():
    # H D = 33, d = 14, F = 17, 12 keys. A layer: four projections 4 x 14 x 33, scores and values 3 x 12 x 33,
    # feed-forward 2 x 14 x 17; two layers, then the softmax over 19 symbols. Each product is two operations.
    expected = 2 * (2 * (4 * 14 * 33 + 3 * 12 * 33 + 2 * 14 * 17) + 14 * 19)
    assert decoding_flops_per_token(model_settings(), 19, keys=12) == expected == 14_580


@pytest.mark.parametrize("mem_len", [0, M])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_training_step_is_what_pytorch_counts(mem_len, norm):
    model = small_model(dtype=torch.float32, norm=norm)
    _, memory = model(draw_tokens(B, M), model.first_memory(B, mem_len), mem_len=mem_len)
    with FlopCounterMode(display=False) as counter:
        hidden, _ = model(draw_tokens(B, L), memory, mem_len=mem_len)
        model.losses(hidden, draw_tokens(B, L)).mean().backward()
    formula = training_flops_per_token(model.settings, V, seg_len=L, mem_len=mem_len, lanes=B)
    assert counter.get_total_flops() == pytest.approx(B * L * formula, rel=1e-12)
