"""Memory of a training step, compared with calculations by hand and with a real step."""

import time

import pytest
import torch
from txlcli.core.measures.footprint import parameters_by_part, step_bytes

from tests.core.builders import V, draw_tokens, model_settings, rnn_settings
from tests.samples import sampled
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.private import onednn_has_bf16
from txlcli.core.model.registry import make_model

B, L, M = 3, 5, 7


def train_settings(**changed):
    return TrainSettings(**{"seg_len": L, "mem_len": M, "batch_size": B, "max_steps": 1, **changed})


def test_an_average_is_one_more_copy_of_the_weights():
    plain, averaged = (
        step_bytes(model_settings(), V, train_settings(average=average)) for average in ("none", "exponential")
    )
    assert plain["average"] == 0
    assert averaged["average"] == averaged["weights"] == plain["weights"]


def test_classifiers_that_exist_in_training_only_are_a_separate_part():
    settings = model_settings(position="learned", n_positions=5, auxiliary_losses=True)
    parts = parameters_by_part(settings, V)
    assert parts["auxiliary classifiers"] == 3 * (V * settings.d_model + V)  # two tokens of layer 1, one of layer 2


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


@pytest.mark.parametrize(
    ("changed", "states"), [({}, 2), ({"optimizer": "sgd"}, 0), ({"optimizer": "sgd", "momentum": 0.9}, 1)]
)
def test_weights_gradients_optimizer_and_memory_take_four_bytes_per_value(changed, states):
    settings = model_settings()
    needed = step_bytes(settings, V, train_settings(**changed))
    count = sum(parameters_by_part(settings, V).values())
    assert (needed["weights"], needed["gradients"], needed["optimizer"]) == (4 * count, 4 * count, 4 * count * states)
    assert needed["memory"] == 4 * 2 * B * M * 14


def test_muon_keeps_one_state_of_each_matrix_of_the_layers_and_two_of_all_other_parameters():
    count = sum(parameters_by_part(model_settings(), V).values())
    matrices = 2 * (4 * 14 * 33 + 2 * 14 * 17)
    needed = step_bytes(model_settings(), V, train_settings(optimizer="muon"))
    assert needed["optimizer"] == 4 * (2 * count - matrices)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(("norm", "size"), [("post", 2), ("pre", 4)])
def test_memory_that_only_products_read_takes_two_bytes_per_value(norm, size, precision):
    needed = step_bytes(model_settings(norm=norm), V, train_settings(precision=precision))
    assert needed["memory"] == size * 2 * B * M * 14


def test_tf32_takes_the_memory_of_fp32():
    expected = step_bytes(model_settings(), V, train_settings(precision="fp32"))
    assert step_bytes(model_settings(), V, train_settings(precision="tf32")) == expected


def saved_by_a_real_step(settings, batch_size, precision, *, recompute=False, attention="auto", seg_len=L):
    """Return the bytes that autograd keeps for the backward pass of one segment with a full memory, without weights."""
    model = make_model(settings, V).train()
    model.recompute(recompute)
    if attention != "auto":
        model.set_attention_backend(attention)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    memory = [tensor.clone() for tensor in model.full_memory(batch_size, M)]
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
    ):
        tokens, targets = (draw_tokens(batch_size, seg_len) for _ in range(2))
        model.objective(tokens, targets, memory, mem_len=M, part="full", progress=0.0)
    return sum(tensor.untyped_storage().nbytes() for key, tensor in saved.items() if key not in weights)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_activations_equal_those_of_a_real_step(dropout, accumulate, precision):
    settings = model_settings(dropout=dropout, attention_dropout=dropout)
    needed = step_bytes(settings, V, train_settings(accumulate=accumulate, precision=precision))
    assert needed["activations"] == saved_by_a_real_step(settings, B // accumulate, precision)


@pytest.mark.parametrize(
    ("model", "precision"),
    sampled(
        2,
        [
            model_settings(n_layers=5),
            model_settings(n_layers=5, norm="pre", dropout=0.1, attention_dropout=0.1, variational_dropout=True),
            model_settings(n_layers=5, position="learned", n_positions=5, auxiliary_losses=True),
            model_settings(n_layers=5, position="shaw", n_positions=5),
            rnn_settings("lstm", n_layers=5),
            rnn_settings("qrnn", n_layers=5),
        ],
        ["fp32", "bf16"],
    ),
)
def test_large_batches_and_many_layers_are_extrapolated_exactly(model, precision):
    memory = {"mem_len": 0, "seg_len": L} if model.recurrent_state or model.auxiliary_losses else {}
    train = train_settings(batch_size=7, precision=precision, **memory)
    assert step_bytes(model, V, train) == step_bytes(model, V, train, extrapolate=False)


@pytest.mark.parametrize(
    ("model_and_lengths", "precision"),
    sampled(
        4,
        [
            (model_settings(), {"seg_len": 1500, "mem_len": 1100}),
            (model_settings(dropout=0.1, attention_dropout=0.1), {"seg_len": 2100, "mem_len": 64}),
            (model_settings(position="shaw", n_positions=5), {"seg_len": 97, "mem_len": 1700}),
            (model_settings(position="rotary", d_head=12), {"seg_len": 1300, "mem_len": 0}),
            (model_settings(), {"seg_len": 1301, "mem_len": 1031, "attention": "sdpa"}),
            (model_settings(window=700), {"seg_len": 1300, "mem_len": 1100}),
            (model_settings(position="alibi", window=1999, norm="pre"), {"seg_len": 1200, "mem_len": 1031}),
            (model_settings(window=400), {"seg_len": 1100, "mem_len": 0, "attention": "sdpa"}),
            (model_settings(block="modern", norm="pre", dropout=0.1), {"seg_len": 1100, "mem_len": 64}),
            (model_settings(gating="gru", norm="pre", dropout=0.1), {"seg_len": 1100, "mem_len": 64}),
            (model_settings(window=5000), {"seg_len": 97, "mem_len": 1700}),
            (rnn_settings("lstm"), {"seg_len": 1500, "mem_len": 0}),
            (model_settings(arch="compressive", compressed_len=70), {"seg_len": 1101, "mem_len": 64}),
        ],
        ["fp32", "bf16"],
    ),
)
def test_long_segments_and_memories_are_extrapolated_exactly(model_and_lengths, precision):
    model, lengths = model_and_lengths
    train = train_settings(batch_size=2, precision=precision, **lengths)
    assert step_bytes(model, V, train) == step_bytes(model, V, train, extrapolate=False)


@pytest.mark.parametrize(
    ("changed", "precision"),
    sampled(
        2,
        [
            {"block": "modern"},
            {"block": "modern", "norm": "pre"},
            {"gating": "gru", "norm": "pre"},
            {"memory_source": "layer_output"},
            {"memory_source": "layer_output", "norm": "pre"},
            {"arch": "compressive", "compressed_len": 3, "compression_rate": L},
            {"arch": "compressive", "compressed_len": 3, "compression_rate": L, "norm": "pre"},
            {"arch": "compressive", "compressed_len": 3, "compression": "max"},
            {"arch": "rmt", "segment_len": L, "n_memory_tokens": 2},
            {"arch": "rmt", "segment_len": 2, "n_memory_tokens": 2, "norm": "pre"},
        ],
        ["fp32", "bf16"],
    ),
    ids=str,
)
def test_activations_of_other_layers_equal_those_of_a_real_step(changed, precision):
    settings = model_settings(dropout=0.5, **changed)
    needed = step_bytes(settings, V, train_settings(precision=precision))
    assert needed["activations"] == saved_by_a_real_step(settings, B, precision)


@pytest.mark.parametrize(("window", "kept"), [(4, 3), (M + 1, M), (100, M)])
def test_a_window_keeps_a_shorter_memory(window, kept):
    needed = step_bytes(model_settings(window=window), V, train_settings())
    assert needed["memory"] == 4 * 2 * B * kept * 14
    settings = model_settings(window=window, dropout=0.5)
    assert step_bytes(settings, V, train_settings())["activations"] == saved_by_a_real_step(settings, B, "fp32")


@pytest.mark.parametrize(
    "model",
    sampled(2, [model_settings(n_layers=5), model_settings(n_layers=5, position="sinusoid", auxiliary_losses=True)]),
)
def test_many_sequences_layers_and_symbols_of_long_segments_are_extrapolated_exactly(model):
    train = train_settings(batch_size=5, seg_len=1109, mem_len=0 if model.auxiliary_losses else 131)
    assert step_bytes(model, 2003, train) == step_bytes(model, 2003, train, extrapolate=False)


@pytest.mark.slow
def test_lengths_that_no_machine_holds_are_counted_within_seconds():
    train = train_settings(batch_size=60, seg_len=10**8, mem_len=10**8)
    step_bytes(model_settings(), V, train_settings())  # imports what it needs
    begin = time.process_time()
    needed = step_bytes(model_settings(n_layers=18, n_heads=10), 20_000, train)
    assert time.process_time() - begin < 30  # CPU seconds of a busy machine; a count at these lengths would never end
    assert needed["activations"] > 18 * 60 * 10 * 4 * 10**16  # scores: 2 L^2 of 4 bytes, of which blocks leave out half


def test_a_gpu_keeps_scores_that_blocks_of_queries_skip_on_a_cpu():
    # 4 MiB hold the scores of 170 queries, so that 1024 queries are divided into 6 blocks of at most 171.
    settings, seg_len = model_settings(), 1024
    on_cpu, on_gpu = (
        step_bytes(settings, V, train_settings(seg_len=seg_len), device=torch.device(name))["activations"]
        for name in ("cpu", "cuda")
    )
    assert on_cpu == saved_by_a_real_step(settings, B, "fp32", seg_len=seg_len)
    ends = range(seg_len, 0, -171)
    skipped = sum(min(171, end) * (seg_len - end) for end in ends)  # the keys after each block
    assert on_gpu - on_cpu == 4 * 2 * B * 3 * skipped  # N = 2, H = 3


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recomputing_saves_probabilities_their_masks_and_logits(dropout):
    settings = model_settings(dropout=dropout, attention_dropout=dropout)
    kept, again = (step_bytes(settings, V, train_settings(recompute=recompute)) for recompute in (False, True))
    assert again["activations"] == saved_by_a_real_step(settings, B, "fp32", recompute=True)
    each = 4 + (dropout > 0)  # a byte for the mask
    probabilities = each * 2 * B * 3 * L * (L + M)  # N = 2, H = 3
    assert kept["activations"] - again["activations"] == probabilities + 4 * B * L * V
    others = kept.keys() - {"activations", "workspace"}
    assert {key: kept[key] for key in others} == {key: again[key] for key in others}
    assert again["workspace"] > kept["workspace"]  # the probabilities of one layer


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_another_attention_backend_keeps_other_tensors(backend):
    settings = model_settings(dropout=0.5, attention_dropout=0.5)
    needed = step_bytes(settings, V, train_settings(attention=backend))["activations"]
    assert needed == saved_by_a_real_step(settings, B, "fp32", attention=backend)
    assert needed > step_bytes(settings, V, train_settings())["activations"]


@pytest.mark.parametrize("backend", ["flex", "triton"])
def test_attention_for_cuda_keeps_scores_by_distance_instead_of_probabilities(backend):
    kept, again = (step_bytes(model_settings(), V, train_settings(attention=name)) for name in (backend, "auto"))
    assert kept["activations"] == again["activations"]


def test_kernels_of_triton_keep_no_dropout_mask():
    settings = model_settings(attention_dropout=0.1)
    kept, again = (step_bytes(settings, V, train_settings(attention=name)) for name in ("triton", "auto"))
    masks = settings.n_layers * B * settings.n_heads * L * (M + L)  # a byte each
    assert again["activations"] - kept["activations"] >= masks


def test_a_wide_tail_counts_by_the_share_of_tokens_that_need_it():
    plain, cut = (
        step_bytes(model_settings(cutoffs=cutoffs), 100_000, train_settings())["activations"]
        for cutoffs in ((), (1000,))
    )
    assert cut < plain / 2


def test_a_model_too_large_for_any_machine_can_be_counted():
    needed = step_bytes(model_settings(n_layers=1, d_model=100_000_000), 7, train_settings())
    assert needed["activations"] > 1e10
    assert needed["weights"] > 8e10


def test_parameters_of_a_recurrent_model_equal_a_calculation_by_hand():
    lstm = 4 * 11 * (7 + 11 + 2) + 4 * 11 * (11 + 11 + 2) + 4 * 7 * (11 + 7 + 2)
    assert parameters_by_part(rnn_settings("lstm"), V) == {"embedding": V * 7, "softmax": V, "recurrent layers": lstm}


@pytest.mark.parametrize(("arch", "numbers"), [("lstm", 2 * (11 + 11 + 7)), ("qrnn", 11 + 2 * 7 + 11 + 7)])
def test_a_state_takes_four_bytes_per_value(arch, numbers):
    # h and c of each layer; c of each layer and, in the first, the last two inputs.
    assert step_bytes(rnn_settings(arch), V, train_settings(mem_len=0))["memory"] == 4 * B * numbers


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_of_a_qrnn_equal_those_of_a_real_step(precision):
    settings = rnn_settings("qrnn", dropout=0.5)
    needed = step_bytes(settings, V, train_settings(mem_len=0, precision=precision))
    assert needed["activations"] == saved_by_a_real_step(settings, B, precision)


def test_activations_of_an_lstm_are_counted_without_the_workspace_of_its_kernel():
    plain, wide = (
        step_bytes(rnn_settings("lstm", d_hidden=width), V, train_settings(mem_len=0))["activations"]
        for width in (11, 110)
    )
    assert 0 < 2 * plain < wide


@pytest.mark.skipif(not onednn_has_bf16(), reason="oneDNN has no bf16 on this machine")
def test_a_forecast_for_cuda_counts_the_casts_of_weights_that_autocast_keeps():
    wide = model_settings(d_model=192, d_inner=200)
    cpu, cuda = (
        step_bytes(wide, V, train_settings(precision="bf16", attention="triton"), device=torch.device(name))
        for name in ("cpu", "cuda")
    )
    per_layer = 3 * 33 * 192 + 2 * 200 * 192  # queries, keys, values; feed-forward. Distances have no gradient
    assert cuda["activations"] - cpu["activations"] == 2 * 2 * per_layer
