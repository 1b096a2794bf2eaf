"""The packaged recipes match the publications: results, parameter counts, headers."""

import dataclasses
import re
from itertools import pairwise

import pytest

from txlcli import corpora
from txlcli.config import recipe
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.measures.forecast import parameters_by_part
from txlcli.core.training.schedule import scheduled_lr

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
BASELINES = ["vanilla-enwik8", "vanilla-enwik8-64l", "adaptive-input-wt103"]
COMPRESSIVE = ["compressive-enwik8", "compressive-wt103"]
MODERN = [name for name in RESULTS if name.endswith("-modern")]
TF = ["wt103-large-tf", "lm1b-large-tf"]
INFERRED = ("ptb-memory", "enwik8-18l", "wt103-ablation", "lm1b", "lm1b-ablation")
"""Recipes without a released script."""
LIKE = {"compressive-enwik8": "enwik8-24l", "compressive-wt103": "wt103-large", "rmt-wt103": "wt103"}
"""The Transformer-XL of as many layers, whose widths, dropout and embeddings they have."""
OF_COMPRESSION = {"arch", "compressed_len", "compression_rate", "compression", "memory_start"}
OF_MEMORY_TOKENS = {"arch", "segment_len", "n_memory_tokens"}
OF_THE_BLOCK = {"d_head", "d_inner", "block", "norm", "position"}
"""Settings of the model that may differ from those of the paper's recipe."""
OF_THE_OPTIMIZER = {"optimizer", "lr", "weight_decay", "warmup_steps", "cosine_from", "min_lr_ratio", "clip"}


def test_every_packaged_recipe_is_in_this_table():
    assert {*RESULTS, *WITHOUT_COUNT} == set(recipe.packaged_names())


@pytest.mark.parametrize("name", RESULTS)
def test_results_and_parameters_match_the_publication(name):
    settings = recipe.load(name)
    published = settings.published
    assert {key: getattr(published, key) for key in RESULTS[name]} == RESULTS[name]
    assert count_parameters(settings.model, published.vocab_size) == published.parameters


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_the_parts_of_every_recipe_sum_to_its_parameter_count(name):
    settings = recipe.load(name)
    vocab_size = settings.published.vocab_size or 256
    assert sum(parameters_by_part(settings.model, vocab_size).values()) == count_parameters(settings.model, vocab_size)


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
    assert f"{in_use:,}" in recipe.packaged(name)[1]


@pytest.mark.parametrize(("name", "lowest"), [("wt103-nvidia", 1e-3), ("wt103-nvidia-large", 1e-4)])
def test_the_learning_rate_falls_from_the_end_of_the_warm_up_to_nvidias_lowest(name, lowest):
    train = recipe.load(name).train
    warmup, steps = train.warmup_steps, train.max_steps
    middle = warmup + (steps - warmup) // 2 + 1
    rates = [scheduled_lr(train, step) for step in (warmup // 2, warmup, warmup + 1, middle, steps)]
    assert rates == pytest.approx([0.005, 0.01, 0.01, (0.01 + lowest) / 2, lowest], rel=1e-4)


def changed_keys(settings, others):
    table, other = dataclasses.asdict(settings), dataclasses.asdict(others)
    return {key for key, value in table.items() if value != other.get(key)}


@pytest.mark.parametrize("name", LIKE)
def test_all_else_is_that_of_the_transformer_xl_of_as_many_layers(name):
    model, other = recipe.load(name).model, recipe.load(LIKE[name]).model
    assert changed_keys(model, other) == (OF_MEMORY_TOKENS if name == "rmt-wt103" else OF_COMPRESSION)
    vocab_size = RESULTS[name]["vocab_size"]
    more = count_parameters(model, vocab_size) - count_parameters(other, vocab_size)
    if name == "rmt-wt103":
        assert more == 10 * 410  # the first state
    else:
        convolution = model.compression_rate * model.d_model**2 + model.d_model
        assert more == model.n_layers * convolution


def test_rmt_trains_like_transformer_xl_with_as_many_tokens_per_step():
    ours, base = recipe.load("rmt-wt103").train, recipe.load("wt103").train
    assert dataclasses.replace(ours, seg_len=150, mem_len=150, batch_size=base.batch_size) == base
    assert ours.seg_len * ours.batch_size == base.seg_len * base.batch_size
    assert recipe.load("rmt-wt103").published.parameters == 151_107_538 + 10 * 410


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


def test_the_width_of_the_released_command_gives_more_parameters_than_the_paper():
    assert count_parameters(recipe.load("qrnn-wt103", ["model.d_hidden=2500"]).model, 267_735) == 153_886_638
    assert "153.9M" in header_of("qrnn-wt103")


@pytest.mark.parametrize("name", ["lstm-ptb", "qrnn-ptb"])
def test_a_small_recurrent_model_has_few_million_parameters(name):
    model = recipe.load(name).model
    assert count_parameters(model, 10_000) == recurrent_count(model, 10_000) < 4e6


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


@pytest.mark.parametrize("name", MODERN)
def test_only_block_positions_and_optimizer_differ(name):
    settings, base = recipe.load(name), base_of(name)
    assert settings.corpus == base.corpus
    assert changed_keys(settings.model, base.model) <= OF_THE_BLOCK
    assert changed_keys(settings.train, base.train) <= OF_THE_OPTIMIZER
    assert changed_keys(settings.eval, base.eval) <= {"mem_len", "max_distance"}
    assert dataclasses.astuple(settings.model.parts) == ("rms", "swiglu", "rms", "none")
    # M keys, so that the largest distance is M - 1: none is beyond those of training.
    assert settings.eval.mem_len == settings.train.seg_len + settings.train.mem_len


def header_of(name):
    lines = re.match(r"(#.*\n)+", recipe.packaged(name)[1])[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


TABLES_OF_PAPER = {
    **dict.fromkeys(("wt103", "wt103-large", "wt103-large-tf", "qrnn-wt103"), 1),
    **dict.fromkeys(("enwik8", "enwik8-18l", "enwik8-24l"), 2),
    **dict.fromkeys(("text8", "text8-24l"), 3),
    **dict.fromkeys(("lm1b", "lm1b-released", "lm1b-large", "lm1b-large-tf"), 4),
    **dict.fromkeys(("ptb", "ptb-memory"), 5),
    **{"wt103-ablation": 6, "lm1b-ablation": 7, "lstm-wt103": 8},
}
NOT_TRAINED = (*COMPRESSIVE, *MODERN, "rmt-wt103")
FURTHER_NUMBERS = {
    "wt103-nvidia": "perplexity 22.93 valid, 23.24 test",
    "wt103-nvidia-large": "perplexity 17.80 valid, 18.17 test",
    "rmt-wt103": "24.12",
}
for name in MODERN:
    parameters = RESULTS[name]["parameters"]
    fewer = 100 * (1 - parameters / base_of(name).published.parameters)
    FURTHER_NUMBERS[name] = f"{parameters:,} parameters, {fewer:.1f} % fewer"


@pytest.mark.parametrize("name", ["vanilla-stdlib", "lstm-ptb", "qrnn-ptb", *RESULTS])
def test_the_header_gives_table_results_hardware_and_command(name):
    header, published = header_of(name), recipe.load(name).published
    expected = ["Hardware", rf"txl train {name}(?![\w-])", re.escape(FURTHER_NUMBERS.get(name, ""))]
    if name in TABLES_OF_PAPER:
        expected.append(rf"\bTable {TABLES_OF_PAPER[name]}\b")
    if name not in BASELINES:
        results = (result for result in (published.valid, published.test) if result is not None)
        expected += [rf"(?<![\d.]){result}(?!\d)" for result in results]
    assert [pattern for pattern in expected if not re.search(pattern, header)] == []
    assert ("has not been trained at full scale" in header) == (name in NOT_TRAINED)


@pytest.mark.parametrize("name", PAPER)
def test_only_headers_of_inferred_recipes_say_inferred(name):
    assert ("inferred" in recipe.packaged(name)[1]) == (name in INFERRED)
