"""The Compressive Transformer (model.arch = "compressive"), in training, evaluation and decoding."""

import numpy as np
import pytest
import torch

from tests import reference
from tests.core import oracle
from tests.core.builders import V, cut, decoded, draw_tokens, model_settings, read_segments, small_model
from tests.samples import sampled
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.measures.forecast import parameters_by_part
from txlcli.core.model.losses import Objective
from txlcli.core.reading.registry import make_reader

B, L, M, C, T = 2, 6, 7, 5, 53
RATE = 3
POSITIONS = {"relative": {"tie_biases": False}, "rotary": {"d_head": 12}, "alibi": {}, "t5": {}, "none": {}}
ALL_POSITIONS = {**POSITIONS, "shaw": {"n_positions": 3}}
LAYERS = [{"norm": "post"}, {"norm": "pre"}, {"norm": "pre_released", "norm_eps": 0.1}, {"block": "modern"}]
COMPRESSIONS = ["convolution", "mean", "max"]


def compressive(position="relative", *, sizes=ALL_POSITIONS, **changed):
    own = {"arch": "compressive", "compressed_len": C, "compression_rate": RATE}
    return small_model(**{**own, "position": position, **sizes[position], **changed})


def evaluation(**changed):
    return EvalSettings(**{"batch_size": B, "seg_len": L, "mem_len": M, "same_length": "off", **changed})


@pytest.mark.parametrize(
    ("layers", "position", "memory_start", "compression"),
    sampled(5, LAYERS, POSITIONS, ["empty", "zeros"], COMPRESSIONS),
)
def test_predictions_and_memories_equal_the_oracle(layers, position, memory_start, compression):
    model = compressive(position, memory_start=memory_start, compression=compression, **layers)
    tokens, lengths = draw_tokens(B, 28), [L, 11, 1, L, 4]  # L < M and L > M
    oracle.assert_equals_oracle(model, tokens, lengths, mem_len=M)


@pytest.mark.parametrize(("mem_len", "compressed_len"), [(3, 2), (4, 8), (M, 1), (11, 3)])
def test_other_lengths_in_evaluation_equal_the_oracle(mem_len, compressed_len):
    model, tokens, lengths = compressive(compressed_len=compressed_len), draw_tokens(B, 4 * L), [L] * 4
    oracle.assert_equals_oracle(model, tokens, lengths, mem_len=mem_len, max_distance=5)


@torch.no_grad()
def test_groups_of_c_positions_leave_and_the_others_stay():
    model = compressive(compressed_len=2)
    memory, sizes = model.first_memory(1, M), []
    for length in (4, 4, 3, 1, 1, 4, 6):
        _, memory = model(draw_tokens(1, length), memory, mem_len=M)
        sizes.append((memory[0].shape[1], memory[2].shape[1]))
    assert sizes == [(4, 0), (8, 0), (8, 1), (9, 1), (7, 2), (8, 2), (8, 2)]


@torch.no_grad()
def test_until_something_leaves_the_memory_it_is_transformer_xl():
    model, tokens = compressive(), draw_tokens(B, L)
    plain = small_model(position="relative", **ALL_POSITIONS["relative"])
    plain.load_state_dict(model.state_dict(), strict=False)
    for mem_len, lengths in ((M, [L]), (2 * L, [L // 2] * 2), (0, [L // 2] * 2)):
        expected, _ = read_segments(plain, tokens, lengths, mem_len=mem_len)
        given, memory = read_segments(model, tokens, lengths, mem_len=mem_len)
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)
        assert memory[2].shape[1] == 0
    assert memory[0].shape[1] == 0  # M = 0 keeps nothing


def test_parameters_of_the_convolution():
    plain = count_parameters(model_settings(), V)
    counts = [count_parameters(compressive(compression=name).settings, V) for name in COMPRESSIONS]
    shared = count_parameters(model_settings(tie_biases=False), V)
    assert counts == [shared + 2 * (RATE * 14 * 14 + 14), shared, shared]
    assert plain < shared
    assert parameters_by_part(compressive().settings, V)["compression"] == 2 * (RATE * 14 * 14 + 14)


READ, TARGETS = [1, 5, 9], [8, 2, 4]
SMALL = {"vocab_size": 11, "d_model": 4, "n_heads": 2, "d_head": 3, "d_inner": 5, "compressed_len": 2}
KINDS = [
    {},
    {"norm": "pre", "tie_biases": False},
    {"block": "modern", "norm": "pre_released", "norm_eps": 0.1},
    {"qk_norm": "rms", "position": "none"},
]


def gradients_by_oracle(model, memory):
    """The derivatives of the model's loss and of the reconstruction's, (..., 2), by parameter name."""
    settings = model.settings
    numbers = {name: array.astype(np.complex128) for name, array in oracle.numbers_of(model).items()}
    weights = oracle.weights_of(numbers, settings)
    past = [tensor[0].numpy() for tensor in memory]
    options = oracle.compressive_options(settings, mem_len=3)

    def losses():
        read = reference.forward_compressive(READ, past[:2], past[2:], weights, **options)
        return np.array([reference.cross_entropy_nats(read.log_probs, TARGETS).mean(), sum(read.losses)])

    return oracle.exact_gradients(numbers, losses)


@pytest.mark.parametrize("kind", sampled(3, KINDS), ids=str)
def test_the_gradient_of_the_loss_trains_the_model_and_that_of_the_reconstruction_the_convolution(kind):
    model = compressive(sizes={"relative": {}, "none": {}}, **{**SMALL, **kind}).train()
    _, memory = read_segments(model, torch.tensor([[6, 10, 0, 3, 7, 9]]), [3, 3], mem_len=3)
    objective, loss, _ = model.objective(torch.tensor([READ]), torch.tensor([TARGETS]), memory, Objective(mem_len=3))
    objective.backward()
    derivatives = gradients_by_oracle(model, memory)
    for name, parameter in model.named_parameters():
        of_model, of_reconstruction = derivatives[name][..., 0], derivatives[name][..., 1]
        is_convolution = ".compression." in name
        expected = of_reconstruction if is_convolution else of_model
        assert expected.any(), name
        assert of_model.any() != is_convolution  # a slot takes effect in later segments only
        np.testing.assert_allclose(parameter.grad, expected, rtol=1e-10, atol=1e-10, err_msg=name)
    assert loss < objective


def test_pooling_and_evaluation_have_no_reconstruction_loss():
    tokens = draw_tokens(B, 4 * L)
    for compression, training in (("mean", True), ("max", True), ("convolution", False)):
        model = compressive(compression=compression).train(training)
        _, memory = read_segments(model, tokens, [L] * 4, mem_len=M)
        objective, loss, _ = model.objective(tokens[:, :L], tokens[:, L : 2 * L], memory, Objective(mem_len=M))
        assert torch.equal(objective, loss)


def test_the_definition_of_attention_gives_the_same_outputs_and_gradients():
    tokens, results = draw_tokens(B, 4 * L), []
    for name in ("auto", "reference"):
        model = compressive().train()
        model = model.on(attention=name)
        _, memory = read_segments(model, tokens, [L] * 4, mem_len=M)
        objective, _, memory = model.objective(tokens[:, :L], tokens[:, -L:], memory, Objective(mem_len=M))
        objective.backward()
        results.append([objective, *memory, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("lengths", "memory_start", "position", "layers", "compression"),
    sampled(
        23,
        [(L, M, None), (1, M, 2), (11, 3, 8), (L, 40, None), (L, 0, None), (M, 1, 1)],
        ["empty", "zeros"],
        ALL_POSITIONS,
        LAYERS,
        COMPRESSIONS,
    ),
)
def test_the_reader_equals_the_model(lengths, memory_start, position, layers, compression):
    seg_len, mem_len, slots = lengths
    model = compressive(position, memory_start=memory_start, compression=compression, **layers)
    tokens, settings = draw_tokens(B, T), evaluation(seg_len=seg_len, mem_len=mem_len, compressed_len=slots)
    own = compressive(position, memory_start=memory_start, compression=compression, compressed_len=slots or C, **layers)
    first = model.first_memory(B, mem_len)  # a longer compressed memory does not begin with more zeros
    expected, _ = read_segments(own, tokens, cut(T, seg_len), mem_len=mem_len, memory=first)
    reader = make_reader(model, settings)
    for _ in range(2):
        torch.testing.assert_close(decoded(model, tokens, reader, [seg_len]), expected, rtol=0, atol=1e-10)
        reader.reset()
    last = reader.log_probs(reader.read_last(tokens, count=3))
    torch.testing.assert_close(last, expected[:, -3:], rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_window_is_one_segment_that_is_read_in_parts():
    tokens = draw_tokens(1, 300)
    whole, _ = read_segments(compressive(), tokens, [300], mem_len=0)
    model = compressive(memory_start="zeros")
    reader = make_reader(model, EvalSettings(seg_len=300, mem_len=0, batch_size=1))
    torch.testing.assert_close(model.log_probs(reader.read_last(tokens, count=3)), whole[:, -3:], rtol=0, atol=1e-10)


def test_a_memory_is_full_when_positions_and_slots_are():
    model, memory, full = compressive(), compressive().first_memory(B, M), []
    for part in draw_tokens(B, 7 * L).split(L, dim=1):
        full.append(model.memory_is_full(memory, M))
        _, memory = model(part, memory, mem_len=M)
    # Positions before each segment: 0, 6, 9, 9, ...; slots: 0, 0, 1, 3, 5.
    assert full == [False, False, False, False, True, True, True]
    assert model.memory_is_full(model.full_memory(B, M), M)
    assert model.memory_is_full(model.full_memory(B, 0), 0)
