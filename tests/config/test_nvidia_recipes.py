"""NVIDIA's recipes for WikiText-103: sizes, schedule and parameter counts as in its DeepLearningExamples."""

import dataclasses
import re

import pytest

from txlcli.config import recipe
from txlcli.core.model.registry import count_parameters
from txlcli.core.training.schedule import scheduled_lr

V = 267_735
CUTOFFS = (19_997, 39_997, 199_997)

# layers, d, heads, head width, F; L = M of training; parameters; NVIDIA's valid and test
NVIDIA = {
    "wt103-nvidia": ((16, 512, 8, 64, 2048), 192, 191_950_298, "22.93", "23.24"),
    "wt103-nvidia-large": ((18, 1024, 16, 64, 4096), 384, 285_167_482, "17.80", "18.17"),
}

# batch size, steps, warm-up, peak and lowest learning rate, dropout of both kinds, initial standard deviation,
# segment length of validation
TRAINING = {
    "wt103-nvidia": (256, 40_000, 1_000, 0.01, 0.001, 0.1, 0.0, 0.02, 192),
    "wt103-nvidia-large": (128, 100_000, 16_000, 0.01, 0.0001, 0.2, 0.2, 0.005, 128),
}

# L, M, batch size, max_distance; NVIDIA's mask leaves M + 1 keys to a query
EVALUATION = {
    "wt103-nvidia": (64, 640, 16, 400, "m_plus_one"),
    "wt103-nvidia-large": (128, 1600, 16, 1000, "m_plus_one"),
}


@pytest.mark.parametrize("name", NVIDIA)
def test_sizes_and_parameters_match_nvidias(name):
    sizes, length, parameters, *_ = NVIDIA[name]
    settings = recipe.load(name)
    model, train = settings.model, settings.train
    assert (model.n_layers, model.d_model, model.n_heads, model.d_head, model.d_inner) == sizes
    assert (train.seg_len, train.mem_len, model.cutoffs) == (length, length, CUTOFFS)
    assert dataclasses.astuple(settings.published) == (V, parameters, None, None)
    assert count_parameters(model, V) == parameters


def test_the_parameters_of_the_base_model_by_formula():
    (n, d, heads, width, inner), _, parameters, *_ = NVIDIA["wt103-nvidia"]
    layer = 5 * d * heads * width + 2 * d * inner + inner + d + 4 * d
    assert V * (d + 1) + 3 * (d + 1) + n * layer + 2 * heads * width == parameters


@pytest.mark.parametrize("name", NVIDIA)
def test_training_settings_match_nvidias_configuration(name):
    settings = recipe.load(name)
    model, train = settings.model, settings.train
    assert (
        train.batch_size,
        train.max_steps,
        train.warmup_steps,
        train.lr,
        train.lr * train.min_lr_ratio,
        model.dropout,
        model.attention_dropout,
        model.init_std,
        train.valid_seg_len or train.seg_len,
    ) == pytest.approx(TRAINING[name])
    assert (train.optimizer, train.roll_lanes, train.clip, train.weight_decay) == ("lamb", True, 0.25, 0.0)
    assert (train.valid_every, train.valid_batch_size, train.seed) == (5_000, 16, 1111)
    assert (model.tie_biases, model.memory_start, model.norm, model.init) == (True, "empty", "post", "pytorch")


@pytest.mark.parametrize("name", NVIDIA)
def test_the_learning_rate_falls_from_the_end_of_the_warm_up_to_nvidias_lowest(name):
    train = recipe.load(name).train
    _, steps, warmup, peak, lowest, *_ = TRAINING[name]
    middle = warmup + (steps - warmup) // 2 + 1
    rates = [scheduled_lr(train, step) for step in (warmup // 2, warmup, warmup + 1, middle, steps)]
    assert rates == pytest.approx([peak / 2, peak, peak, (peak + lowest) / 2, lowest], rel=1e-4)


@pytest.mark.parametrize("name", NVIDIA)
def test_evaluation_settings_match_nvidias_script(name):
    assert dataclasses.astuple(recipe.load(name).eval) == (*EVALUATION[name], None)  # no compressed memory


@pytest.mark.parametrize("name", NVIDIA)
def test_the_header_states_results_hardware_and_command(name):
    _, text = recipe.read_text(name)
    header = " ".join(line.removeprefix("#").strip() for line in re.match(r"(#.*\n)+", text)[0].splitlines())
    *_, valid, test = NVIDIA[name]
    assert f"perplexity {valid} valid, {test} test" in header
    assert "Hardware of the published result: eight A100" in header
    assert "Published there:" in header
    assert f"txl prepare wt103 && txl train {name} " in header
