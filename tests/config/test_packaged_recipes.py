"""The packaged recipes: parameter counts by formula, and the stores of their corpora."""

import dataclasses
from itertools import pairwise

import pytest

from txlcli import corpora
from txlcli.config import recipe
from txlcli.core.architectures.registry import count_parameters

WITHOUT_COUNT = {"lstm-ptb", "qrnn-ptb", "ptb-small", "stdlib", "vanilla-stdlib"}
"""Recipes of no publication, whose headers give no exact count."""
PAPER = [
    *("ptb-memory", "enwik8", "enwik8-18l", "enwik8-24l", "text8", "text8-24l"),
    *("wt103", "wt103-large", "wt103-large-tf", "wt103-ablation"),
    *("lm1b", "lm1b-released", "lm1b-large", "lm1b-large-tf", "lm1b-ablation"),
]
"""Models of the paper and of its released code."""
TF = ["wt103-large-tf", "lm1b-large-tf"]


def sizes_of(name, *changes):
    """Return the model of a recipe, the vocabulary size of its benchmark, and its stated number of parameters."""
    settings = recipe.load(name, changes)
    return settings.model, settings.published.vocab_size, settings.published.parameters


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_a_recipe_has_its_count_of_parameters_and_the_store_of_its_corpus(name):
    settings = recipe.load(name)
    model, vocab_size, parameters = sizes_of(name)
    assert (parameters is None) == (name in WITHOUT_COUNT)
    assert parameters is None or count_parameters(model, vocab_size) == parameters
    assert settings.corpus.store in name.split("-")
    assert settings.corpus.shuffle_sentences == corpora.CORPORA[settings.corpus.store].sentences


def layers_of(model, *, projections=5):
    """Count projections without biases, feed-forward blocks with biases, and two norms each."""
    d, inner, width = model.d_model, model.d_inner, model.n_heads * model.d_head
    return model.n_layers * (projections * d * width + 2 * d * inner + inner + d + 2 * 2 * d)


@pytest.mark.parametrize("name", PAPER)
def test_parameters_of_the_papers_models_by_formula(name):
    """Count layers, biases u and v, tables, projections, cluster rows, softmax biases."""
    model, vocab_size, parameters = sizes_of(name)
    d, pairs_of_biases = model.d_model, model.n_layers if name in TF else 1
    count = layers_of(model) + pairs_of_biases * 2 * model.n_heads * model.d_head
    bands = list(pairwise((0, *model.cutoffs, vocab_size)))
    for number, (first, end) in enumerate(bands):
        columns = d // model.div_val**number
        count += (end - first) * (columns + 1)
        if model.div_val > 1 and (model.project_same_width or columns != d):
            count += d * columns * (1 if model.tie_projections[number] else 2)
    assert count + (len(bands) - 1) * (d + 1) == parameters


def test_sixteen_of_the_18_released_layers_give_the_papers_257m_on_wikitext_103():
    model, vocab_size, _ = sizes_of("wt103-large", "model.n_layers=16")
    assert count_parameters(model, vocab_size) == 257_889_098


@pytest.mark.parametrize("name", ["vanilla-enwik8", "vanilla-enwik8-64l"])
def test_the_vanilla_model_has_two_classifiers_per_layer(name):
    model, vocab_size, parameters = sizes_of(name)
    n, d = model.n_layers, model.d_model
    classifier = vocab_size * d + vocab_size
    positions = n * recipe.load(name).train.seg_len * d
    assert vocab_size * d + positions + layers_of(model, projections=4) + 2 * n * classifier == parameters
    in_use = count_parameters(dataclasses.replace(model, auxiliary_losses=False), vocab_size)
    assert in_use == parameters - (2 * n - 1) * classifier


def recurrent_count(model, vocab_size):
    """Count tied embedding, softmax biases, a row with its bias per tail band, and four or three gates per layer."""
    d = model.d_model
    count = vocab_size * d + vocab_size + len(model.cutoffs) * (d + 1)
    widths = [d, *[model.d_hidden] * (model.n_layers - 1), d]
    for number, (inputs, width) in enumerate(pairwise(widths)):
        if model.arch == "lstm":
            count += 4 * width * (inputs + width + 2)
        else:
            count += 3 * width * ((2 if number == 0 else 1) * inputs + 1)
    return count


@pytest.mark.parametrize("name", ["lstm-wt103", "qrnn-wt103"])
def test_recurrent_parameters_by_formula_and_epochs(name):
    model, vocab_size, parameters = sizes_of(name)
    train = recipe.load(name).train
    assert recurrent_count(model, vocab_size) == parameters
    assert parameters // 10**6 == 151
    assert round(train.max_steps * train.seg_len * train.batch_size / 103_227_021) == 14


@pytest.mark.parametrize("name", [name for name in recipe.packaged_names() if name.endswith("-modern")])
def test_modern_parameters_by_formula_are_within_one_percent_of_the_papers_recipe(name):
    model, vocab_size, parameters = sizes_of(name)
    base, vocab_size_of_base, of_base = sizes_of({"ptb-modern": "ptb-memory"}.get(name, name.removesuffix("-modern")))
    d, inner, width = model.d_model, model.inner_width, model.n_heads * model.d_head
    without_layers = of_base - layers_of(base) - 2 * base.n_heads * base.d_head
    layer = 4 * d * width + 3 * d * inner + 2 * d + 2 * model.d_head  # projections, SwiGLU, two norms, QK-norm
    assert without_layers + model.n_layers * layer + d == parameters  # and the last norm
    assert vocab_size_of_base == vocab_size
    assert abs(parameters / of_base - 1) < 0.01
