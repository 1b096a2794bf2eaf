"""What a step needs, against a pencil and against a real step."""

import pytest
import torch

from tests.core.builders import V, draw_tokens, model_settings, rnn_settings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels import attention_lanes
from txlcli.core.kernels.private import onednn_has_bf16
from txlcli.core.measures import footprint
from txlcli.core.measures.footprint import parameters_by_part, step_bytes
from txlcli.core.model.registry import make_model

B, L, M = 3, 5, 7


def train_settings(**changed):
    return TrainSettings(**{"seg_len": L, "mem_len": M, "batch_size": B, "max_steps": 1, **changed})


def test_an_average_is_one_more_copy_of_the_weights():
    plain, averaged = (
        step_bytes(model_settings(), V, train_settings(average=kind)) for kind in ("none", "exponential")
    )
    assert plain["average"] == 0
    assert averaged["average"] == averaged["weights"] == plain["weights"]


def test_classifiers_that_exist_in_training_only_are_a_part_of_their_own():
    settings = model_settings(position="learned", n_positions=5, auxiliary_losses=True)
    parts = parameters_by_part(settings, V)
    assert parts["auxiliary classifiers"] == 3 * (V * settings.d_model + V)  # two tokens of layer 1, one of layer 2


def test_parameters_by_part_by_a_pencil():
    # N = 2, d = 14, H D = 33, F = 17; bands of 5, 6 and 8 ids, 14, 7 and 3 wide, each projected.
    settings = model_settings(cutoffs=(5, 11), div_val=2, tie_biases=False, norm="pre")
    assert parameters_by_part(settings, V) == {
        "embedding": 5 * 14 + 6 * 7 + 8 * 3 + 14 * (14 + 7 + 3),
        "softmax": V + 2 * 14 + 2 + 14 * 14,  # the head has a projection of its own
        "positions": 2 * 14 * 33 + 2 * 2 * 33,
        "attention": 2 * 4 * 14 * 33,
        "feed-forward": 2 * (2 * 14 * 17 + 17 + 14),
        "layer norms": 2 * 2 * 2 * 14 + 2 * 14,
    }


@pytest.mark.parametrize(
    ("changed", "states"), [({}, 2), ({"optimizer": "sgd"}, 0), ({"optimizer": "sgd", "momentum": 0.9}, 1)]
)
def test_weights_gradients_optimizer_and_memory_are_four_bytes_each(changed, states):
    settings = model_settings()
    needed = step_bytes(settings, V, train_settings(**changed))
    count = sum(parameters_by_part(settings, V).values())
    assert (needed["weights"], needed["gradients"], needed["optimizer"]) == (4 * count, 4 * count, 4 * count * states)
    assert needed["memory"] == 4 * 2 * B * M * 14


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(("norm", "size"), [("post", 2), ("pre", 4)])
def test_memory_that_only_products_read_takes_two_bytes_each(norm, size, precision):
    needed = step_bytes(model_settings(norm=norm), V, train_settings(precision=precision))
    assert needed["memory"] == size * 2 * B * M * 14


def saved_by_a_real_step(settings, lanes, precision, *, recompute=False, attention="auto"):
    """Bytes that autograd keeps for the backward pass of one segment with a full memory, the weights apart."""
    model = make_model(settings, V).train()
    model.recompute(recompute)
    if attention != "auto":
        model.attend_by(attention)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    memory = [torch.randn_like(tensor) for tensor in model.full_memory(lanes, M)]
    found = {}

    def keep(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
    ):
        hidden, _ = model(draw_tokens(lanes, L), memory, mem_len=M)
        model.losses(hidden, draw_tokens(lanes, L)).mean()
    return sum(tensor.untyped_storage().nbytes() for key, tensor in found.items() if key not in weights)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_activations_are_what_a_real_step_keeps(dropout, accumulate, precision):
    settings = model_settings(dropout=dropout, attention_dropout=dropout)
    needed = step_bytes(settings, V, train_settings(accumulate=accumulate, precision=precision))
    assert needed["activations"] == saved_by_a_real_step(settings, B // accumulate, precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "model",
    [
        model_settings(n_layers=5),
        model_settings(n_layers=5, norm="pre", dropout=0.1, attention_dropout=0.1, variational_dropout=True),
        model_settings(n_layers=5, position="learned", n_positions=5, auxiliary_losses=True),
        model_settings(n_layers=5, position="shaw", n_positions=5),
        rnn_settings("lstm", n_layers=5),
        rnn_settings("qrnn", n_layers=5),
    ],
)
def test_many_lanes_and_layers_are_counted_from_a_few(model, precision, monkeypatch):
    memory = {"mem_len": 0, "seg_len": L} if model.recurrent_state or model.auxiliary_losses else {}
    train = train_settings(batch_size=7, precision=precision, **memory)
    found = step_bytes(model, V, train)
    monkeypatch.setattr(footprint, "_on_a_line", lambda count, at, between: count(at))
    assert step_bytes(model, V, train) == found


def test_a_gpu_keeps_what_a_cpu_leaves_out_by_blocks_of_queries(monkeypatch):
    monkeypatch.setattr(attention_lanes, "CACHE_BYTES", 1)
    monkeypatch.setattr(attention_lanes, "FEWEST_QUERIES", 1)
    settings = model_settings()
    of_cpu, of_gpu = (
        step_bytes(settings, V, train_settings(), device=torch.device(kind))["activations"] for kind in ("cpu", "cuda")
    )
    assert of_cpu == saved_by_a_real_step(settings, B, "fp32")
    assert of_gpu - of_cpu == 4 * 2 * B * 3 * L * (L - 1) / 2  # N = 2, H = 3: the keys after each query


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recomputing_saves_probabilities_their_masks_and_logits(dropout):
    settings = model_settings(dropout=dropout, attention_dropout=dropout)
    kept, again = (step_bytes(settings, V, train_settings(recompute=recompute)) for recompute in (False, True))
    assert again["activations"] == saved_by_a_real_step(settings, B, "fp32", recompute=True)
    each = 4 + (dropout > 0)  # a byte for the mask
    probabilities = each * 2 * B * 3 * L * (L + M)  # N = 2, H = 3
    assert kept["activations"] - again["activations"] == probabilities + 4 * B * L * V
    assert {key: kept[key] for key in kept if key != "activations"} == {
        key: again[key] for key in again if key != "activations"
    }


@pytest.mark.parametrize("kind", ["reference", "sdpa"])
def test_another_kind_of_attention_keeps_other_tensors(kind):
    settings = model_settings(dropout=0.5, attention_dropout=0.5)
    needed = step_bytes(settings, V, train_settings(attention=kind))["activations"]
    assert needed == saved_by_a_real_step(settings, B, "fp32", attention=kind)
    assert needed > step_bytes(settings, V, train_settings())["activations"]


def test_flex_attention_keeps_as_many_scores_by_distance_as_others_keep_probabilities():
    kept, again = (step_bytes(model_settings(), V, train_settings(attention=kind)) for kind in ("flex", "auto"))
    assert kept["activations"] == again["activations"]


def test_a_wide_tail_costs_activations_as_often_as_it_is_needed():
    plain, cut = (
        step_bytes(model_settings(cutoffs=cutoffs), 100_000, train_settings())["activations"]
        for cutoffs in ((), (1000,))
    )
    assert cut < plain / 2


def test_a_model_too_large_for_any_machine_is_counted():
    needed = step_bytes(model_settings(n_layers=1, d_model=100_000_000), 7, train_settings())
    assert needed["activations"] > 1e10
    assert needed["weights"] > 8e10


def test_parameters_of_a_recurrent_model_by_a_pencil():
    lstm = 4 * 11 * (7 + 11 + 2) + 4 * 11 * (11 + 11 + 2) + 4 * 7 * (11 + 7 + 2)
    assert parameters_by_part(rnn_settings("lstm"), V) == {"embedding": V * 7, "softmax": V, "recurrent layers": lstm}


@pytest.mark.parametrize(("arch", "numbers"), [("lstm", 2 * (11 + 11 + 7)), ("qrnn", 11 + 2 * 7 + 11 + 7)])
def test_a_state_is_four_bytes_a_number(arch, numbers):
    # h and c of each layer; c of each layer and, in the first, the last two inputs.
    assert step_bytes(rnn_settings(arch), V, train_settings(mem_len=0))["memory"] == 4 * B * numbers


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_of_a_qrnn_are_what_a_real_step_keeps(precision):
    settings = rnn_settings("qrnn", dropout=0.5)
    needed = step_bytes(settings, V, train_settings(mem_len=0, precision=precision))
    assert needed["activations"] == saved_by_a_real_step(settings, B, precision)


def test_activations_of_an_lstm_are_counted_apart_from_the_workspace_of_its_kernel():
    plain, wide = (
        step_bytes(rnn_settings("lstm", d_hidden=width), V, train_settings(mem_len=0))["activations"]
        for width in (11, 110)
    )
    assert 0 < 2 * plain < wide


@pytest.mark.skipif(not onednn_has_bf16(), reason="oneDNN has no bf16 here")
def test_a_forecast_for_cuda_counts_the_casts_of_weights_that_autocast_keeps_there():
    wide = model_settings(d_model=192, d_inner=200)
    cpu, cuda = (
        step_bytes(wide, V, train_settings(precision="bf16", attention="reference"), device=torch.device(kind))
        for kind in ("cpu", "cuda")
    )
    per_layer = 3 * 33 * 192 + 2 * 200 * 192  # queries, keys, values; feed-forward. Distances have no gradient
    assert cuda["activations"] - cpu["activations"] == 2 * 2 * per_layer
