"""The Recurrent Memory Transformer (model.arch = "rmt"), in training, evaluation and decoding."""

import numpy as np
import pytest
import torch

from tests import reference
from tests.core import oracle
from tests.core.builders import V, decoded, draw_tokens, model_settings, read_segments, small_model
from tests.samples import sampled
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.reading.registry import make_reader

B, L, T = 2, 5, 23
POSITIONS = {"relative": {"tie_biases": False}, "rotary": {"d_head": 12}, "alibi": {}, "t5": {}, "none": {}}
LAYERS = [{"norm": "post"}, {"norm": "pre"}, {"norm": "pre_released", "norm_eps": 0.1}, {"block": "modern"}]


def with_memory_tokens(position="relative", *, sizes=POSITIONS, **changed):
    own = {"arch": "rmt", "segment_len": L, "n_memory_tokens": 3}
    return small_model(**{**own, "position": position, **sizes[position], **changed})


def by_oracle(weights, settings, row):
    """Log-probabilities (T, V) of one text, and the state after its last complete segment."""
    state, parts = weights["first_state"], []
    options = oracle.options_of(settings)
    for first in range(0, len(row), settings.segment_len):
        segment = row[first : first + settings.segment_len]
        log_probs, written = reference.forward_with_tokens_of_memory(segment, state, weights, **options)
        parts.append(log_probs)
        state = written if len(segment) == settings.segment_len else state
    return np.concatenate(parts), state


@pytest.mark.parametrize(("layers", "position"), sampled(2, LAYERS, POSITIONS))
def test_predictions_and_state_equal_the_oracle(layers, position):
    model, tokens = with_memory_tokens(position, **layers), draw_tokens(B, 13)
    given, (state, left) = read_segments(model, tokens, [13])
    weights = oracle.weights_of(oracle.numbers_of(model), model.settings)
    for lane, row in enumerate(tokens.tolist()):
        expected, expected_state = by_oracle(weights, model.settings, row)
        np.testing.assert_allclose(given[lane].detach(), expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(state[lane], expected_state, rtol=0, atol=1e-10)
    assert torch.equal(left, tokens[:, 10:])


READ, TARGETS = [1, 5, 9, 6, 10, 0], [8, 2, 4, 7, 3, 1]
KINDS = [{}, {"norm": "pre", "tie_biases": False}, {"block": "modern", "norm": "pre_released", "position": "none"}]


@pytest.mark.parametrize("kind", sampled(3, KINDS), ids=str)
def test_the_gradient_through_all_segments_equals_the_oracles_exact_derivative(kind):
    small = {"vocab_size": 11, "d_model": 4, "n_heads": 2, "d_head": 3, "d_inner": 5, "segment_len": 2}
    model = with_memory_tokens(sizes={"relative": {}, "none": {}}, **{**small, "n_memory_tokens": 1, **kind})
    hidden, _ = model(torch.tensor([READ]), model.first_memory(1, 0), mem_len=0)
    model.losses(hidden, torch.tensor([TARGETS])).sum().backward()
    numbers = {name: array.astype(np.complex128) for name, array in oracle.numbers_of(model).items()}
    weights = oracle.weights_of(numbers, model.settings)

    def loss():
        return reference.cross_entropy_nats(by_oracle(weights, model.settings, READ)[0], TARGETS).sum()

    derivatives = oracle.exact_gradients(numbers, loss)
    for name, parameter in model.named_parameters():
        expected = derivatives[name]
        assert expected.any(), name
        np.testing.assert_allclose(parameter.grad, expected, rtol=1e-10, atol=1e-10, err_msg=name)


def test_gradients_pass_through_the_segments_of_a_call_and_end_between_calls():
    model, tokens = with_memory_tokens(), torch.arange(15)[None]
    hidden, _ = model(tokens, model.first_memory(1, 0), mem_len=0)
    hidden[:, 10:].square().sum().backward()
    assert model.embedding.tables[0].grad.abs().sum(-1).nonzero().flatten().tolist() == list(range(15))
    model.zero_grad()
    _, memory = model(tokens[:, :10], model.first_memory(1, 0), mem_len=0)
    assert not memory[0].requires_grad
    hidden, _ = model(tokens[:, 10:], memory, mem_len=0)
    hidden.square().sum().backward()
    assert model.embedding.tables[0].grad.abs().sum(-1).nonzero().flatten().tolist() == list(range(10, 15))


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[5, 5, 5, 5, 3], [1] * 23, [7, 1, 2, 11, 2], [20, 3]], ids=str)
def test_how_a_text_is_cut_into_calls_makes_no_difference(lengths):
    model, tokens = with_memory_tokens(), draw_tokens(B, T)
    expected, memory = read_segments(model, tokens, [T])
    given, memory_of_parts = read_segments(model, tokens, lengths)
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(memory_of_parts, memory, rtol=0, atol=1e-10)


@pytest.mark.parametrize("position", ["relative", "rotary"])
def test_readers_equal_the_model(position):
    model, tokens = with_memory_tokens(position), draw_tokens(B, T)
    with torch.no_grad():
        expected, _ = read_segments(model, tokens, [T])
    for by_tokens, length in ((False, 7), (True, 1)):
        settings = EvalSettings(seg_len=7, mem_len=0, same_length="off", batch_size=B)
        reader = make_reader(model, settings, by_tokens=by_tokens)
        for _ in range(2):
            torch.testing.assert_close(decoded(model, tokens, reader, [length]), expected, rtol=0, atol=1e-10)
            reader.reset()
    window = make_reader(model, EvalSettings(seg_len=T, mem_len=0, batch_size=B))
    last = window.log_probs(window.read_last(tokens, count=2))
    torch.testing.assert_close(last, expected[:, -2:], rtol=0, atol=1e-10)


def test_the_first_state_is_the_only_parameter_of_its_own():
    plain = count_parameters(model_settings(), V)
    assert count_parameters(model_settings(arch="rmt", segment_len=L, n_memory_tokens=3), V) == plain + 3 * 14
