"""`train.recompute = "layers"`: the gradients and the random numbers are those of a step that keeps everything."""

import pytest
import torch
from torch import nn

from tests.core.builders import draw_tokens
from tests.core.device_cases import CASES, load
from tests.core.training.runs import assert_equal
from tests.samples import sampled
from txlcli.core.architectures.registry import make_model
from txlcli.core.kernels.recomputation import recomputed
from txlcli.core.model.losses import Objective


def step(case, recompute, precision):
    """Losses and gradients of two segments, and the state of the generator after them."""
    settings = load(case)
    torch.manual_seed(3)
    model = make_model(settings.model, 1009 if not settings.model.cutoffs else 267_735).train()
    model = model.on(attention=settings.train.attention, recompute=recompute)
    tokens, memory = draw_tokens(3, 17, seed=5), model.first_memory(3, settings.train.mem_len)
    losses = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss, _, memory[:] = model.objective(
                tokens[:, :-1], tokens[:, 1:], memory, Objective(mem_len=settings.train.mem_len, progress=0.1)
            )
        loss.backward()
        losses.append(loss.detach())
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"losses": torch.stack(losses), "generator": torch.get_rng_state(), **gradients}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", sampled(4, CASES))
def test_recomputed_layers_have_the_losses_gradients_and_random_numbers_of_kept_ones(case, precision):
    assert_equal(step(case, "layers", precision), step(case, False, precision))


def dropped(hidden, weight):
    """Every random operator of a layer: fused dropout, a mask in place, and a seed."""
    mask = torch.empty(hidden.shape, dtype=torch.uint8).bernoulli_(0.7)
    seed = torch.randint(2**62, (1,)) % 7
    first, _ = torch.native_dropout(hidden @ weight, 0.3, True)
    return (first * mask * (1 + seed)).tanh() @ weight


def test_copies_of_random_numbers_repeat_every_kind_of_them():
    found = []
    for function in (lambda *inputs: recomputed(dropped, *inputs, keeps_random_numbers=True), dropped):
        torch.manual_seed(11)
        hidden, weight = (nn.Parameter(torch.randn(rows, 5)) for rows in (3, 5))
        out = function(hidden, weight)
        torch.rand(13)  # the state of the generator is another one in the backward pass
        out.square().sum().backward()
        found.append({"out": out.detach(), "hidden": hidden.grad, "weight": weight.grad})
    assert_equal(*found)
