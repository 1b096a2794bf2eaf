"""The packaged recipes match the publications: sizes, lengths, schedules, parameter counts, headers."""

import dataclasses
import re
from itertools import pairwise

import pytest

from tests.config.test_baseline_recipes import BASELINES
from tests.config.test_compressive_recipes import COMPRESSIVE
from tests.config.test_modern_recipes import MODERN
from tests.config.test_nvidia_recipes import NVIDIA
from tests.config.test_recurrent_recipes import RECURRENT, SMALL
from tests.config.test_rmt_recipes import RMT
from txlcli import corpora
from txlcli.config import recipe
from txlcli.core.model.registry import count_parameters

WT, LM = (20_000, 40_000, 200_000), (60_000, 100_000, 640_000)

# layers, d, heads, head width, F; L = M of training; V; parameters; the paper's valid and test
PUBLISHED = {
    "ptb": ((16, 380, 10, 38, 750), 70, 10_000, 24_525_160, 56.72, 54.52),
    "enwik8": ((12, 512, 8, 64, 2048), 512, 204, 41_055_436, None, 1.06),
    "enwik8-18l": ((18, 576, 8, 72, 2816), 768, 204, 88_473_804, None, 1.03),
    "enwik8-24l": ((24, 1024, 8, 128, 3072), 768, 204, 277_231_820, None, 0.99),
    "text8": ((12, 512, 8, 64, 2048), 512, 27, 40_964_635, None, None),
    "text8-24l": ((24, 1024, 8, 128, 3072), 768, 27, 277_050_395, None, 1.08),
    "wt103": ((16, 410, 10, 41, 2100), 150, 267_735, 151_107_538, 23.1, 24.0),
    "wt103-large": ((18, 1024, 16, 64, 4096), 384, 267_735, 285_170_506, 17.7, 18.3),
    "wt103-large-tf": ((18, 1024, 16, 64, 4096), 384, 267_735, 285_205_322, 17.7, 18.3),
    "wt103-ablation": ((14, 400, 10, 40, 900), 128, 267_735, 128_684_338, 26.77, None),
    "lm1b": ((20, 1024, 8, 128, 6144), 32, 793_470, 469_020_513, None, 23.5),
    "lm1b-released": ((18, 1024, 8, 128, 4096), 32, 793_470, 357_812_065, None, None),
    "lm1b-large": ((24, 1280, 16, 80, 8192), 32, 793_470, 841_295_961, None, 21.8),
    "lm1b-large-tf": ((24, 1280, 16, 80, 8192), 32, 793_470, 838_078_041, None, 21.8),
    "lm1b-ablation": ((20, 1024, 8, 128, 2048), 32, 793_470, 301_166_433, None, 25.2),
}

# cutoffs, div_val, projections shared by embedding and softmax, projections of a band as wide as the model
EMBEDDINGS = {
    "wt103": (WT, 1, None, True),
    "wt103-large": (WT, 4, (False, True, True, True), True),
    "wt103-large-tf": (WT, 4, (False, True, True, True), True),
    "wt103-ablation": (WT, 1, None, True),
    "lm1b": (LM, 4, (False,) * 4, True),
    "lm1b-released": (LM, 4, (False,) * 4, True),
    "lm1b-large": (LM, 4, (False,) * 4, True),
    "lm1b-large-tf": (LM, 4, (False,) * 4, False),
    "lm1b-ablation": (LM, 4, (False,) * 4, True),
}

# dropout, attention dropout, peak learning rate, warm-up, steps, batch size, segment length of validation
TRAINING = {
    "ptb": (0.25, 0.15, 4e-4, 2_000, 40_000, 20, 70),
    "enwik8": (0.1, 0, 2.5e-4, 0, 400_000, 22, 128),
    "enwik8-18l": (0.15, 0.15, 2.5e-4, 4_000, 400_000, 64, 128),
    "enwik8-24l": (0.15, 0.15, 2.5e-4, 4_000, 400_000, 64, 128),
    "text8": (0.1, 0, 2.5e-4, 0, 400_000, 22, 128),
    "text8-24l": (0.15, 0.15, 2.5e-4, 0, 400_000, 64, 128),
    "wt103": (0.1, 0, 2.5e-4, 0, 200_000, 60, 150),
    "wt103-large": (0.2, 0.2, 2.5e-4, 16_000, 4_000_000, 128, 128),
    "wt103-large-tf": (0.2, 0.2, 2.5e-4, 16_000, 4_000_000, 128, 128),
    "wt103-ablation": (0.1, 0, 2.5e-4, 0, 200_000, 60, 128),
    "lm1b": (0, 0, 2.5e-4, 20_000, 500_000, 224, 32),
    "lm1b-released": (0, 0, 2.5e-4, 20_000, 500_000, 224, 32),
    "lm1b-large": (0.05, 0.05, 2.5e-4, 30_000, 1_200_000, 512, 32),
    "lm1b-large-tf": (0.05, 0.05, 1e-4, 30_000, 1_200_000, 512, 32),
    "lm1b-ablation": (0, 0, 2.5e-4, 20_000, 400_000, 224, 32),
}

# L, M, batch size, max_distance, keys per query. The released code has no max_distance for lm1b: there it is M + L.
EVALUATION = {
    "ptb": (70, 140, 10, None, "m"),
    "enwik8": (80, 2100, 10, 820, "m"),
    "enwik8-18l": (128, 3800, 10, 1000, "m"),
    "enwik8-24l": (128, 3800, 10, 1000, "m"),
    "text8": (80, 2100, 10, 820, "m"),
    "text8-24l": (128, 3800, 10, 1000, "m"),
    "wt103": (64, 640, 10, 400, "m"),
    "wt103-large": (128, 1600, 10, 1000, "m"),
    "wt103-large-tf": (128, 1600, 16, 1000, "m_plus_one"),
    "wt103-ablation": (64, 500, 10, 256, "m"),
    "lm1b": (32, 128, 64, 32 + 128, "m"),
    "lm1b-released": (32, 128, 64, 32 + 128, "m"),
    "lm1b-large": (32, 128, 8, 32 + 128, "m"),
    "lm1b-large-tf": (32, 128, 16, 32 + 128, "m_plus_one"),
    "lm1b-ablation": (32, 128, 64, 32 + 128, "m"),
}

TABLE_OF_THE_PAPER = {
    "ptb": 5,
    "enwik8": 2,
    "enwik8-18l": 2,
    "enwik8-24l": 2,
    "text8": 3,
    "text8-24l": 3,
    "wt103": 1,
    "wt103-large": 1,
    "wt103-large-tf": 1,
    "wt103-ablation": 6,
    "lm1b": 4,
    "lm1b-released": 4,
    "lm1b-large": 4,
    "lm1b-large-tf": 4,
    "lm1b-ablation": 7,
}

# Recipes without a released script: a recipe with the same training settings, and the settings that differ anyway.
INFERRED = {
    "ptb": None,
    "enwik8-18l": ("enwik8-24l", ()),
    "wt103-ablation": ("wt103", ("seg_len", "mem_len")),
    "lm1b": ("lm1b-released", ()),
    "lm1b-ablation": ("lm1b-released", ("max_steps",)),
}
TF = ("wt103-large-tf", "lm1b-large-tf")


def count_by_formula(name):
    """Count parameters: layers, biases u and v, tables, projections, cluster rows, softmax biases."""
    (layers, d, heads, width, inner), _, vocab_size, *_ = PUBLISHED[name]
    attention = 5 * d * heads * width  # queries, keys, values, keys of distances, output
    feed_forward = 2 * d * inner + inner + d
    norms = 2 * 2 * d
    pairs_of_biases = layers if name in TF else 1
    count = layers * (attention + feed_forward + norms) + pairs_of_biases * 2 * heads * width
    cutoffs, div_val, shared, all_projected = EMBEDDINGS.get(name, ((), 1, None, True))
    bands = list(pairwise((0, *cutoffs, vocab_size)))
    for number, (first, end) in enumerate(bands):
        columns = d // div_val**number
        count += (end - first) * (columns + 1)
        if div_val > 1 and (all_projected or columns != d):
            count += d * columns * (1 if shared[number] else 2)
    return count + (len(bands) - 1) * (d + 1)


def test_every_packaged_recipe_except_stdlib_is_in_these_tables():
    names = set(recipe.packaged_names()) - {
        "stdlib",
        "ptb-small",
        "vanilla-stdlib",
        *BASELINES,
        *MODERN,
        *COMPRESSIVE,
        *RMT,
        *NVIDIA,
        *RECURRENT,
        *SMALL,
    }
    for table in (PUBLISHED, TRAINING, EVALUATION, TABLE_OF_THE_PAPER):
        assert set(table) == names


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_parameters_and_results_match_the_publication(name):
    sizes, length, vocab_size, parameters, valid, test = PUBLISHED[name]
    settings = recipe.load(name)
    model, train, published = settings.model, settings.train, settings.published
    assert (model.n_layers, model.d_model, model.n_heads, model.d_head, model.d_inner) == sizes
    assert (train.seg_len, train.mem_len) == (length, length)
    assert (published.vocab_size, published.parameters) == (vocab_size, parameters)
    assert (published.valid, published.test) == (valid, test)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_built_model_and_the_formula_have_the_published_parameter_count(name):
    settings = recipe.load(name)
    assert count_by_formula(name) == settings.published.parameters
    assert count_parameters(settings.model, settings.published.vocab_size) == settings.published.parameters


def test_sixteen_of_the_18_released_layers_give_the_papers_257m_on_wikitext_103():
    settings = recipe.load("wt103-large", ["model.n_layers=16"])
    assert count_parameters(settings.model, settings.published.vocab_size) == 257_889_098


@pytest.mark.parametrize("name", PUBLISHED)
def test_cutoffs_and_div_val_match_the_released_code(name):
    model = recipe.load(name).model
    cut = (model.cutoffs, model.div_val, model.tie_projections, model.project_same_width)
    assert cut == EMBEDDINGS.get(name, ((), 1, None, True))
    assert (model.embed_width, model.tie_embeddings, model.norm, model.proj_init_std) == (
        model.d_model,
        True,
        "post",
        0.01,
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_training_settings_match_the_released_scripts_or_are_inferred(name):
    settings = recipe.load(name)
    model, train = settings.model, settings.train
    valid_seg_len = train.valid_seg_len or train.seg_len
    actual = (model.dropout, model.attention_dropout, train.lr, train.warmup_steps, train.max_steps, train.batch_size)
    assert (*actual, valid_seg_len) == TRAINING[name]
    assert (train.optimizer, train.schedule, train.clip, train.seed) == ("adam", "cosine", 0.25, 1111)
    assert train.valid_batch_size == 10
    regularization = (model.variational_dropout, model.word_dropout, train.weight_decay, train.average)
    assert regularization == ((True, 0.2, 1.2e-6, "exponential") if name == "ptb" else (False, 0, 0, "none"))


@pytest.mark.parametrize("name", [name for name, like in INFERRED.items() if like])
def test_unpublished_training_settings_match_the_most_similar_script(name):
    nearest, others = INFERRED[name]
    ours, theirs = recipe.load(name), recipe.load(nearest)
    same = {key: getattr(theirs.train, key) for key in others}
    assert dataclasses.replace(ours.train, **same) == theirs.train
    for share in ("dropout", "attention_dropout"):
        assert getattr(ours.model, share) == getattr(theirs.model, share)


@pytest.mark.parametrize("name", PUBLISHED)
def test_tf_recipes_follow_the_tf_code_and_all_others_the_pytorch_code(name):
    model, train = recipe.load(name).model, recipe.load(name).train
    actual = (model.init, model.init_std, model.norm_eps, model.tie_biases, model.memory_start)
    tf = ("tf", 0.005, 1e-12, False, "zeros")
    assert actual == (tf if name in TF else ("pytorch", 0.02, 1e-5, True, "empty"))
    schedule = (train.cosine_from, train.min_lr_ratio)
    assert schedule == (("warmup", 0.004) if name in TF else ("start", 0.0))


@pytest.mark.parametrize("name", PUBLISHED)
def test_evaluation_settings_match_the_released_ones(name):
    evaluation = recipe.load(name).eval
    assert dataclasses.astuple(evaluation) == (*EVALUATION[name], None)  # no compressed memory


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_a_recipe_names_the_store_of_its_corpus_and_shuffles_unrelated_sentences(name):
    corpus = recipe.load(name).corpus
    assert corpus.store in name.split("-")
    assert corpus.shuffle_sentences == corpora.CORPORA[corpus.store].sentences


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_header_states_table_number_hardware_and_command(name):
    _, text = recipe.read_text(name)
    header = " ".join(line.removeprefix("#").strip() for line in re.match(r"(#.*\n)+", text)[0].splitlines())
    assert re.search(rf"\bTable {TABLE_OF_THE_PAPER[name]}\b", header)
    *_, valid, test = PUBLISHED[name]
    for number in (valid, test):
        assert number is None or re.search(rf"(?<![\d.]){number}(?!\d)", header)
    assert "Hardware" in header
    store = name.split("-")[0]
    assert re.search(rf"txl prepare {store}( --released-convention)? && txl train {name}(?![\w-])", header)


@pytest.mark.parametrize("name", PUBLISHED)
def test_only_headers_of_inferred_recipes_say_inferred(name):
    _, text = recipe.read_text(name)
    assert ("inferred" in text) == (name in INFERRED)
