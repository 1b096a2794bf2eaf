"""Triton's attention equals the definition, in its interpreter, and compiles to machine code without spilled registers.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported; several tiles take minutes (-m slow).
"""

import math
import os
from functools import partial

import pytest
import torch

from tests.core.attention_cases import call
from tests.core.builders import POSITIONS, draw_tokens, make_decoder, small_model
from tests.core.kernels import test_attention_equality as equality
from tests.core.kernels.test_attention_equality import with_gradients
from tests.core.kernels.triton_cases import LARGE, RELATIVE, SMALL, TERMS
from tests.samples import sampled
from txlcli.core.model import attention

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton interprets its kernels with TRITON_INTERPRET=1 only", allow_module_level=True)
triton = pytest.importorskip("triton", reason="Triton's interpreter runs the kernels")

from txlcli.core.kernels import attention_triton, triton_launch  # noqa: E402 - after the environment is known

B, H = 2, 3
arguments = partial(equality.arguments, batch_size=B)


def cast(tensors, dtype=torch.float32):
    """The tensors in another dtype, as projections lay them out: sequence, position, head."""
    given = {name: tensor.detach().to(dtype) for name, tensor in tensors.items()}
    for name in ("query", "key", "value"):
        given[name] = given[name].transpose(1, 2).contiguous().transpose(1, 2)
    return {name: tensor.requires_grad_() for name, tensor in given.items()}


def largest_differences(given, expected):
    assert given.keys() == expected.keys()
    return {name: (given[name].double() - tensor).abs().max().item() for name, tensor in expected.items()}


def compare(names, sizes, *, position_keys=None, dtype=torch.float32):
    seg_len, key_len, reach, width = sizes
    tensors = arguments(names, seg_len=seg_len, key_len=key_len, reach=reach, width=width, position_keys=position_keys)
    expected = with_gradients(attention.attend, tensors, reach=reach)
    given = with_gradients(attention_triton.attend, cast(tensors, dtype), reach=reach)
    return largest_differences(given, expected)


@pytest.mark.parametrize(("terms", "sizes"), sampled(2, TERMS, SMALL))
def test_output_and_gradients_equal_the_definition_in_float64(terms, sizes):
    for name, difference in compare(TERMS[terms], SMALL[sizes]).items():
        assert difference < 2e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("sizes", LARGE)
def test_output_and_gradients_of_several_tiles_equal_the_definition_in_float64(terms, sizes):
    for name, difference in compare(TERMS[terms], LARGE[sizes]).items():
        assert difference < 2e-5, name


def test_fp16_differs_by_its_rounding():
    """Triton's interpreter has no bf16."""
    for name, difference in compare(RELATIVE, SMALL["reach below K"], dtype=torch.float16).items():
        assert difference < 0.02, name


@pytest.mark.parametrize(("with_distance_bias", "position_keys"), sampled(2, [False, True], [1, 9, 33]))
def test_distances_without_a_position_key_score_as_the_farthest_with_one(position_keys, with_distance_bias):
    names = (*RELATIVE, "distance_bias") if with_distance_bias else RELATIVE
    for name, difference in compare(names, (21, 75, 50, 64), position_keys=position_keys).items():
        assert difference < 2e-5, name


@pytest.mark.parametrize("position_keys", [1, 9, 50])
def test_without_gradients_shared_position_keys_are_not_repeated(position_keys):
    tensors = arguments(RELATIVE, seg_len=21, key_len=75, reach=50, width=16, position_keys=position_keys)
    given = {name: tensor.detach() for name, tensor in cast(tensors).items()}
    expected = call(attention.attend, **tensors, reach=50)
    assert (call(attention_triton.attend, **given, reach=50) - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("sizes", "splits"), sampled(2, ["a single key", "a single query", "reach below L", "reach below K"], [2, 3, 7])
)
def test_several_programs_divide_the_keys_of_the_same_queries(sizes, splits):
    seg_len, key_len, reach, width = SMALL[sizes]
    tensors = arguments(RELATIVE, seg_len=seg_len, key_len=key_len, reach=reach, width=width)
    given = {name: tensor.detach() for name, tensor in cast(tensors).items()}
    expected = call(attention.attend, **tensors, reach=reach)
    assert (call(attention_triton.attend, **given, reach=reach, splits=splits) - expected).abs().max() < 1e-5


def test_a_gpu_with_idle_processors_divides_the_keys(monkeypatch):
    class Card:
        multi_processor_count = 132

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    launch, cuda = triton_launch.launch_of("forward", torch.bfloat16, 64), torch.device("cuda")
    assert triton_launch.splits_of(16, 2180, launch, cuda) == 8  # B 1, L 80, M 2100: four tiles of keys each
    assert triton_launch.splits_of(160, 2180, launch, cuda) == 2
    assert triton_launch.splits_of(264, 2180, launch, cuda) == 1
    assert triton_launch.splits_of(8, 80, launch, cuda) == 1
    assert triton_launch.splits_of(1, 10**6, launch, cuda) == triton_launch.MAX_SPLITS
    assert triton_launch.splits_of(1, 10**6, launch, torch.device("cpu")) == 1


@pytest.mark.parametrize(("terms", "rate"), sampled(2, ["all terms", "no positions"], [0.3, 1.0]))
def test_output_and_gradients_with_dropout_equal_the_definition_with_one_mask(terms, rate):
    keys = 37
    tensors = arguments(TERMS[terms], seg_len=21, key_len=keys, reach=keys, width=keys)
    unit_vectors = torch.eye(keys, dtype=torch.float64).expand(
        B, H, keys, keys
    )  # as values they give the probabilities

    def seeded(query, key, value, terms, *, dropout):
        torch.manual_seed(7)
        return attention_triton.attend(query, key, value, terms, dropout=rate)

    mask = (call(seeded, **cast(tensors | {"value": unit_vectors}), reach=keys).detach() != 0).double()

    def masked(query, key, value, terms, *, dropout):
        kept = attention.attend(query, key, unit_vectors, terms) * mask
        return (kept / (1 - rate) if rate < 1 else kept) @ value

    seen = torch.ones(21, keys).tril(keys - 21).bool()
    assert mask[..., seen].mean().item() == pytest.approx(1 - rate, abs=0.02)
    expected = with_gradients(masked, tensors, reach=keys)
    for name, difference in largest_differences(with_gradients(seeded, cast(tensors), reach=keys), expected).items():
        assert difference < 3e-5, name


def test_each_call_drops_others_and_one_seed_the_same():
    tensors = cast(arguments((), seg_len=4, key_len=40, reach=40, width=16))
    torch.manual_seed(1)
    first, second = (call(attention_triton.attend, **tensors, reach=40, dropout=0.5) for _ in range(2))
    torch.manual_seed(1)
    again = call(attention_triton.attend, **tensors, reach=40, dropout=0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("terms", ["all terms", "distance bias"])
def test_no_position_score_of_a_key_that_is_not_seen_counts(terms, monkeypatch):
    """Position scores of distances before the first key, and of padding, are NaN before the kernels run."""
    scores_of = attention_triton._position_scores
    seg_len, key_len, reach, width = 21, 34, 34, 16
    tensors = arguments(TERMS[terms], seg_len=seg_len, key_len=key_len, reach=reach, width=width)
    expected = with_gradients(attention.attend, tensors, reach=reach)

    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scores):
            column, query = torch.arange(scores.shape[3]), torch.arange(seg_len)[:, None]
            unused = (column < reach - 1 - (key_len - seg_len) - query) | (column >= reach)
            assert unused.any()
            return scores.masked_fill(unused, math.nan)

        @staticmethod
        def backward(ctx, grad):
            return grad

    monkeypatch.setattr(attention_triton, "_position_scores", lambda *given: Poison.apply(scores_of(*given)))
    for name, difference in largest_differences(
        with_gradients(attention_triton.attend, cast(tensors), reach=reach), expected
    ).items():
        assert difference < 2e-5, name  # not NaN


def test_a_second_backward_pass_is_rejected():
    tensors = cast(arguments(RELATIVE, seg_len=4, key_len=9, reach=9, width=16))
    total = call(attention_triton.attend, **tensors, reach=9).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="the first backward pass has overwritten the position scores"):
        total.backward()


def read_and_train(backend, changes):
    """Log-probabilities of three segments with memory, and the gradients of a step."""
    model = small_model(dtype=torch.float32, **changes).train()
    model.set_attention_backend(backend)
    tokens = draw_tokens(3, 15)
    memory, outputs = model.first_memory(3, 7), []
    for segment in tokens.split(5, dim=1):
        hidden, memory = model(segment, memory, mem_len=7)
        outputs.append(model.log_probs(hidden))
    log_probs = torch.cat(outputs, dim=1)
    log_probs[..., 3].sum().backward()
    return [log_probs, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("position", sampled(2, POSITIONS))
def test_a_model_trains_as_with_the_default(position):
    given, expected = (read_and_train(backend, POSITIONS[position]) for backend in ("triton", "auto"))
    for one, other in zip(given, expected, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("same_length", "max_distance"), sampled(2, ["m", "off"], [None, 8]))
def test_a_text_is_read_as_with_the_default(same_length, max_distance):
    """Segments and single tokens, while the buffer slides, and with positions shared by all far distances."""
    tokens, outputs = draw_tokens(2, 41), []
    for backend in ("triton", "auto"):
        model = small_model(dtype=torch.float32)
        model.set_attention_backend(backend)
        decoder = make_decoder(
            model, batch_size=2, seg_len=5, mem_len=9, same_length=same_length, max_distance=max_distance
        )
        lengths = [5] * 6 + [1] * 11
        outputs.append(torch.cat([decoder.read(part) for part in tokens.split(lengths, dim=1)], dim=1))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
