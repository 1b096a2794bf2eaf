"""The gradient of every entry of every parameter against the oracle's exact derivative, with the memory held fixed."""

import numpy as np
import pytest
import torch

from tests import reference
from tests.core import oracle
from tests.core.builders import read_segments, small_model
from tests.samples import sampled

V, M = 11, 2
BEFORE, READ, TARGETS = [6, 10, 0], [1, 5, 9], [8, 2, 4]  # L = 3; each of the bands below is read and predicted
CUTOFFS = (3, 7)

KINDS = {
    "post": {},
    "pre": {"norm": "pre"},
    "pre_released": {"norm": "pre_released", "norm_eps": 0.1},
    "biases_per_layer": {"tie_biases": False},
    "pre_biases_per_layer": {"norm": "pre", "tie_biases": False},
    "narrow_embedding": {"d_embed": 3},
    "untied_embedding": {"tie_embeddings": False},
    "bands": {"cutoffs": CUTOFFS},
    "bands_narrow": {"cutoffs": CUTOFFS, "d_embed": 3},
    "bands_narrow_untied": {"cutoffs": CUTOFFS, "d_embed": 3, "tie_embeddings": False},
    "div_val_2": {"cutoffs": CUTOFFS, "div_val": 2},
    "div_val_2_all_projections_tied": {"cutoffs": CUTOFFS, "div_val": 2, "tie_projections": (True,) * 3},
    "div_val_2_untied": {"cutoffs": CUTOFFS, "div_val": 2, "tie_embeddings": False, "tie_projections": (False,) * 3},
    "div_val_2_head_as_wide_as_the_model": {"cutoffs": CUTOFFS, "div_val": 2, "project_same_width": False},
}
KINDS |= {
    "tied_distances": {"position": "relative_tied"},
    "tied_distances_qk_norm": {"position": "relative_tied", "qk_norm": "rms", "norm": "pre"},
    "modern": {"block": "modern"},
    "modern_pre": {"block": "modern", "norm": "pre", "position": "none", "norm_eps": 0.1},
    "rms": {"norm_type": "rms", "norm": "pre"},
    "swiglu": {"feed_forward": "swiglu"},
    "qk_norm": {"qk_norm": "rms", "tie_biases": False},
    "no_biases": {"biases": "none"},
    "gru": {"gating": "gru", "norm": "pre", "tie_biases": False, "biases": "none"},
}
LIMITS = {
    "max_distance": {"max_distance": 2},
    "key_limit": {"key_limit": M},
    "both": {"key_limit": M + 1, "max_distance": 1},
}
CASES = {name: (kind, {}) for name, kind in KINDS.items()}
CASES |= {name: ({"norm": "pre"}, limits) for name, limits in LIMITS.items()}


def exact_gradients(model, memory, **limits):
    """The derivative of the summed loss along each entry, by parameter name: a complex step in the oracle's loops."""
    settings = model.settings
    numbers = {name: array.astype(np.complex128) for name, array in oracle.numbers_of(model).items()}
    weights = oracle.weights_of(numbers, settings)
    past = [layer[0].numpy() for layer in memory]

    def loss():
        log_probs, _ = reference.forward(READ, past, weights, mem_len=M, **oracle.options_of(settings), **limits)
        return reference.cross_entropy_nats(log_probs, TARGETS).sum()

    return oracle.exact_gradients(numbers, loss)


@pytest.mark.parametrize("case", sampled(3, CASES))
def test_gradient_equals_the_oracles_exact_derivative(case):
    kind, limits = CASES[case]
    model = small_model(vocab_size=V, d_model=4, n_heads=2, d_head=3, d_inner=5, **kind)
    _, memory = read_segments(model, torch.tensor([BEFORE]), [len(BEFORE)], mem_len=M)
    hidden, _ = model(torch.tensor([READ]), memory, mem_len=M, **limits)
    model.losses(hidden, torch.tensor([TARGETS])).sum().backward()
    expected = exact_gradients(model, memory, **limits)
    for name, parameter in model.named_parameters():
        assert expected[name].any(), name
        np.testing.assert_allclose(parameter.grad, expected[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("kind", ["post", "div_val_2"])
def test_the_gradient_of_lanes_is_the_sum_of_their_gradients(kind):
    model = small_model(vocab_size=V, **KINDS[kind])
    tokens, targets = torch.tensor([BEFORE, READ, TARGETS]), torch.tensor([READ, TARGETS, BEFORE])

    def gradients(lanes):
        hidden, _ = model(tokens[lanes], model.first_memory(len(lanes), M), mem_len=M)
        return torch.autograd.grad(model.losses(hidden, targets[lanes]).sum(), model.parameters())

    alone = [gradients([lane]) for lane in range(3)]
    for together, *parts in zip(gradients([0, 1, 2]), *alone, strict=True):
        torch.testing.assert_close(together, sum(parts), rtol=0, atol=1e-12)
