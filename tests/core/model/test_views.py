"""Views of a model: other ways to compute with the same parameters."""

import dataclasses

import pytest
import torch

from tests.core.builders import draw_tokens, small_model, small_rnn

MODELS = {
    "transformer": small_model,
    "compressive": lambda: small_model(arch="compressive", compressed_len=2, compression_rate=2),
    "lstm": lambda: small_rnn("lstm"),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_view_has_the_parameters_of_the_model_and_changes_nothing_of_it(make):
    model = make()
    before = model.backend
    views = [model.on(attention="reference", precision="bf16", recompute="layers"), model.for_reading()]
    assert model.backend is before
    parameters = dict(model.named_parameters())
    modules = set(model.modules())
    for view in views:
        assert all(parameter is parameters[name] for name, parameter in view.named_parameters())
        assert modules.isdisjoint(view.modules())
    assert (views[0].backend.precision, before.precision) == ("bf16", "fp32")
    assert views[1].for_reading() is views[1]


def test_a_backend_never_changes_and_has_no_other_choices():
    model = small_model()
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.backend.precision = "bf16"
    with pytest.raises(TypeError, match="speed"):
        model.on(speed="fast")


def test_what_is_not_chosen_stays_as_it_is():
    model = small_model(cutoffs=(5, 11)).on(temperature=1.7).on(attention="reference")
    assert (model.backend.temperature, model.backend.attention) == (1.7, "reference")
    tokens = draw_tokens(2, 5)
    with torch.no_grad():
        hidden, _ = model(tokens, model.first_memory(2, 0), mem_len=0)
        expected = model.losses(hidden, tokens)
        assert torch.equal(model.for_reading().losses(hidden, tokens), expected)
        assert not torch.equal(model.on(temperature=1.0).losses(hidden, tokens), expected)
