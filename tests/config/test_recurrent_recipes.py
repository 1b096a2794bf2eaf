"""The packaged LSTM and QRNN recipes: parameter counts by formula, and headers with sources."""

import re
from itertools import pairwise

import pytest

from txlcli.config import recipe
from txlcli.core.model.registry import count_parameters

WT = (20_000, 40_000, 200_000)

# architecture, layers, d, inner width; V; parameters; the paper's valid and test; its table
RECURRENT = {
    "lstm-wt103": (("lstm", 3, 400, 1765), 267_735, 151_065_078, None, None, 8),
    "qrnn-wt103": (("qrnn", 4, 400, 2415), 267_735, 151_073_223, 32.0, 33.0, 1),
}
SMALL = {"lstm-ptb": ("lstm", 2, 200, 400), "qrnn-ptb": ("qrnn", 2, 200, 400)}


def load(name, changes=()):
    return recipe.load(f"recipes/{name}.toml", changes)


def header_of(name):
    _, text = recipe.read_text(f"recipes/{name}.toml")
    return " ".join(line.removeprefix("#").strip() for line in re.match(r"(#.*\n)+", text)[0].splitlines())


def count_by_formula(sizes, vocab_size, cutoffs):
    """Count tied embedding, softmax biases, a row with its bias per tail band, and four or three gates per layer."""
    arch, layers, d, inner = sizes
    count = vocab_size * d + vocab_size + len(cutoffs) * (d + 1)
    for number, (inputs, width) in enumerate(pairwise([d, *[inner] * (layers - 1), d])):
        if arch == "lstm":
            count += 4 * width * (inputs + width + 2)
        else:
            count += 3 * width * ((2 if number == 0 else 1) * inputs + 1)
    return count


@pytest.mark.parametrize("name", RECURRENT)
def test_sizes_parameters_and_results_match_the_publication(name):
    (arch, layers, d, inner), vocab_size, parameters, valid, test, _ = RECURRENT[name]
    settings = load(name)
    model, published = settings.model, settings.published
    assert (model.arch, model.n_layers, model.d_model, model.d_hidden) == (arch, layers, d, inner)
    assert (model.cutoffs, model.div_val, model.embed_width, model.tie_embeddings) == (WT, 1, 400, True)
    assert model.first_window == (2 if arch == "qrnn" else 1)
    assert (published.vocab_size, published.parameters) == (vocab_size, parameters)
    assert (published.valid, published.test) == (valid, test)


@pytest.mark.parametrize("name", RECURRENT)
def test_the_built_model_and_the_formula_have_the_published_parameter_count(name):
    sizes, vocab_size, parameters, *_ = RECURRENT[name]
    assert count_by_formula(sizes, vocab_size, WT) == parameters
    assert count_parameters(load(name).model, vocab_size) == parameters
    assert parameters // 10**6 == 151


def test_the_width_of_the_released_command_gives_more_parameters_than_the_paper():
    assert count_parameters(load("qrnn-wt103", ["model.d_hidden=2500"]).model, 267_735) == 153_886_638
    assert "153.9M" in header_of("qrnn-wt103")


@pytest.mark.parametrize("name", RECURRENT)
def test_training_settings_match_the_released_command(name):
    settings = load(name)
    train = settings.train
    assert (train.seg_len, train.batch_size, train.lr, train.optimizer) == (140, 60, 1e-3, "adam")
    assert settings.model.dropout == 0.1
    assert round(train.max_steps * train.seg_len * train.batch_size / 103_227_021) == 14  # epochs


@pytest.mark.parametrize("name", [*RECURRENT, *SMALL])
def test_the_recurrent_models_have_no_memory_but_the_state(name):
    settings = load(name)
    assert (settings.train.mem_len, settings.eval.mem_len, settings.eval.max_distance) == (0, 0, None)
    assert settings.corpus.store == name.split("-")[1]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_recurrent_model_has_few_million_parameters(name):
    model = load(name).model
    assert (model.arch, model.n_layers, model.d_model, model.d_hidden) == SMALL[name]
    assert count_parameters(model, 10_000) == count_by_formula(SMALL[name], 10_000, ()) < 4e6


@pytest.mark.parametrize("name", RECURRENT)
def test_the_header_states_table_number_hardware_command_and_what_is_inferred(name):
    *_, valid, test, table = RECURRENT[name]
    header = header_of(name)
    assert re.search(rf"\bTable {table}\b", header)
    for number in (valid, test):
        assert number is None or re.search(rf"(?<![\d.]){number}(?!\d)", header)
    assert "Hardware" in header
    assert f"txl prepare wt103 && txl train {name}" in header
    assert "inferred" in header


@pytest.mark.parametrize("name", SMALL)
def test_the_header_of_a_small_recurrent_recipe_has_the_command(name):
    header = header_of(name)
    assert "Hardware: two CPU cores" in header
    assert f"txl prepare ptb && txl train {name}" in header
