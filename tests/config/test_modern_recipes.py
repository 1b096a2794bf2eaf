"""The modern recipes: of the size of the paper's recipes, with the same tokens, dropout and embeddings."""

import dataclasses
import re

import pytest

from txlcli.config import recipe
from txlcli.core.model.registry import count_parameters

MODERN = {
    # heads, head width, F, width of SwiGLU's matrices; V, parameters; learning rate, warm-up
    "enwik8-modern": ((8, 64, 2304, 1536), 204, 41_013_452, 6e-4, 2_000),
    "text8-modern": ((8, 64, 2304, 1536), 27, 40_922_651, 6e-4, 2_000),
    "wt103-modern": ((10, 40, 2304, 1536), 267_735, 150_779_608, 6e-4, 2_000),
    "lm1b-modern": ((8, 128, 6624, 4416), 793_470, 467_529_569, 3e-4, 20_000),
    "ptb-modern": ((10, 38, 936, 624), 10_000, 24_447_116, 6e-4, 2_000),
}
OF_THE_BLOCK = {"d_head", "d_inner", "block", "norm", "position"}
"""Settings of the model that may differ from those of the paper's recipe."""
OF_THE_OPTIMIZER = {"optimizer", "lr", "weight_decay", "warmup_steps", "cosine_from", "min_lr_ratio", "clip"}


def base_of(name):
    return recipe.load(name.removesuffix("-modern"))


def changed_keys(settings, others):
    table, other = dataclasses.asdict(settings), dataclasses.asdict(others)
    return {key for key, value in table.items() if value != other[key]}


@pytest.mark.parametrize("name", MODERN)
def test_the_parameters_are_within_one_percent_of_the_papers_recipe(name):
    _, vocab_size, parameters, *_ = MODERN[name]
    settings, base = recipe.load(name), base_of(name).published
    assert base.vocab_size == vocab_size
    assert count_parameters(settings.model, vocab_size) == parameters
    assert abs(parameters / base.parameters - 1) < 0.01
    assert dataclasses.astuple(settings.published) == (vocab_size, parameters, None, None)


@pytest.mark.parametrize("name", MODERN)
def test_the_parameters_of_the_layers_by_formula(name):
    (heads, width, _, inner), vocab_size, parameters, *_ = MODERN[name]
    model = recipe.load(name).model
    d, n = model.d_model, model.n_layers
    without_layers = count_parameters(base_of(name).model, vocab_size) - of_the_papers_layers(base_of(name).model)
    layer = 4 * d * heads * width + 3 * d * inner + 2 * d + 2 * width  # projections, SwiGLU, two norms, QK-norm
    assert without_layers + n * layer + d == parameters  # and the last norm


def of_the_papers_layers(model):
    d, inner, width = model.d_model, model.d_inner, model.n_heads * model.d_head
    return model.n_layers * (5 * d * width + 2 * d * inner + inner + d + 4 * d) + 2 * width


@pytest.mark.parametrize("name", MODERN)
def test_only_block_positions_and_optimizer_differ(name):
    settings, base = recipe.load(name), base_of(name)
    assert settings.corpus == base.corpus
    assert changed_keys(settings.model, base.model) <= OF_THE_BLOCK
    assert changed_keys(settings.train, base.train) <= OF_THE_OPTIMIZER
    assert changed_keys(settings.eval, base.eval) <= {"mem_len", "max_distance"}


@pytest.mark.parametrize("name", MODERN)
def test_block_and_sizes(name):
    sizes, *_ = MODERN[name]
    model = recipe.load(name).model
    assert (model.n_heads, model.d_head, model.d_inner, model.inner_width) == sizes
    assert (model.block, model.norm, model.position) == ("modern", "pre", "rotary")
    parts = model.parts
    assert (parts.norm_type, parts.feed_forward, parts.qk_norm, parts.biases) == ("rms", "swiglu", "rms", "none")


@pytest.mark.parametrize("name", MODERN)
def test_the_optimizer_is_adamw_with_a_published_rate(name):
    *_, lr, warmup = MODERN[name]
    train = recipe.load(name).train
    assert (train.optimizer, train.lr, train.warmup_steps) == ("adamw", lr, warmup)
    assert (train.schedule, train.cosine_from, train.min_lr_ratio) == ("cosine", "warmup", 0.1)
    assert (train.weight_decay, train.clip) == (0.01, 1.0)


@pytest.mark.parametrize("name", MODERN)
def test_no_distance_of_the_evaluation_is_beyond_those_of_training(name):
    settings = recipe.load(name)
    assert settings.eval.same_length == "m"  # M keys, so that the largest distance is M - 1
    assert settings.eval.mem_len == settings.train.seg_len + settings.train.mem_len
    assert settings.eval.max_distance is None


@pytest.mark.parametrize("name", MODERN)
def test_the_header_states_counts_command_and_what_is_not_known(name):
    _, text = recipe.read_text(name)
    header = " ".join(line.removeprefix("#").strip() for line in re.match(r"(#.*\n)+", text)[0].splitlines())
    base, parameters = name.removesuffix("-modern"), MODERN[name][2]
    assert f"A modern model of the size of {base} (" in header
    fewer = 100 * (1 - parameters / base_of(name).published.parameters)
    assert f"{parameters:,} parameters, {fewer:.1f} % fewer" in header
    assert "Positions are rotary" in header
    assert "has not been trained at full scale, so its result is not known" in header
    assert f"txl prepare {base} && txl train {name} " in header
    assert "Hardware" in header
