"""Every faster implementation of attention equals the definition, in its output and all gradients.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key, C capacity of a buffer.
"""

import dataclasses

import pytest
import torch

from tests.core.attention_cases import (
    DEFAULT,
    ONE_SEQUENCE,
    SINGLE_QUERIES,
    TWO_SEQUENCES,
    UNEQUAL_BLOCKS,
    D,
    H,
    L,
    M,
    attend,
    call,
    draw,
    draw_inputs,
    workspace_of,
)
from txlcli.core.kernels.attention_slots import SlotAttention
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.model import attention

B, K = 3, M + L
CONTENT = ("content_bias",)
SHAW = ("position_key",)
RELATIVE = ("content_bias", "position_bias", "position_key")
TILINGS = {
    "default": DEFAULT,
    "two sequences": TWO_SEQUENCES,
    "one sequence": ONE_SEQUENCE,
    "blocks of queries": UNEQUAL_BLOCKS,
    "single queries": SINGLE_QUERIES,
}
IMPLEMENTATIONS = {
    f"tiles of {name}{', recomputed' * recompute}": TiledAttention(workspace_of(tiling), recompute=recompute)
    for name, tiling in TILINGS.items()
    for recompute in (False, True)
}
SIZES = {  # L, K, n
    "no memory": (5, 5, 5),
    "memory": (5, 12, 12),
    "reach below K": (5, 12, 7),
    "reach below L": (5, 12, 3),
    "no memory and reach below L": (5, 5, 2),
    "a single query": (1, 13, 11),
    "a single key": (1, 1, 1),
}
TERMS = {
    "all terms": RELATIVE,
    "no positions": (),
    "content bias": CONTENT,
    "Shaw": SHAW,
    "position bias": ("position_bias", "position_key"),
    "distance bias": ("distance_bias",),
    "distance bias, content bias": (*CONTENT, "distance_bias"),
    "distance bias, Shaw": (*SHAW, "distance_bias"),
    "distance bias, all terms": (*RELATIVE, "distance_bias"),
}


def arguments(names, *, seg_len, key_len, reach, batch_size=B, width=D, position_keys=None):
    """Arguments of `call` by name, in float64, each with a gradient; only the named terms of the score."""
    shapes = {
        "query": (batch_size, H, seg_len, width),
        "key": (batch_size, H, key_len, width),
        "value": (batch_size, H, key_len, width),
        "content_bias": (H, width),
        "position_bias": (H, width),
        "position_key": (H, position_keys or reach, width),
        "distance_bias": (H, reach),
    }
    wanted = ("query", "key", "value", *names)
    return {
        name: draw(*shape, seed=seed).requires_grad_()
        for seed, (name, shape) in enumerate(shapes.items())
        if name in wanted
    }


def with_gradients(function, tensors, **options):
    """The output of a function, and by name the gradients of a weighted sum of it."""
    out = call(function, **tensors, **options)
    grads = torch.autograd.grad((out * draw(*out.shape, seed=9)).sum(), list(tensors.values()))
    return {"output": out, **dict(zip(tensors, grads, strict=True))}


def assert_equal(given, expected, of=""):
    assert given.keys() == expected.keys()
    for name, tensor in expected.items():
        at = f"{name} {of}"
        torch.testing.assert_close(given[name], tensor, rtol=0, atol=1e-10, msg=lambda text, at=at: f"{at}: {text}")


LIMITED = ("all terms", "no positions", "distance bias, Shaw")


@pytest.mark.parametrize(
    ("terms", "is_limited"), [*((terms, False) for terms in TERMS), *((terms, True) for terms in LIMITED)]
)
@pytest.mark.parametrize("sizes", SIZES)
def test_output_and_gradients_equal_the_definition(terms, is_limited, sizes):
    """Also if each query has a farthest distance of its own."""
    seg_len, key_len, reach = SIZES[sizes]
    tensors = arguments(TERMS[terms], seg_len=seg_len, key_len=key_len, reach=reach)
    limits = {"reach": reach}
    if is_limited:
        limits["farthest"] = farthest_of(B, seg_len, key_len)
    expected = with_gradients(attention.attend, tensors, **limits)
    for name, implementation in IMPLEMENTATIONS.items():
        assert_equal(with_gradients(implementation, tensors, **limits), expected, name)


def farthest_of(batch_size, seg_len, key_len):
    """The largest distance that each query sees, of which some limit nothing."""
    return torch.randint(key_len + 2, (batch_size, seg_len), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("names", [SHAW, RELATIVE, (*RELATIVE, "distance_bias")])
@pytest.mark.parametrize("position_keys", [1, L - 1, L + 2, 10])
def test_distances_without_a_position_key_score_as_the_farthest_with_one(names, position_keys):
    reach = 11
    tensors = arguments(names, seg_len=L, key_len=K, reach=reach)
    tensors["position_key"] = draw(H, position_keys, D, seed=8).requires_grad_()

    def with_every_key(query, key, value, terms, *, dropout):
        farther = terms.position_key[:, :1].expand(-1, reach - position_keys, -1)
        every = dataclasses.replace(terms, position_key=torch.cat([farther, terms.position_key], dim=1))
        return attention.attend(query, key, value, every)

    expected = with_gradients(with_every_key, tensors, reach=reach)
    for name, function in {"the definition": attention.attend, **IMPLEMENTATIONS}.items():
        assert_equal(with_gradients(function, tensors, reach=reach), expected, name)
        with torch.no_grad():
            found = call(function, **tensors, reach=reach)
        torch.testing.assert_close(found, expected["output"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("reach", [1, 7, 13])
@pytest.mark.parametrize("position_keys", [13, 5])
def test_slots_of_a_buffer_equal_the_definition_for_a_single_query(terms, reach, position_keys):
    seen, capacity = 13, 17  # slots 13 to 16 hold no key yet
    tensors = arguments(TERMS[terms], seg_len=1, key_len=capacity, reach=seen, position_keys=position_keys)
    slots = SlotAttention(seen - 1 - torch.arange(capacity), torch.tensor([reach]))

    of_seen_keys = {name: tensors[name][:, :, :seen] for name in ("key", "value")}
    nearest = {name: tensors[name][:, -reach:] for name in ("position_key", "distance_bias") if name in tensors}
    expected = call(attention.attend, **tensors | of_seen_keys | nearest, reach=reach)
    with torch.no_grad():
        found = call(slots, **tensors, reach=seen)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("terms", LIMITED)
def test_output_and_gradients_with_dropout_equal_the_definition_with_one_mask(implementation, terms):
    function, share = IMPLEMENTATIONS[implementation], 0.4
    tensors = arguments(TERMS[terms], seg_len=L, key_len=D, reach=D)  # K = D
    unit_vectors = torch.eye(D, dtype=torch.float64).expand(B, H, D, D)  # as values they give the probabilities

    def seeded(query, key, value, terms, *, dropout):
        torch.manual_seed(7)
        return function(query, key, value, terms, dropout=share)

    mask = call(seeded, **tensors | {"value": unit_vectors}, reach=D).detach() != 0

    def masked(query, key, value, terms, *, dropout):
        return attention.attend(query, key, unit_vectors, terms) * mask / (1 - share) @ value

    expected = with_gradients(masked, tensors, reach=D)
    assert 0 < mask.double().mean() < 1
    assert_equal(with_gradients(seeded, tensors, reach=D), expected)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_backends_drop_probabilities_and_scale_up_the_others(backend):
    query, key, *_ = draw_inputs(batch_size=40)
    value = torch.eye(K, dtype=query.dtype).expand(40, H, -1, -1)  # the output is the probabilities
    inputs = [query, key, value, None, None, None]
    whole = attend(*inputs, reach=K, backend=backend)
    dropped = attend(*inputs, reach=K, backend=backend, dropout=0.25)
    kept = dropped != 0
    assert kept[whole > 0].float().mean() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)
