"""A layer is a pure function, so that the compiler can trace all of it."""

import pytest
import torch

from tests.core.attention_cases import draw
from tests.core.builders import small_model
from txlcli.core.model.layer import HiddenMemory, rotated

B, L, M, WIDTH = 2, 5, 7, 14


@pytest.mark.parametrize(("position", "norm"), [("relative", "post"), ("rotary", "pre")])
def test_the_compiler_traces_one_graph_of_a_layer_with_its_memory(position, norm):
    torch.compiler.reset()
    model = small_model(position=position, norm=norm, d_head=12).train()
    model.set_attention_backend("reference")
    layer, rotation = model.layers[0], model.encoding.rotation
    terms = rotated(model.score_terms(M + L, max_distance=None), rotation(torch.arange(M, M + L)))[0]
    hidden, positions = draw(B, L, WIDTH), draw(B, M, WIDTH, seed=4)
    past = HiddenMemory(positions=positions, mem_len=M, rotation=rotation(torch.arange(M)))
    given = torch.compile(layer, fullgraph=True, backend="eager")(hidden, past, terms)
    expected = layer(hidden, past, terms)
    torch.testing.assert_close(given.hidden, expected.hidden, rtol=0, atol=1e-12)
    assert torch.equal(positions, draw(B, M, WIDTH, seed=4))
    assert torch.equal(past.after(given)[0], torch.cat([positions, hidden], dim=1)[:, -M:])
