"""Memory of a training step, compared with calculations by hand and with real steps."""

import contextlib
import dataclasses

import pytest
import torch

from tests.core.builders import V, model_settings, rnn_settings
from tests.samples import sampled
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import make_model
from txlcli.core.kernels.private import onednn_has_bf16, tensors_without_data
from txlcli.core.measures.forecast import parameters_by_part, step_bytes
from txlcli.core.model.losses import Objective

B, L, M = 3, 5, 7


def deep(**changed):
    return model_settings(n_layers=5, **changed)


def train_settings(**changed):
    return TrainSettings(**{"seg_len": L, "mem_len": M, "batch_size": B, "max_steps": 1, **changed})


def activations(model, vocab_size=V, *, device="cpu", **changed):
    return step_bytes(model, vocab_size, train_settings(**changed), device=torch.device(device)).activations


def saved_by_a_step(settings, vocab_size=V, *, with_data=True, **changed):
    """Return the bytes that autograd keeps for the backward pass of one segment with a full memory, without weights."""
    train, saved = train_settings(**changed), {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if tensor.layout == torch.strided and id(storage) not in weights:
            saved[id(storage)] = storage
        return tensor

    with contextlib.nullcontext() if with_data else tensors_without_data():
        model = make_model(settings, vocab_size).train()
        model = model.on(recompute=train.recompute)
        if train.attention != "auto":
            model = model.on(attention=train.attention)
        weights = {id(parameter.untyped_storage()) for parameter in model.parameters()}
        batch_size = train.batch_size // train.accumulate
        tokens, targets = (torch.zeros(batch_size, train.seg_len, dtype=torch.int64) for _ in range(2))
        with torch.autocast("cpu", torch.bfloat16, enabled=train.precision == "bf16"):
            memory = model.full_memory(batch_size, train.mem_len)
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                graph = model.objective(tokens, targets, memory, Objective(mem_len=train.mem_len))
    assert graph
    return sum(storage.nbytes() for storage in saved.values())


def test_parameters_by_part_equal_a_calculation_by_hand():
    # N = 2, d = 14, H D = 33, F = 17; bands of 5, 6 and 8 ids, 14, 7 and 3 wide, each projected.
    settings = model_settings(cutoffs=(5, 11), div_val=2, tie_biases=False, norm="pre")
    assert parameters_by_part(settings, V) == {
        "embedding": 5 * 14 + 6 * 7 + 8 * 3 + 14 * (14 + 7 + 3),
        "softmax": V + 2 * 14 + 2 + 14 * 14,  # the head has a projection of its own
        "positions": 2 * 14 * 33 + 2 * 2 * 33,
        "attention": 2 * 4 * 14 * 33,
        "feed-forward": 2 * (2 * 14 * 17 + 17 + 14),
        "norms": 2 * 2 * 2 * 14 + 2 * 14,
    }
    lstm = 4 * 11 * (7 + 11 + 2) + 4 * 11 * (11 + 11 + 2) + 4 * 7 * (11 + 7 + 2)
    assert parameters_by_part(rnn_settings("lstm"), V) == {"embedding": V * 7, "softmax": V, "other layers": lstm}
    auxiliary = model_settings(position="learned", n_positions=5, auxiliary_losses=True)
    in_training_only = parameters_by_part(auxiliary, V)["auxiliary classifiers"]
    assert in_training_only == 3 * (V * auxiliary.d_model + V)  # two tokens of layer 1, one of layer 2


@pytest.mark.parametrize(
    ("changed", "states", "averages"),
    [({}, 2, 0), ({"optimizer": "sgd"}, 0, 0), ({"optimizer": "sgd", "momentum": 0.9, "average": "exponential"}, 1, 1)],
)
def test_weights_gradients_optimizer_and_memory_take_four_bytes_per_value(changed, states, averages):
    needed = step_bytes(model_settings(), V, train_settings(**changed))
    size = 4 * sum(parameters_by_part(model_settings(), V).values())
    assert (needed.weights, needed.gradients) == (size, size)
    assert (needed.optimizer, needed.average) == (states * size, averages * size)
    assert needed.memory == 4 * 2 * B * M * 14
    assert needed.to_json()["total"] == sum(vars(needed).values())
    assert step_bytes(model_settings(), V, train_settings(**changed, precision="tf32")) == needed


def test_muon_keeps_one_state_of_each_matrix_of_the_layers_and_two_of_all_other_parameters():
    count = sum(parameters_by_part(model_settings(), V).values())
    matrices = 2 * (5 * 14 * 33 + 2 * 14 * 17)
    assert step_bytes(model_settings(), V, train_settings(optimizer="muon")).optimizer == 4 * (2 * count - matrices)


@pytest.mark.parametrize(("precision", "processes", "copies"), [("bf16", 1, 0), ("fp32", 2, 0), ("bf16", 2, 1)])
def test_gradients_that_are_sent_in_bf16_are_a_second_copy(precision, processes, copies):
    needed = step_bytes(model_settings(), V, train_settings(exchange_precision=precision), processes=processes)
    assert 2 * needed.buckets == copies * needed.gradients


@pytest.mark.parametrize(
    ("settings", "changed", "size"),
    [
        *((model_settings(), {"precision": precision}, 2 * 2 * M * 14) for precision in ("bf16", "fp16")),
        *((model_settings(norm="pre"), {"precision": precision}, 4 * 2 * M * 14) for precision in ("bf16", "fp16")),
        *((model_settings(window=window), {}, 4 * 2 * kept * 14) for window, kept in ((4, 3), (M + 1, M), (100, M))),
        (rnn_settings("lstm"), {"mem_len": 0}, 4 * 2 * (11 + 11 + 7)),  # h and c of each layer
        (rnn_settings("qrnn"), {"mem_len": 0}, 4 * (11 + 2 * 7 + 11 + 7)),  # c, and the last two inputs of the first
    ],
)
def test_memory_takes_four_bytes_per_value_and_two_if_only_products_read_it(settings, changed, size):
    assert step_bytes(settings, V, train_settings(**changed)).memory == B * size


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("changed", "train"),
    [
        ({}, {"accumulate": 3}),
        ({"dropout": 0.5, "attention_dropout": 0.5}, {}),
        ({"dropout": 0.5, "attention_dropout": 0.5}, {"attention": "reference"}),
        *(({"window": window}, {}) for window in (4, M + 1, 100)),
    ],
    ids=str,
)
def test_activations_equal_those_of_a_real_step(changed, train, precision):
    settings = model_settings(**changed)
    assert activations(settings, **train, precision=precision) == saved_by_a_step(
        settings, **train, precision=precision
    )


COMPRESSIVE = {"arch": "compressive", "compressed_len": 3}


@pytest.mark.parametrize(
    ("settings", "precision"),
    sampled(
        3,
        [
            model_settings(dropout=0.5, block="modern"),
            model_settings(dropout=0.5, block="modern", norm="pre"),
            model_settings(dropout=0.5, gating="gru", norm="pre"),
            model_settings(dropout=0.5, **COMPRESSIVE, compression_rate=L),
            model_settings(dropout=0.5, **COMPRESSIVE, compression_rate=L, norm="pre"),
            model_settings(dropout=0.5, **COMPRESSIVE, compression="max"),
            model_settings(dropout=0.5, arch="rmt", segment_len=L, n_memory_tokens=2),
            model_settings(dropout=0.5, arch="rmt", segment_len=2, n_memory_tokens=2, norm="pre"),
            rnn_settings("qrnn", dropout=0.5),
        ],
        ["fp32", "bf16"],
    ),
)
def test_activations_of_other_layers_equal_those_of_a_real_step(settings, precision):
    train = {"precision": precision, "mem_len": M if settings.has_attention else 0}
    assert activations(settings, **train) == saved_by_a_step(settings, **train)


@pytest.mark.parametrize(("precision", "itemsize"), [("fp32", 4), ("bf16", 2)])
def test_the_kernel_of_an_lstm_keeps_six_numbers_for_each_token_and_unit(precision, itemsize):
    settings, train = rnn_settings("lstm"), {"precision": precision, "mem_len": 0}
    seen = saved_by_a_step(settings, with_data=False, **train)
    assert activations(settings, **train) - seen == itemsize * 6 * B * L * sum(settings.widths)


def test_a_gpu_keeps_scores_that_blocks_of_queries_skip_on_a_cpu():
    # 4 MiB hold the scores of 170 queries, so that 1024 queries are divided into 6 blocks of at most 171.
    settings, seg_len = model_settings(), 1024
    on_cpu, on_gpu = (activations(settings, seg_len=seg_len, device=name) for name in ("cpu", "cuda"))
    assert on_cpu == saved_by_a_step(settings, seg_len=seg_len)
    ends = range(seg_len, 0, -171)
    skipped = sum(min(171, end) * (seg_len - end) for end in ends)  # the keys after each block
    assert on_gpu - on_cpu == 4 * 2 * B * 3 * skipped  # N = 2, H = 3


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recomputing_saves_probabilities_and_their_masks(dropout):
    settings = model_settings(dropout=dropout, attention_dropout=dropout)
    kept, again = (step_bytes(settings, V, train_settings(recompute=recompute)) for recompute in (False, True))
    assert again.activations == saved_by_a_step(settings, recompute=True)
    each = 4 + (dropout > 0)  # a byte for the mask
    probabilities = each * 2 * B * 3 * L * (L + M)  # N = 2, H = 3
    assert kept.activations - again.activations == probabilities
    assert (kept.weights, kept.memory, kept.optimizer) == (again.weights, again.memory, again.optimizer)


def test_an_apple_gpu_keeps_dropout_masks_and_recomputes_probabilities():
    dropped = model_settings(attention_dropout=0.5)
    assert activations(dropped, device="mps") > activations(model_settings(), device="mps")
    assert activations(dropped, device="mps", recompute=True) < activations(dropped, device="mps")


def test_attention_for_cuda_keeps_scores_by_distance_instead_of_probabilities():
    settings = model_settings(attention_dropout=0.1)
    assert activations(settings, device="cuda") == activations(model_settings(), device="cuda")
    assert activations(settings, device="cuda", recompute=True) == activations(settings, device="cuda")


@pytest.mark.skipif(not onednn_has_bf16(), reason="oneDNN has no bf16 on this machine")
def test_a_forecast_for_cuda_counts_the_casts_of_weights_that_autocast_keeps():
    wide = model_settings(d_model=192, d_inner=200)
    cpu, cuda = (activations(wide, precision="bf16", device=name) for name in ("cpu", "cuda"))
    per_layer = 3 * 33 * 192 + 2 * 200 * 192  # queries, keys, values; feed-forward. Distances have no gradient
    assert cuda - cpu == 2 * 2 * per_layer


@pytest.mark.parametrize("changed", [{"reread_len": 3}, {"seg_len_jitter": True}])
def test_tokens_that_are_read_again_or_padded_add_to_what_is_kept(changed):
    plain, other = (activations(model_settings(), seg_len=6, **more) for more in ({}, changed))
    assert other > plain


def test_recomputing_layers_keeps_their_inputs_and_on_cuda_all_of_one_layer():
    layers = (deep(), dataclasses.replace(deep(), n_layers=6))
    kept, again = (
        [activations(settings, device="cuda", recompute=recompute) for settings in layers]
        for recompute in (True, "layers")
    )
    inputs = 4 * (B * (L + M) * 14 + 3 * (L + M) * 11)  # segment, memory; position keys
    assert again[1] - again[0] == inputs
    assert kept[1] - kept[0] > 5 * inputs
    assert again[0] == pytest.approx(kept[0] - 5 * (kept[1] - kept[0] - inputs) + (kept[1] - kept[0]), rel=0.1)
