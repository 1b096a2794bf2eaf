"""A layer is a pure function, so that the compiler can trace all of it."""

import pytest
import torch

from tests.core.attention_cases import draw
from tests.core.builders import V, draw_tokens, small_model
from txlcli.core.kernels.modes import use_row_multiple
from txlcli.core.model.layer import HiddenMemory, rotated
from txlcli.core.model.losses import Objective

B, L, M, WIDTH = 2, 5, 7, 14


@pytest.mark.parametrize(("position", "norm"), [("relative", "post"), ("rotary", "pre")])
def test_the_compiler_traces_one_graph_of_a_layer_with_its_memory(position, norm):
    torch.compiler.reset()
    model = small_model(position=position, norm=norm, d_head=12).train()
    model = model.on(attention="reference")
    layer, rotation = model.layers[0], model.encoding.rotation
    terms = rotated(model.score_terms(M + L, max_distance=None), rotation(torch.arange(M + L)))[0]
    hidden, positions = draw(B, L, WIDTH), draw(B, M, WIDTH, seed=4)
    past = HiddenMemory(hidden=positions)
    given = torch.compile(layer, fullgraph=True, backend="eager")(hidden, past, terms)
    expected = layer(hidden, past, terms)
    torch.testing.assert_close(given.hidden, expected.hidden, rtol=0, atol=1e-12)
    assert torch.equal(positions, draw(B, M, WIDTH, seed=4))
    assert torch.equal(given.kept, hidden)


def gradients_of(model):
    """Sum of the mean losses of three segments, its gradients, and the memory after them."""
    memory, total = model.first_memory(B, M), 0.0
    for seed in range(3):
        tokens = draw_tokens(B, L + 1, seed=seed)
        loss, _, memory = model.objective(tokens[:, :-1], tokens[:, 1:], memory, Objective(mem_len=M))
        total = total + loss
    total.backward()
    return total, *(parameter.grad for parameter in model.parameters()), *memory


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"norm": "pre", "tie_biases": False, "window": 4},
        {"block": "modern", "qk_norm": "none"},
        {"block": "modern"},
        {"cutoffs": (4, V - 4), "div_val": 2},
        {"position": "rotary", "d_head": 12},
        *({"position": position} for position in ("alibi", "t5", "sinusoid")),
        *({"position": position, "n_positions": 9} for position in ("shaw", "learned")),
        {"norm": "pre", "gating": "gru"},
    ],
    ids=str,
)
def test_the_layers_that_are_compiled_compute_the_definition(changed):
    """Also with all rows padded to a multiple of 8, as for the fast products of CUDA."""
    expected = gradients_of(small_model(**changed).train().on(attention="reference"))
    for multiple in (1, 8):
        with use_row_multiple(multiple), torch.compiler.set_stance("force_eager"):
            given = gradients_of(small_model(**changed).train().on(compiles=True))
        torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)
