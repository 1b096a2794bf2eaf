"""The recipes of the baselines: sizes as in their papers, and parameter counts by formula."""

import dataclasses
import re

import pytest

from txlcli.config import recipe
from txlcli.core.measures.forecast import parameters_by_part
from txlcli.core.model.registry import count_parameters

# layers, d, heads, head width, F; segment length; V; parameters; the paper's valid and test
BASELINES = {
    "vanilla-enwik8": ((12, 512, 2, 256, 2048), 512, 256, 44_232_704, None, 1.11),
    "vanilla-enwik8-64l": ((64, 512, 2, 256, 2048), 512, 256, 235_339_776, None, 1.06),
    "adaptive-input-wt103": ((16, 1024, 8, 128, 4096), 3072, 267_735, 247_135_129, 19.8, 20.5),
}


@pytest.mark.parametrize("name", BASELINES)
def test_sizes_parameters_and_results_match_the_publication(name):
    sizes, seg_len, vocab_size, parameters, valid, test = BASELINES[name]
    settings = recipe.load(name)
    model = settings.model
    assert (model.n_layers, model.d_model, model.n_heads, model.d_head, model.d_inner) == sizes
    assert (settings.train.seg_len, settings.train.mem_len, settings.eval.mem_len) == (seg_len, 0, 0)
    published = settings.published
    assert dataclasses.astuple(published) == (vocab_size, parameters, valid, test)
    assert count_parameters(model, vocab_size) == parameters


def layers(n, d, inner):
    """Count four projections without biases, a feed-forward block with biases, and two norms."""
    return n * (4 * d * d + 2 * d * inner + inner + d + 4 * d)


@pytest.mark.parametrize("name", ["vanilla-enwik8", "vanilla-enwik8-64l"])
def test_the_vanilla_model_has_two_classifiers_per_layer(name):
    (n, d, _, _, inner), seg_len, vocab_size, parameters, _, _ = BASELINES[name]
    classifiers = 2 * n * (vocab_size * d + vocab_size)
    assert vocab_size * d + n * seg_len * d + layers(n, d, inner) + classifiers == parameters
    model = recipe.load(name).model
    in_use = count_parameters(dataclasses.replace(model, auxiliary_losses=False), vocab_size)
    assert in_use == parameters - (2 * n - 1) * (vocab_size * d + vocab_size)
    assert f"{in_use:,}" in recipe.packaged(name)[1]


@pytest.mark.parametrize("name", ["vanilla-enwik8", "vanilla-enwik8-64l"])
def test_the_vanilla_model_uses_the_optimizer_of_al_rfou_et_al_without_clipping(name):
    train = recipe.load(name).train
    assert (train.optimizer, train.momentum, train.lr, train.clip) == ("sgd", 0.99, 0.003, None)


def test_adaptive_input_shares_tables_and_projections():
    n, d, inner, vocab_size = 16, 1024, 4096, 267_735
    bands = [(20_000, 1024), (40_000, 256), (vocab_size - 60_000, 64)]
    ends = sum(size * width + width * d for size, width in bands) + vocab_size + 2 * 1024 + 2
    assert ends + layers(n, d, inner) == BASELINES["adaptive-input-wt103"][3]


def test_the_small_vanilla_model_has_as_many_positions_as_its_segments():
    settings = recipe.load("vanilla-stdlib")
    assert settings.model.n_positions == settings.train.seg_len == settings.eval.seg_len == 64
    assert settings.model.auxiliary_losses
    assert settings.train.mem_len == settings.eval.mem_len == 0


@pytest.mark.parametrize("name", [*BASELINES, "vanilla-stdlib"])
def test_the_header_states_the_table_and_the_command(name):
    header = re.match(r"(#.*\n)+", recipe.packaged(name)[1])[0]
    assert re.search(r"[Tt]able", header)
    assert f"txl train {name}" in header
    assert "--attn-len" in header


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_the_parts_of_every_recipe_sum_to_its_parameter_count(name):
    settings = recipe.load(name)
    parts = parameters_by_part(settings.model, settings.published.vocab_size or 256)
    assert sum(parts.values()) == count_parameters(settings.model, settings.published.vocab_size or 256)
