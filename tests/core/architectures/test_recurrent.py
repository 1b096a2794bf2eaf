"""LSTM and QRNN: layers compared with their definition, the carried state, all ways of reading."""

import numpy as np
import pytest
import torch

from tests import reference
from tests.core.attention_cases import draw
from tests.core.builders import V, draw_tokens, read_segments, rnn_settings, small_rnn
from tests.core.oracle import bands_of, numbers_of
from tests.core.training.runs import new_training, run
from tests.core.training.test_resume import assert_same_file, timeless
from txlcli.config.settings import EvalSettings
from txlcli.core.architectures.lstm import Lstm
from txlcli.core.architectures.qrnn import Qrnn
from txlcli.core.architectures.recurrent import RecurrentModel
from txlcli.core.architectures.registry import count_parameters, make_model, new_model
from txlcli.core.reading.registry import make_reader
from txlcli.core.training import checkpoint

B, L, T, D, W = 2, 5, 23, 7, 11
ARCHS = ("lstm", "qrnn")
CASES = {
    "lstm": ("lstm", {}),
    "qrnn": ("qrnn", {}),
    "qrnn of single inputs": ("qrnn", {"window": 1}),
    "lstm, adaptive": ("lstm", {"cutoffs": (5, 11), "div_val": 2, "d_embed": 8}),
    "qrnn, adaptive": ("qrnn", {"cutoffs": (5, 11)}),
    "one lstm layer, untied": ("lstm", {"n_layers": 1, "d_hidden": None, "tie_embeddings": False}),
}


def make_case(case, **changed):
    arch, more = CASES[case]
    return small_rnn(arch, **{**more, **changed})


def lstm_weights(layer):
    """The oracle's weights of an Lstm; PyTorch's rows are input gate, forget gate, candidate, output gate."""
    w_x, w_h, b_x, b_h = (weight.detach().numpy() for weight in layer.lstm.all_weights[0])
    names = ("input", "forget", "candidate", "output")
    pieces = zip(*(np.split(array, 4) for array in (w_x, w_h, b_x + b_h)), strict=True)
    return {name: (x.T, h.T, bias) for name, (x, h, bias) in zip(names, pieces, strict=True)}


def qrnn_weights(layer):
    weights, biases = (np.split(array.detach().numpy(), 3) for array in (layer.gates.weight, layer.gates.bias))
    by_input = [weight.T.reshape(layer.window, -1, weight.shape[0]) for weight in weights]  # (window, d, W)
    return dict(zip(("candidate", "forget", "output"), zip(by_input, biases, strict=True), strict=True))


@pytest.mark.parametrize("length", [1, L])
def test_an_lstm_layer_equals_the_loop_of_its_definition(length):
    layer = Lstm(inputs=D, width=W).double()
    inputs, hidden, cell = draw(B, length, D), draw(B, W, seed=2), draw(B, W, seed=4)
    read, (last, last_cell) = layer(inputs, (hidden, cell))
    for lane in range(B):
        given = (inputs[lane].numpy(), hidden[lane].numpy(), cell[lane].numpy())
        expected = reference.lstm_layer(*given, lstm_weights(layer))
        for result, wanted in zip((read, last, last_cell), expected, strict=True):
            np.testing.assert_allclose(result[lane].detach().numpy(), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, L])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_qrnn_layer_equals_the_loop_of_its_definition(window, length):
    layer = Qrnn(inputs=D, width=W, window=window).double()
    inputs, cell, past = draw(B, length, D), draw(B, W, seed=2), draw(B, window - 1, D, seed=4)
    read, (last, kept) = layer(inputs, (cell, past))
    for lane in range(B):
        given = (inputs[lane].numpy(), cell[lane].numpy(), past[lane].numpy())
        expected = reference.qrnn_layer(*given, qrnn_weights(layer))
        for result, wanted in zip((read, last, kept), expected, strict=True):
            np.testing.assert_allclose(result[lane].detach().numpy(), wanted, rtol=0, atol=1e-12)


def test_parameters_equal_a_calculation_by_hand():
    # d = 7, W = 11, three layers, V = 19: an LSTM has four matrices of inputs and state and two biases; a QRNN three.
    ends = 19 * 7 + 19
    lstm = 4 * 11 * (7 + 11 + 2) + 4 * 11 * (11 + 11 + 2) + 4 * 7 * (11 + 7 + 2)
    assert count_parameters(rnn_settings("lstm"), V) == ends + lstm
    qrnn = 3 * 11 * (3 * 7 + 1) + 3 * 11 * (11 + 1) + 3 * 7 * (11 + 1)
    assert count_parameters(rnn_settings("qrnn"), V) == ends + qrnn


@pytest.mark.parametrize("case", CASES)
def test_the_whole_model_equals_the_oracle(case):
    model, tokens = make_case(case), draw_tokens(1, L)
    numbers = numbers_of(model)
    weights = bands_of(numbers, model.settings)
    scale = model.settings.d_model**0.5  # which only the Transformer applies
    hidden = np.stack([reference.embed(token, weights) / scale for token in tokens[0].tolist()])
    for layer in model.layers:
        inputs = hidden.shape[1]
        if isinstance(layer, Lstm):
            width = layer.lstm.hidden_size
            hidden, *_ = reference.lstm_layer(hidden, np.zeros(width), np.zeros(width), lstm_weights(layer))
        else:
            width = layer.gates.out_features // 3
            past = np.zeros((layer.window - 1, inputs))
            hidden, *_ = reference.qrnn_layer(hidden, np.zeros(width), past, qrnn_weights(layer))
    expected = np.stack([reference.token_log_probs(row, weights) for row in hidden])
    np.testing.assert_allclose(read_segments(model, tokens, [L])[0][0].detach(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seg_len", [1, 64])
def test_the_reader_equals_the_model(case, seg_len):
    model, tokens = make_case(case), draw_tokens(B, T)
    expected, memory = read_segments(model, tokens, [T])
    assert all(after.untyped_storage().nbytes() == after.nbytes for after in memory)  # no larger storage is kept
    reader = make_reader(model, EvalSettings(seg_len=seg_len, mem_len=0, batch_size=B))
    for _ in range(2):
        result = [reader.log_probs(reader.read(part)) for part in tokens.split(seg_len, dim=1)]
        torch.testing.assert_close(torch.cat(result, dim=1), expected.detach(), rtol=0, atol=1e-10)
        reader.reset()
        last = reader.log_probs(reader.read_last(tokens))
        torch.testing.assert_close(last, expected[:, -1:].detach(), rtol=0, atol=1e-10)
        reader.reset()


def rnn_training(directory, arch, *, model=None, **changed):
    """With dropout everywhere, in two parts, across the end of the first epoch (step 3)."""
    if model is None:
        model = new_model(rnn_settings(arch, dropout=0.3, word_dropout=0.1), V, seed=1111, device=torch.device("cpu"))
    return new_training(directory, model=model, **{"mem_len": 0, "accumulate": 2, "max_steps": 6, **changed})


@pytest.mark.parametrize(("arch", "precision", "stop"), [("lstm", "fp32", 4), ("qrnn", "bf16", 2)])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, arch, precision, stop):
    whole = run(rnn_training(tmp_path / "whole", arch, precision=precision))
    first = run(rnn_training(tmp_path / "parts", arch, precision=precision), until=stop)
    saved = checkpoint.load(tmp_path / "parts/last.safetensors")
    settings = rnn_settings(arch, dropout=0.3, word_dropout=0.1)
    model = checkpoint.build_model(settings, V, saved)
    resumed = rnn_training(tmp_path / "parts", arch, precision=precision, model=model)
    torch.manual_seed(999)
    resumed.restore(saved)
    assert timeless(first + run(resumed)) == timeless(whole)
    assert_same_file(tmp_path / "whole", tmp_path / "parts")
    assert_same_file(tmp_path / "whole", tmp_path / "parts", "best.safetensors")


@pytest.mark.parametrize("arch", ARCHS)
def test_training_carries_the_state_between_segments_and_resets_it_after_an_epoch(tmp_path, arch):
    training = rnn_training(tmp_path, arch)
    training.update()
    assert any(tensor.count_nonzero() for tensor in training.memories[0])
    training.update()
    training.update()  # the end of the epoch
    after = [tensor.clone() for tensor in training.memories[0]]
    seen = []
    handle = training.model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[1][0].clone()))
    training.update()
    handle.remove()
    assert any(tensor.count_nonzero() for tensor in after)
    assert not any(tensor.count_nonzero() for tensor in seen)


@pytest.mark.parametrize("arch", ARCHS)
def test_dropout_acts_on_the_embedding_between_layers_and_on_the_output(arch):
    model, tokens = small_rnn(arch).train(), draw_tokens(B, L)

    def inputs_and_output():
        seen = []
        handles = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in model.layers]
        out, _ = model(tokens, model.first_memory(B, 0), mem_len=0)
        for handle in handles:
            handle.remove()
        return [bool(tensor.count_nonzero()) for tensor in (*seen, out)]

    everything = 1 - 2**-20
    assert inputs_and_output() == [True, True, True, True]
    for place, expected in [
        ("embedding_dropout", [False, True, True, True]),
        ("dropout", [True, False, False, True]),
        ("output_dropout", [True, True, True, False]),
    ]:
        dropout = getattr(model, place)
        dropout.rate = everything
        assert inputs_and_output() == expected
        dropout.rate = 0.0


@pytest.mark.parametrize("arch", ARCHS)
def test_initial_weights_are_small_and_biases_of_the_softmax_zero(arch):
    torch.manual_seed(1)
    model = make_model(rnn_settings(arch, d_model=64, d_hidden=96, cutoffs=(200,), d_embed=32, init_std=0.05), 1000)
    assert isinstance(model, RecurrentModel)
    assert model.embedding.tables[0].std().item() == pytest.approx(0.05, rel=0.05)
    assert model.embedding.projections["0"].std().item() == pytest.approx(0.01, rel=0.1)
    assert model.softmax.cluster_weight.std().item() == pytest.approx(0.05, rel=0.3)
    assert not any(bias.count_nonzero() for bias in (*model.softmax.biases, model.softmax.cluster_bias))
    fan = {"lstm": [96, 96, 64], "qrnn": [3 * 64, 96, 96]}[arch]
    for layer, size in zip(model.layers, fan, strict=True):
        for weight in layer.parameters():
            assert weight.abs().max() <= size**-0.5
            assert weight.abs().max() > 0.9 * size**-0.5
            assert weight.std() > 0
