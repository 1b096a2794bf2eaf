"""The packaged recipes match the publications: results and parameter counts."""

import dataclasses
from itertools import pairwise

import pytest

from txlcli import corpora
from txlcli.config import recipe
from txlcli.core.architectures.registry import count_parameters

# The publications that the headers name, and the exact counts of parameters at the vocabulary of the benchmark.
RESULTS = """
name                 vocab_size parameters valid test
ptb                      10_000  24_040_400 56.72 54.52
ptb-memory               10_000  24_525_160 56.72 54.52
ptb-fast                 10_000  24_525_160     -     -
wt2                      33_278  37_712_079     -     -
enwik8                      204  41_055_436     -  1.06
enwik8-18l                  204  88_473_804     -  1.03
enwik8-24l                  204 277_231_820     -  0.99
text8                        27  40_964_635     -     -
text8-24l                    27 277_050_395     -  1.08
wt103                   267_735 151_107_538  23.1  24.0
wt103-large             267_735 285_170_506  17.7  18.3
wt103-large-tf          267_735 285_205_322  17.7  18.3
wt103-ablation          267_735 128_684_338 26.77     -
lm1b                    793_470 469_020_513     -  23.5
lm1b-released           793_470 357_812_065     -     -
lm1b-large              793_470 841_295_961     -  21.8
lm1b-large-tf           793_470 838_078_041     -  21.8
lm1b-ablation           793_470 301_166_433     -  25.2
vanilla-enwik8              256  44_232_704     -  1.11
vanilla-enwik8-64l          256 235_339_776     -  1.06
adaptive-input-wt103    267_735 247_135_129  19.8  20.5
wt103-nvidia            267_735 191_950_298     -     -
wt103-nvidia-large      267_735 285_167_482     -     -
compressive-enwik8          204 352_753_868     -  0.97
compressive-wt103       267_735 360_686_410  16.0  17.1
rmt-wt103               267_735 151_111_638     - 25.04
lstm-wt103              267_735 151_065_078     -     -
qrnn-wt103              267_735 151_073_223  32.0  33.0
enwik8-modern               204  41_013_452     -     -
text8-modern                 27  40_922_651     -     -
wt103-modern            267_735 150_779_608     -     -
lm1b-modern             793_470 467_529_569     -     -
ptb-modern               10_000  24_447_116     -     -
"""


def number_of(word):
    if word == "-":
        return None
    return float(word) if "." in word else int(word)


def read(text):
    """Return the numbers of each recipe by name."""
    (_, *keys), *rows = (line.split() for line in text.strip().splitlines())
    return {name: dict(zip(keys, map(number_of, words), strict=True)) for name, *words in rows}


RESULTS = read(RESULTS)
WITHOUT_COUNT = ("lstm-ptb", "qrnn-ptb", "ptb-small", "stdlib", "vanilla-stdlib")
"""Recipes of no publication, whose headers give no exact count."""
PAPER = [
    *("ptb-memory", "enwik8", "enwik8-18l", "enwik8-24l", "text8", "text8-24l"),
    *("wt103", "wt103-large", "wt103-large-tf", "wt103-ablation"),
    *("lm1b", "lm1b-released", "lm1b-large", "lm1b-large-tf", "lm1b-ablation"),
]
"""Models of the paper and of its released code."""
COMPRESSIVE = ["compressive-enwik8", "compressive-wt103"]
MODERN = [name for name in RESULTS if name.endswith("-modern")]
TF = ["wt103-large-tf", "lm1b-large-tf"]


def test_every_packaged_recipe_is_in_this_table():
    assert {*RESULTS, *WITHOUT_COUNT} == set(recipe.packaged_names())


@pytest.mark.parametrize("name", RESULTS)
def test_results_and_parameters_match_the_publication(name):
    settings = recipe.load(name)
    published = settings.published
    assert {key: getattr(published, key) for key in RESULTS[name]} == RESULTS[name]
    assert count_parameters(settings.model, published.vocab_size) == published.parameters


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_a_recipe_names_the_store_of_its_corpus_and_shuffles_unrelated_sentences(name):
    corpus = recipe.load(name).corpus
    assert corpus.store in name.split("-")
    assert corpus.shuffle_sentences == corpora.CORPORA[corpus.store].sentences


@pytest.mark.parametrize("name", PAPER)
def test_parameters_of_the_papers_models_by_formula(name):
    """Count layers, biases u and v, tables, projections, cluster rows, softmax biases."""
    model = recipe.load(name).model
    d, inner, width = model.d_model, model.d_inner, model.n_heads * model.d_head
    attention = 5 * d * width  # queries, keys, values, keys of distances, output
    feed_forward = 2 * d * inner + inner + d
    norms = 2 * 2 * d
    pairs_of_biases = model.n_layers if name in TF else 1
    count = model.n_layers * (attention + feed_forward + norms) + pairs_of_biases * 2 * width
    bands = list(pairwise((0, *model.cutoffs, RESULTS[name]["vocab_size"])))
    for number, (first, end) in enumerate(bands):
        columns = d // model.div_val**number
        count += (end - first) * (columns + 1)
        if model.div_val > 1 and (model.project_same_width or columns != d):
            count += d * columns * (1 if model.tie_projections[number] else 2)
    assert count + (len(bands) - 1) * (d + 1) == RESULTS[name]["parameters"]


def test_sixteen_of_the_18_released_layers_give_the_papers_257m_on_wikitext_103():
    settings = recipe.load("wt103-large", ["model.n_layers=16"])
    assert count_parameters(settings.model, settings.published.vocab_size) == 257_889_098


def layers(n, d, inner):
    """Count four projections without biases, a feed-forward block with biases, and two norms."""
    return n * (4 * d * d + 2 * d * inner + inner + d + 4 * d)


@pytest.mark.parametrize("name", ["vanilla-enwik8", "vanilla-enwik8-64l"])
def test_the_vanilla_model_has_two_classifiers_per_layer(name):
    settings = recipe.load(name)
    model, vocab_size, parameters = settings.model, settings.published.vocab_size, settings.published.parameters
    n, d = model.n_layers, model.d_model
    classifier = vocab_size * d + vocab_size
    positions = n * settings.train.seg_len * d
    assert vocab_size * d + positions + layers(n, d, model.d_inner) + 2 * n * classifier == parameters
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
    settings = recipe.load(name)
    parameters, train = settings.published.parameters, settings.train
    assert recurrent_count(settings.model, 267_735) == parameters
    assert parameters // 10**6 == 151
    assert round(train.max_steps * train.seg_len * train.batch_size / 103_227_021) == 14


def base_of(name):
    return recipe.load({"ptb-modern": "ptb-memory"}.get(name, name.removesuffix("-modern")))


@pytest.mark.parametrize("name", MODERN)
def test_modern_parameters_by_formula_are_within_one_percent_of_the_papers_recipe(name):
    settings, base = recipe.load(name), base_of(name)
    model, vocab_size, parameters = settings.model, settings.published.vocab_size, settings.published.parameters
    d, n, heads, width, inner = model.d_model, model.n_layers, model.n_heads, model.d_head, model.inner_width
    without_layers = count_parameters(base.model, vocab_size) - of_the_papers_layers(base.model)
    layer = 4 * d * heads * width + 3 * d * inner + 2 * d + 2 * width  # projections, SwiGLU, two norms, QK-norm
    assert without_layers + n * layer + d == parameters  # and the last norm
    assert base.published.vocab_size == vocab_size
    assert abs(parameters / base.published.parameters - 1) < 0.01


def of_the_papers_layers(model):
    d, inner, width = model.d_model, model.d_inner, model.n_heads * model.d_head
    return model.n_layers * (5 * d * width + 2 * d * inner + inner + d + 4 * d) + 2 * width
