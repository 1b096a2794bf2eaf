"""Triton's attention equals the definition, in its interpreter, and compiles to machine code without spilled registers.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported; several tiles take minutes (-m slow).
"""

import dataclasses
import itertools
import math
import os
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.core import tape
from tests.core.attention_cases import call, draw
from tests.core.builders import POSITIONS, draw_tokens, make_decoder, read_parts, small_model
from tests.core.kernels import test_attention_equality as equality
from tests.core.kernels.test_attention_equality import RELATIVE, TERMS, with_gradients
from tests.core.tape import Graphs
from tests.core.training.test_step import ADAPTIVE, ModelAsOnCuda, assert_close, ids_of, trained
from tests.samples import sampled
from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.modes import use_row_multiple
from txlcli.core.model import attention, backends

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton interprets its kernels with TRITON_INTERPRET=1 only", allow_module_level=True)
triton = pytest.importorskip("triton", reason="Triton's interpreter runs the kernels")

from txlcli.core.kernels import attention_triton  # noqa: E402 - after the environment is known

B, H = 2, 3
SMALL = {  # L, K, n, D
    "a single key": (1, 1, 1, 16),
    "a single query": (1, 43, 43, 16),
    "no memory": (5, 5, 5, 41),
    "reach below L": (21, 34, 9, 24),
    "reach below K": (21, 75, 50, 64),
    "as far as TF's memory": (16, 33, 18, 96),
}
LARGE = {
    "several tiles": (130, 203, 203, 64),
    "several tiles, reach below K": (130, 203, 150, 41),
    "several tiles, no memory": (130, 130, 130, 128),
    "several tiles, reach below L": (130, 171, 70, 16),
}
arguments = partial(equality.arguments, batch_size=B)


def cast(tensors, dtype=torch.float32):
    """The tensors in another dtype, as projections lay them out: sequence, position, head."""
    given = {name: tensor.detach().to(dtype) for name, tensor in tensors.items()}
    for name in ("query", "key", "value"):
        given[name] = given[name].transpose(1, 2).contiguous().transpose(1, 2)
    return {name: tensor.requires_grad_() for name, tensor in given.items()}


def largest_differences(given, expected):
    assert given.keys() == expected.keys()
    differences = {name: (given[name].double() - tensor).abs().max().item() for name, tensor in expected.items()}
    print(f"largest difference: {max(differences.values()):.1e}")  # pytest -s shows it
    return differences


def assert_equals_definition(names, sizes, *, tolerance=2e-5, position_keys=None, dtype=torch.float32, **how):
    """Compare output and gradients with those of the definition in float64."""
    seg_len, key_len, reach, width = sizes
    splits = how.pop("splits", 0)
    tensors = arguments(names, seg_len=seg_len, key_len=key_len, reach=reach, width=width, position_keys=position_keys)
    expected = with_gradients(attention.attend, tensors, reach=reach, **how)
    triton_attend = partial(attention_triton.attend, splits=splits)
    given = with_gradients(triton_attend, cast(tensors, dtype), reach=reach, **how)
    for name, difference in largest_differences(given, expected).items():
        assert difference < tolerance, name


WAYS = {  # dtype, tolerance, limits
    "fp32": (torch.float32, 2e-5, False),
    "fp32, limited": (torch.float32, 2e-5, True),
    "fp16, limited": (torch.float16, 0.05, True),  # the interpreter has no bf16
}
EVERY_LARGE = [pytest.param(*case, "fp32", marks=pytest.mark.slow) for case in itertools.product(TERMS, LARGE)]


@pytest.mark.parametrize(("terms", "sizes", "way"), [*sampled(7, TERMS, SMALL, WAYS), *EVERY_LARGE])
def test_output_and_gradients_equal_the_definition_in_float64(terms, sizes, way):
    """Also if each query has a farthest distance of its own."""
    dtype, tolerance, is_limited = WAYS[way]
    sizes = {**SMALL, **LARGE}[sizes]
    limits = {"farthest": equality.farthest_of(B, *sizes[:2])} if is_limited else {}
    assert_equals_definition(TERMS[terms], sizes, tolerance=tolerance, dtype=dtype, **limits)


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("terms", ["all terms", "no positions"])
def test_tiles_of_keys_that_a_query_does_not_see_add_nothing(terms, splits):
    farthest = equality.farthest_of(B, 130, 203) % 9
    assert_equals_definition(TERMS[terms], LARGE["several tiles"], splits=splits, farthest=farthest)


@pytest.mark.parametrize(("with_distance_bias", "position_keys"), sampled(2, [False, True], [1, 9, 33]))
def test_distances_without_a_position_key_score_as_the_farthest_with_one(position_keys, with_distance_bias):
    names = (*RELATIVE, "distance_bias") if with_distance_bias else RELATIVE
    assert_equals_definition(names, (21, 75, 50, 64), position_keys=position_keys)


@pytest.mark.parametrize("position_keys", [1, 9, 50])
def test_without_gradients_shared_position_keys_are_not_repeated(position_keys):
    tensors = arguments(RELATIVE, seg_len=21, key_len=75, reach=50, width=16, position_keys=position_keys)
    given = {name: tensor.detach() for name, tensor in cast(tensors).items()}
    expected = call(attention.attend, **tensors, reach=50)
    with torch.no_grad():
        found = call(attention_triton.attend, **given, reach=50)
    assert (found - expected).abs().max() < 1e-5


def test_a_gpu_with_idle_processors_divides_the_keys():
    splits_of, processors = attention_triton.splits_of, 132
    assert splits_of(16, 2180 // 64, processors) == 8  # B 1, L 80, M 2100: four tiles of keys each
    assert splits_of(100, 2180 // 64, processors) == 2
    assert splits_of(160, 2180 // 64, processors) == 1
    assert splits_of(8, 80 // 64, processors) == 1
    assert splits_of(1, 10**6, processors) == attention_triton.MAX_SPLITS
    assert splits_of(1, 10**6, 0) == 1


@pytest.mark.parametrize(("sizes", "splits"), sampled(2, ["a single query", "reach below L", "reach below K"], [2, 8]))
def test_several_programs_divide_the_keys_of_the_same_queries(sizes, splits):
    """As on a GPU with that many idle processors: the output, and the gradients, which read the log normalizers."""
    assert_equals_definition(RELATIVE, SMALL[sizes], splits=splits)


@pytest.mark.parametrize(("terms", "splits", "position_keys"), sampled(3, TERMS, [1, 2, 8], [None, 5]))
def test_a_token_sees_the_slots_of_a_buffer_as_the_definition(terms, splits, position_keys):
    """Slots in any order, some without a key, some too far away; far distances share a position key."""
    capacity, seen, reach, width = 203, 150, 117, 41
    tensors = {
        name: tensor.detach()
        for name, tensor in arguments(
            TERMS[terms], seg_len=1, key_len=seen, reach=reach, width=width, position_keys=position_keys
        ).items()
    }
    expected = call(attention.attend, **tensors, reach=reach)

    slots = torch.randperm(capacity, generator=torch.Generator().manual_seed(5))[:seen]
    distances = torch.full((capacity,), -1).index_copy(0, slots, torch.arange(seen - 1, -1, -1))
    buffers = [torch.full((B, capacity, H, width), math.nan) for _ in range(2)]  # what no slot holds is not read
    for buffer, name in zip(buffers, ("key", "value"), strict=True):
        buffer[:, slots] = tensors[name].transpose(1, 2).float()
    names = ("position_key", "content_bias", "position_bias", "distance_bias")
    terms = [tensors[name].float() if name in tensors else None for name in names]
    query = tensors["query"].transpose(1, 2).float()
    given = attention_triton.attend_token(query, *buffers, *terms, distances, torch.tensor([reach]), splits)
    assert (given.transpose(1, 2) - expected).abs().max() < 1e-5


def operands(*, position_scores=True, dropped=0):
    """Arguments of `txl::attention`: L 5, K 13, n 11."""
    rows = [draw(B, count, H, 16, seed=count).float().requires_grad_() for count in (5, 13, 13)]
    scores = draw(H, B, 5, 16, seed=4).float().requires_grad_() if position_scores else None
    seed = torch.tensor([7]) if dropped else None
    return (*rows, scores, seed, 11, 11 if position_scores else 0, dropped, 0)


@pytest.mark.parametrize("given", [{}, {"position_scores": False}, {"dropped": 2**31}], ids=str)
def test_the_operators_follow_the_rules_of_pytorch(given):
    torch.library.opcheck(attention_triton.attention, operands(**given))


def test_the_operator_of_tokens_follows_the_rules_of_pytorch():
    rows = [draw(B, count, H, 16) for count in (1, 13, 13)]
    rest = (None, None, None, None, torch.arange(13), torch.tensor([13]), 2)
    torch.library.opcheck(attention_triton.attend_token, (*(tensor.float() for tensor in rows), *rest))


def kept_weights(query, key, reach, rate):
    """The attention weights (B, H, L, K) that the kernel keeps with the next seed; K is at most D."""
    count, width = key.shape[2:]
    units = torch.eye(count, width).expand(*key.shape[:2], -1, -1)  # as values they give the weights
    query, key = query.detach().float(), key.detach().float()
    return attention_triton.attend(query, key, units, ScoreTerms(reach), dropout=rate)[..., :count] != 0


def attend_masked(query, key, value, terms, *, dropout):
    """The definition, without the attention weights that the kernel drops with the next seed."""
    if not dropout:
        return attention.attend(query, key, value, terms)
    kept = kept_weights(query, key, terms.reach, dropout)
    units = torch.eye(*key.shape[2:], dtype=query.dtype).expand_as(key)
    weights = attention.attend(query, key, units, terms)[..., : key.shape[2]] * kept
    return (weights / (1 - dropout) if dropout < 1 else weights) @ value


@pytest.mark.parametrize(("terms", "rate"), sampled(2, ["all terms", "no positions"], [0.3, 1.0]))
def test_output_and_gradients_with_dropout_equal_the_definition_with_one_mask(terms, rate):
    keys, results = 37, []
    tensors = arguments(TERMS[terms], seg_len=21, key_len=keys, reach=keys, width=keys)
    for function, given in ((attention_triton.attend, cast(tensors)), (attend_masked, tensors)):
        torch.manual_seed(7)
        results.append(with_gradients(function, given, reach=keys, dropout=rate))
    for name, difference in largest_differences(*results).items():
        assert difference < 3e-5, name
    seen = torch.ones(21, keys).tril(keys - 21).bool()
    kept = kept_weights(tensors["query"], tensors["key"], keys, rate)[..., seen].float()
    assert kept.mean().item() == pytest.approx(1 - rate, abs=0.02)
    if rate < 1:  # each sequence and each head has a mask of its own
        assert len(kept.flatten(0, 1).unique(dim=0)) == B * H


def test_each_call_drops_others_and_one_seed_the_same():
    tensors = cast(arguments((), seg_len=4, key_len=40, reach=40, width=16))
    torch.manual_seed(1)
    first, second = (call(attention_triton.attend, **tensors, reach=40, dropout=0.5) for _ in range(2))
    torch.manual_seed(1)
    again = call(attention_triton.attend, **tensors, reach=40, dropout=0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_no_position_score_of_a_key_that_is_not_seen_counts():
    """Position scores of distances before the first key, and of padding, are NaN; their gradients are zero."""
    *rows, scores, seed, reach, columns, dropped, splits = operands()
    column, query = torch.arange(16), torch.arange(5)[:, None]
    unused = (column < reach - 1 - 8 - query) | (column >= reach)
    poisoned = scores.detach().masked_fill(unused, math.nan).requires_grad_()
    results = []
    for given in (scores, poisoned):
        out, _ = attention_triton.attention(*rows, given, seed, reach, columns, dropped, splits)
        results.append([out, *torch.autograd.grad(out.square().sum(), [*rows, given])])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert not results[0][-1][:, :, unused].any()
    assert results[0][-1][:, :, ~unused].all()


def read_and_train(backend, changes):
    """Log-probabilities of three segments with memory, and the gradients of a step."""
    model = small_model(dtype=torch.float32, **changes).train()
    model = model.on(attention=backend)
    tokens = draw_tokens(3, 15)
    memory, outputs = model.first_memory(3, 7), []
    for segment in tokens.split(5, dim=1):
        hidden, memory = model(segment, memory, mem_len=7)
        outputs.append(model.log_probs(hidden))
    log_probs = torch.cat(outputs, dim=1)
    log_probs[..., 3].sum().backward()
    return [log_probs, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("position", sampled(3, POSITIONS))
def test_a_model_trains_as_with_the_definition(position):
    given, expected = (read_and_train(backend, POSITIONS[position]) for backend in ("auto", "reference"))
    for one, other in zip(given, expected, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class WithTheirMasks(ModelAsOnCuda):
    """Transformer-XL by the definition, with the masks of compiled layers."""

    def make_backend(self, chosen):
        drop = backends.make_compiled_backend(backends.FAST, joins_heads=False, pads_rows=False).dropout
        of_relu = lambda hidden, *rate, **variational: drop(F.relu(hidden), *rate, **variational)  # noqa: E731
        backend = super().make_backend(chosen)
        return dataclasses.replace(backend, attend=attend_masked, dropout=drop, relu_dropout=of_relu)


ADAPTED = {**ADAPTIVE, "dropout": 0.0}
BURST = {"batch_size": 8, "ids": ids_of("with a burst of rare ids"), "optimizer": "sgd"}
PENALTIES = {"activation_penalty": 2.0, "slowness_penalty": 1.0}
REGULARISED = {"dropout": 0.3, "attention_dropout": 0.3, "variational_dropout": True}
REGULARISED |= {"d_model": 16, "d_inner": 24, "d_head": 13}  # padding changes masks; D is at least K
SMALL_MODEL = {"n_layers": 1, "n_heads": 1}


@pytest.mark.parametrize(
    ("model_changes", "changes", "replays", "compiler"),
    [
        pytest.param(*case, id=name, marks=() if name == "traced, regularised" else pytest.mark.slow)
        for name, case in {
            "traced, adaptive": ({**ADAPTED, **SMALL_MODEL}, BURST | {"steps": 9}, 11, "aot_eager"),
            "traced, regularised": ({**REGULARISED, **SMALL_MODEL}, {"steps": 6}, 7, "aot_eager"),
            "the paper's": ({}, {}, 23, None),
            "adaptive": (ADAPTED, BURST, 27, None),
            "adaptive, an empty tail": (ADAPTED, BURST | {"ids": ids_of("without the last tail")}, 31, None),
            "regularised": (REGULARISED, {}, 23, None),
            "jittered": ({}, {"reread_len": 3, "seg_len_jitter": True, "optimizer": "sgd", **PENALTIES}, 25, None),
        }.items()
    ],
)
def test_compiled_steps_equal_those_of_the_definition(model_changes, changes, replays, compiler):
    """Twenty steps with the same masks, captured once the memory is full, padded; fewer where kernels are not fused."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    graphs = Graphs(tape.call_again)
    expected = trained(model_changes, attention="reference", cls=WithTheirMasks, **changes)
    with (
        use_row_multiple(8),
        torch._inductor.config.patch(fallback_random=True),
        torch.compiler.set_stance("default", force_backend=compiler),
    ):
        given = trained(model_changes, capture_graph=graphs, compile="on", **changes)
    assert graphs.replays == replays
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 5  # embedding, distances, layer, output, loss
    assert_close(given, expected, of_numbers=1e-6, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("same_length", "max_distance"), sampled(2, ["m", "off"], [None, 8]))
def test_a_text_is_read_as_with_the_definition(same_length, max_distance):
    """Segments and single tokens, while the buffer slides, and with positions shared by all far distances."""
    tokens, outputs = draw_tokens(2, 26), []
    for backend in ("auto", "reference"):
        model = small_model(dtype=torch.float32)
        model = model.on(attention=backend)
        decoder = make_decoder(
            model, batch_size=2, seg_len=5, mem_len=9, same_length=same_length, max_distance=max_distance
        )
        lengths = [5] * 3 + [1] * 11
        outputs.append(read_parts(decoder, tokens, lengths))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
