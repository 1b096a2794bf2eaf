"""A feed-forward sublayer that is registered from outside the package: its matrices and how layers use its output."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.core.builders import draw_tokens, model_settings, small_model
from tests.extensions import registered_feed_forward
from txlcli.core.architectures.registry import count_parameters, make_model
from txlcli.core.kernels.modes import use_row_multiple
from txlcli.core.model.losses import Objective
from txlcli.core.model.sublayers import FeedForward, GatedFeedForward, register_feed_forward
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import UsageError


class Wide(GatedFeedForward):
    """A gate whose width does not follow from the number of matrices."""

    def __init__(self, settings):
        super().__init__(settings)
        self.ff_gate = nn.Linear(settings.d_model, settings.d_inner)


class Fused(nn.Module):
    """A gate whose two matrices are one product."""

    def __init__(self, settings):
        super().__init__()
        self.up = nn.Linear(settings.d_model, 2 * settings.inner_width, bias=False)
        self.down = nn.Linear(settings.inner_width, settings.d_model, bias=False)

    def forward(self, hidden):
        gate, inner = self.up(hidden).chunk(2, dim=-1)
        return self.down(F.silu(gate) * inner)


class Bounded(nn.Module):
    """PyTorch's own modules, which do not pad rows, and an output that its backward pass needs."""

    def __init__(self, settings):
        super().__init__()
        self.up = nn.Linear(settings.d_model, settings.inner_width)
        self.down = nn.Linear(settings.inner_width, settings.d_model)

    def forward(self, hidden):
        return torch.tanh(self.down(torch.relu(self.up(hidden))))


@pytest.mark.parametrize("changed", [{}, {"norm": "pre", "gating": "gru"}], ids=str)
def test_a_sublayer_of_any_modules_has_its_own_gradients(changed):
    """Compiled layers do not pad the rows that it reads, and no layer overwrites its output."""
    batch = draw_tokens(3, 6)

    def gradients_of(model):
        goal = Objective(mem_len=4)
        loss, _, _ = model.objective(batch[:, :-1], batch[:, 1:], model.first_memory(3, 4), goal)
        loss.backward()
        return loss, *(parameter.grad for parameter in model.parameters())

    with registered_feed_forward("bounded", Bounded, matrices=2):
        models = [small_model(feed_forward="bounded", **changed).train() for _ in range(3)]
    expected = gradients_of(models[0].on(attention="reference"))
    torch.testing.assert_close(gradients_of(models[1]), expected, rtol=1e-9, atol=1e-9)
    with use_row_multiple(8), torch.compiler.set_stance("force_eager"):
        given = gradients_of(models[2].on(compiles=True))
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


def test_compiled_layers_pad_the_rows_of_built_in_sublayers_alone():
    with registered_feed_forward("bounded", Bounded, matrices=2), use_row_multiple(8):
        widths = {
            name: small_model(feed_forward=name).on(compiles=True).width for name in ("relu", "swiglu", "bounded")
        }
    assert widths == {"relu": 16, "swiglu": 16, "bounded": 14}


def test_the_layers_of_a_subclass_read_rows_as_they_are():
    class Derived(TransformerXL):
        pass

    settings = model_settings()
    with use_row_multiple(8):
        widths = [cls(settings, 7).on(compiles=True).width for cls in (TransformerXL, Derived)]
    assert widths == [16, 14]


def test_a_gate_of_one_product_has_as_many_weights_as_that_of_two():
    with registered_feed_forward("fused", Fused, matrices=3):
        fused, gated = (model_settings(biases="none", feed_forward=word) for word in ("fused", "swiglu"))
        assert count_parameters(fused, 7) == count_parameters(gated, 7)


def test_a_sublayer_without_matrices_is_rejected():
    with pytest.raises(ValueError, match="1 matrix or more"):
        register_feed_forward("none", FeedForward, matrices=0)


@pytest.mark.parametrize(("cls", "matrices"), [(GatedFeedForward, 2), (Wide, 3), (Fused, 2)])
def test_the_weights_must_be_those_of_the_matrices_that_were_registered(cls, matrices):
    with registered_feed_forward("mine", cls, matrices=matrices), pytest.raises(UsageError, match="inner_width"):
        make_model(model_settings(feed_forward="mine"), 7)
