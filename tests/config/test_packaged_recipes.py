"""The packaged recipes match the publications: sizes, lengths, schedules, parameter counts, headers."""

import dataclasses
import re
from itertools import pairwise

import pytest

from txlcli import corpora
from txlcli.config import recipe
from txlcli.core.measures.forecast import parameters_by_part
from txlcli.core.model.registry import count_parameters
from txlcli.core.training.state import scheduled_lr

WT, LM = (20_000, 40_000, 200_000), (60_000, 100_000, 640_000)

# layers, d, heads, head width, F; L = M of training; V; parameters; the paper's valid and test; its table
PUBLISHED = {
    "ptb": ((16, 380, 10, 38, 750), 70, 10_000, 24_525_160, 56.72, 54.52, 5),
    "enwik8": ((12, 512, 8, 64, 2048), 512, 204, 41_055_436, None, 1.06, 2),
    "enwik8-18l": ((18, 576, 8, 72, 2816), 768, 204, 88_473_804, None, 1.03, 2),
    "enwik8-24l": ((24, 1024, 8, 128, 3072), 768, 204, 277_231_820, None, 0.99, 2),
    "text8": ((12, 512, 8, 64, 2048), 512, 27, 40_964_635, None, None, 3),
    "text8-24l": ((24, 1024, 8, 128, 3072), 768, 27, 277_050_395, None, 1.08, 3),
    "wt103": ((16, 410, 10, 41, 2100), 150, 267_735, 151_107_538, 23.1, 24.0, 1),
    "wt103-large": ((18, 1024, 16, 64, 4096), 384, 267_735, 285_170_506, 17.7, 18.3, 1),
    "wt103-large-tf": ((18, 1024, 16, 64, 4096), 384, 267_735, 285_205_322, 17.7, 18.3, 1),
    "wt103-ablation": ((14, 400, 10, 40, 900), 128, 267_735, 128_684_338, 26.77, None, 6),
    "lm1b": ((20, 1024, 8, 128, 6144), 32, 793_470, 469_020_513, None, 23.5, 4),
    "lm1b-released": ((18, 1024, 8, 128, 4096), 32, 793_470, 357_812_065, None, None, 4),
    "lm1b-large": ((24, 1280, 16, 80, 8192), 32, 793_470, 841_295_961, None, 21.8, 4),
    "lm1b-large-tf": ((24, 1280, 16, 80, 8192), 32, 793_470, 838_078_041, None, 21.8, 4),
    "lm1b-ablation": ((20, 1024, 8, 128, 2048), 32, 793_470, 301_166_433, None, 25.2, 7),
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

INFERRED = ("ptb", "enwik8-18l", "wt103-ablation", "lm1b", "lm1b-ablation")
"""Recipes without a released script."""
TF = ("wt103-large-tf", "lm1b-large-tf")

# layers, d, heads, head width, F; segment length; V; parameters; the paper's valid and test
BASELINES = {
    "vanilla-enwik8": ((12, 512, 2, 256, 2048), 512, 256, 44_232_704, None, 1.11),
    "vanilla-enwik8-64l": ((64, 512, 2, 256, 2048), 512, 256, 235_339_776, None, 1.06),
    "adaptive-input-wt103": ((16, 1024, 8, 128, 4096), 3072, 267_735, 247_135_129, 19.8, 20.5),
}

NVIDIA_V, NVIDIA_CUTOFFS = 267_735, (19_997, 39_997, 199_997)

# layers, d, heads, head width, F; L = M of training; parameters; NVIDIA's valid and test
NVIDIA = {
    "wt103-nvidia": ((16, 512, 8, 64, 2048), 192, 191_950_298, "22.93", "23.24"),
    "wt103-nvidia-large": ((18, 1024, 16, 64, 4096), 384, 285_167_482, "17.80", "18.17"),
}

# batch size, steps, warm-up, peak and lowest learning rate, dropout of both kinds, initial standard deviation,
# segment length of validation
NVIDIA_TRAINING = {
    "wt103-nvidia": (256, 40_000, 1_000, 0.01, 0.001, 0.1, 0.0, 0.02, 192),
    "wt103-nvidia-large": (128, 100_000, 16_000, 0.01, 0.0001, 0.2, 0.2, 0.005, 128),
}

# L, M, batch size, max_distance; NVIDIA's mask leaves M + 1 keys to a query
NVIDIA_EVALUATION = {
    "wt103-nvidia": (64, 640, 16, 400, "m_plus_one"),
    "wt103-nvidia-large": (128, 1600, 16, 1000, "m_plus_one"),
}

COMPRESSIVE = {
    # layers, d, heads, head width, F; L, M, C, c of training; M, C of the evaluation; warm-up, decay; B; V; valid, test
    "compressive-enwik8": (
        (24, 1024, 8, 128, 3072),
        (768, 768, 1152, 3),
        (768, 3072),
        (4_000, 100_000),
        64,
        204,
        (None, 0.97),
    ),
    "compressive-wt103": (
        (18, 1024, 16, 64, 4096),
        (512, 512, 512, 4),
        (500, 1500),
        (16_000, 500_000),
        128,
        267_735,
        (16.0, 17.1),
    ),
}
LIKE = {"compressive-enwik8": "enwik8-24l", "compressive-wt103": "wt103-large"}
"""The Transformer-XL of as many layers, whose widths, dropout and embeddings they have."""
OF_COMPRESSION = {"arch", "compressed_len", "compression_rate", "compression", "memory_start"}

# architecture, layers, d, inner width; V; parameters; the paper's valid and test; its table
RECURRENT = {
    "lstm-wt103": (("lstm", 3, 400, 1765), 267_735, 151_065_078, None, None, 8),
    "qrnn-wt103": (("qrnn", 4, 400, 2415), 267_735, 151_073_223, 32.0, 33.0, 1),
}
SMALL = {"lstm-ptb": ("lstm", 2, 200, 400), "qrnn-ptb": ("qrnn", 2, 200, 400)}

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

RMT_LEN, RMT_TOKENS, RMT_DEPTH, RMT_TEST = 150, 10, 3, 25.04

SIZES = {name: row[0] for table in (PUBLISHED, BASELINES, NVIDIA, COMPRESSIVE) for name, row in table.items()}
PUBLISHED_NUMBERS = {  # V, parameters, valid, test
    **{name: row[2:6] for table in (PUBLISHED, BASELINES) for name, row in table.items()},
    **{name: tuple(numbers) for name, (_, *numbers, _) in RECURRENT.items()},
    **{name: (NVIDIA_V, parameters, None, None) for name, (_, _, parameters, *_) in NVIDIA.items()},
    **{name: (vocab_size, parameters, None, None) for name, (_, vocab_size, parameters, *_) in MODERN.items()},
}


def test_every_packaged_recipe_is_in_these_tables():
    small = {"stdlib", "ptb-small", "vanilla-stdlib", "rmt-wt103"}
    others = {*small, *BASELINES, *MODERN, *COMPRESSIVE, *NVIDIA, *RECURRENT, *SMALL}
    for table in (PUBLISHED, TRAINING, EVALUATION):
        assert set(table) == set(recipe.packaged_names()) - others


@pytest.mark.parametrize("name", PUBLISHED_NUMBERS)
def test_parameters_and_results_match_the_publication(name):
    settings = recipe.load(name)
    vocab_size, parameters, *_ = PUBLISHED_NUMBERS[name]
    assert dataclasses.astuple(settings.published) == PUBLISHED_NUMBERS[name]
    assert count_parameters(settings.model, vocab_size) == parameters


@pytest.mark.parametrize("name", SIZES)
def test_sizes_match_the_publication(name):
    model = recipe.load(name).model
    assert (model.n_layers, model.d_model, model.n_heads, model.d_head, model.d_inner) == SIZES[name]


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_the_parts_of_every_recipe_sum_to_its_parameter_count(name):
    settings = recipe.load(name)
    parts = parameters_by_part(settings.model, settings.published.vocab_size or 256)
    assert sum(parts.values()) == count_parameters(settings.model, settings.published.vocab_size or 256)


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_a_recipe_names_the_store_of_its_corpus_and_shuffles_unrelated_sentences(name):
    corpus = recipe.load(name).corpus
    assert corpus.store in name.split("-")
    assert corpus.shuffle_sentences == corpora.CORPORA[corpus.store].sentences


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_lengths_and_parameters_by_formula(name):
    train = recipe.load(name).train
    assert (train.seg_len, train.mem_len) == (PUBLISHED[name][1],) * 2
    assert count_by_formula(name) == PUBLISHED[name][3]


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


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_have_no_memory(name):
    settings = recipe.load(name)
    assert (settings.train.seg_len, settings.train.mem_len, settings.eval.mem_len) == (BASELINES[name][1], 0, 0)


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


def test_the_parameters_of_nvidias_base_model_by_formula():
    (n, d, heads, width, inner), _, parameters, *_ = NVIDIA["wt103-nvidia"]
    layer = 5 * d * heads * width + 2 * d * inner + inner + d + 4 * d
    assert NVIDIA_V * (d + 1) + 3 * (d + 1) + n * layer + 2 * heads * width == parameters


@pytest.mark.parametrize("name", NVIDIA)
def test_training_settings_match_nvidias_configuration(name):
    settings = recipe.load(name)
    model, train = settings.model, settings.train
    assert (train.seg_len, train.mem_len, model.cutoffs) == (NVIDIA[name][1], NVIDIA[name][1], NVIDIA_CUTOFFS)
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
    ) == pytest.approx(NVIDIA_TRAINING[name])
    assert (train.optimizer, train.roll_lanes, train.clip, train.weight_decay) == ("lamb", True, 0.25, 0.0)
    assert (train.valid_every, train.valid_batch_size, train.seed) == (5_000, 16, 1111)
    assert (model.tie_biases, model.memory_start, model.norm, model.init) == (True, "empty", "post", "pytorch")


@pytest.mark.parametrize("name", NVIDIA)
def test_evaluation_settings_match_nvidias_script(name):
    assert dataclasses.astuple(recipe.load(name).eval) == (*NVIDIA_EVALUATION[name], None)  # no compressed memory


@pytest.mark.parametrize("name", COMPRESSIVE)
def test_lengths_and_results_of_compressive_transformers_are_those_of_the_paper(name):
    _, lengths, evaluated, (warmup, decay), batch_size, vocab_size, results = COMPRESSIVE[name]
    settings = recipe.load(name)
    model, train, evaluation, published = settings.model, settings.train, settings.eval, settings.published
    assert (train.seg_len, train.mem_len, model.compressed_len, model.compression_rate) == lengths
    assert (model.arch, model.compression, model.memory_start) == ("compressive", "convolution", "zeros")
    assert (evaluation.mem_len, evaluation.compressed_len, evaluation.same_length) == (*evaluated, "off")
    assert (train.batch_size, train.warmup_steps, train.max_steps) == (batch_size, warmup, warmup + decay)
    assert (train.optimizer, train.lr, train.cosine_from, train.clip) == ("adam", 3e-4, "warmup", 0.1)
    assert train.lr * train.min_lr_ratio == pytest.approx(1e-6, rel=0.02)
    assert (published.vocab_size, published.valid, published.test) == (vocab_size, *results)


@pytest.mark.parametrize("name", COMPRESSIVE)
def test_all_else_is_that_of_the_transformer_xl_of_as_many_layers(name):
    model, other = (dataclasses.asdict(recipe.load(one).model) for one in (name, LIKE[name]))
    assert {key for key, value in model.items() if value != other.get(key)} == OF_COMPRESSION


@pytest.mark.parametrize("name", COMPRESSIVE)
def test_the_parameters_are_those_of_that_model_and_of_the_convolutions(name):
    (n_layers, d, *_), (*_, rate), *_, vocab_size, _ = COMPRESSIVE[name]
    counts = [count_parameters(recipe.load(one).model, vocab_size) for one in (name, LIKE[name])]
    assert counts[0] - counts[1] == n_layers * (rate * d * d + d)
    assert recipe.load(name).published.parameters == counts[0]


def recurrent_count(sizes, vocab_size, cutoffs):
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
def test_recurrent_sizes_match_the_publication(name):
    (arch, layers, d, inner), vocab_size, parameters, *_ = RECURRENT[name]
    model = recipe.load(name).model
    assert (model.arch, model.n_layers, model.d_model, model.d_hidden) == (arch, layers, d, inner)
    assert (model.cutoffs, model.div_val, model.embed_width, model.tie_embeddings) == (WT, 1, 400, True)
    assert model.first_window == (2 if arch == "qrnn" else 1)
    assert recurrent_count((arch, layers, d, inner), vocab_size, WT) == parameters
    assert parameters // 10**6 == 151


def test_the_width_of_the_released_command_gives_more_parameters_than_the_paper():
    assert count_parameters(recipe.load("qrnn-wt103", ["model.d_hidden=2500"]).model, 267_735) == 153_886_638
    assert "153.9M" in header_of("qrnn-wt103")


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_training_settings_match_the_released_command(name):
    settings = recipe.load(name)
    train = settings.train
    assert (train.seg_len, train.batch_size, train.lr, train.optimizer) == (140, 60, 1e-3, "adam")
    assert settings.model.dropout == 0.1
    assert round(train.max_steps * train.seg_len * train.batch_size / 103_227_021) == 14  # epochs


@pytest.mark.parametrize("name", SMALL)
def test_a_small_recurrent_model_has_few_million_parameters(name):
    model = recipe.load(name).model
    assert (model.arch, model.n_layers, model.d_model, model.d_hidden) == SMALL[name]
    assert count_parameters(model, 10_000) == recurrent_count(SMALL[name], 10_000, ()) < 4e6


def base_of(name):
    return recipe.load(name.removesuffix("-modern"))


def changed_keys(settings, others):
    table, other = dataclasses.asdict(settings), dataclasses.asdict(others)
    return {key for key, value in table.items() if value != other[key]}


@pytest.mark.parametrize("name", MODERN)
def test_modern_parameters_are_within_one_percent_of_the_papers_recipe(name):
    _, vocab_size, parameters, *_ = MODERN[name]
    base = base_of(name).published
    assert base.vocab_size == vocab_size
    assert abs(parameters / base.parameters - 1) < 0.01


@pytest.mark.parametrize("name", MODERN)
def test_modern_parameters_of_the_layers_by_formula(name):
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
def test_modern_block_and_sizes(name):
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


def test_rmt_segments_memory_tokens_depth_and_result_are_those_of_the_paper():
    settings = recipe.load("rmt-wt103")
    assert (settings.model.segment_len, settings.model.n_memory_tokens) == (RMT_LEN, RMT_TOKENS)
    assert settings.train.seg_len == RMT_DEPTH * RMT_LEN
    assert settings.eval.seg_len == RMT_LEN
    assert (settings.published.valid, settings.published.test) == (None, RMT_TEST)


def test_all_else_of_rmt_is_that_of_transformer_xl_with_as_many_tokens_per_step():
    ours, base = (recipe.load(name) for name in ("rmt-wt103", "wt103"))
    model, other = dataclasses.asdict(ours.model), dataclasses.asdict(base.model)
    assert {key for key, value in model.items() if value != other.get(key)} == {
        "arch",
        "segment_len",
        "n_memory_tokens",
    }
    lengths = {"seg_len": RMT_LEN, "mem_len": RMT_LEN, "batch_size": base.train.batch_size}
    assert dataclasses.replace(ours.train, **lengths) == base.train
    assert ours.train.seg_len * ours.train.batch_size == base.train.seg_len * base.train.batch_size


def test_the_parameters_of_rmt_are_those_of_that_model_and_of_the_first_state():
    counts = [count_parameters(recipe.load(name).model, 267_735) for name in ("rmt-wt103", "wt103")]
    assert counts[0] - counts[1] == RMT_TOKENS * 410
    assert recipe.load("rmt-wt103").published.parameters == counts[0]


def header_of(name):
    lines = re.match(r"(#.*\n)+", recipe.packaged(name)[1])[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


def command(store, name):
    return rf"txl prepare {store}( --released-convention)? && txl train {name}(?![\w-])"


def numbers(*results):
    return [rf"(?<![\d.]){result}(?!\d)" for result in results if result is not None]


NOT_TRAINED = "has not been trained at full scale"
HEADERS = {
    name: [rf"\bTable {table}\b", *numbers(valid, test), command(name.split("-")[0], name)]
    for name, (*_, valid, test, table) in PUBLISHED.items()
}
for name, (*_, valid, test, table) in RECURRENT.items():
    HEADERS[name] = [rf"\bTable {table}\b", *numbers(valid, test), command("wt103", name), "inferred"]
for name, (*_, valid, test) in NVIDIA.items():
    result = f"perplexity {valid} valid, {test} test"
    HEADERS[name] = [result, "of the published result: eight A100", "Published there:", command("wt103", name)]
for name, (*_, results) in COMPRESSIVE.items():
    source = ["Rae et al. 2020, Table", "Inferred: all widths", LIKE[name], NOT_TRAINED]
    HEADERS[name] = [*source, *numbers(*results), command(name.removeprefix("compressive-"), name)]
for name, (_, _, parameters, *_) in MODERN.items():
    base, fewer = name.removesuffix("-modern"), 100 * (1 - parameters / base_of(name).published.parameters)
    sizes = [rf"A modern model of the size of {base} \(", f"{parameters:,} parameters, {fewer:.1f} % fewer"]
    HEADERS[name] = [*sizes, "Positions are rotary", f"{NOT_TRAINED}, so its result is not known", command(base, name)]
source = ["Bulatov et al. 2022, Table 5", "Inferred", "What differs", NOT_TRAINED]
HEADERS["rmt-wt103"] = [*source, *numbers(RMT_TEST, 24.12), command("wt103", "rmt-wt103")]
for name in (*BASELINES, "vanilla-stdlib"):
    HEADERS[name] = ["[Tt]able", f"txl train {name}", "--attn-len"]
for name in SMALL:
    HEADERS[name] = ["Hardware: two CPU cores", command("ptb", name)]


@pytest.mark.parametrize("name", HEADERS)
def test_the_header_gives_source_results_hardware_and_command(name):
    for pattern in ("Hardware", *HEADERS[name]):
        assert re.search(pattern, header_of(name)), pattern


@pytest.mark.parametrize("name", PUBLISHED)
def test_only_headers_of_inferred_recipes_say_inferred(name):
    _, text = recipe.read_text(name)
    assert ("inferred" in text) == (name in INFERRED)


@pytest.mark.parametrize("name", NVIDIA)
def test_the_learning_rate_falls_from_the_end_of_the_warm_up_to_nvidias_lowest(name):
    train = recipe.load(name).train
    _, steps, warmup, peak, lowest, *_ = NVIDIA_TRAINING[name]
    middle = warmup + (steps - warmup) // 2 + 1
    rates = [scheduled_lr(train, step) for step in (warmup // 2, warmup, warmup + 1, middle, steps)]
    assert rates == pytest.approx([peak / 2, peak, peak, (peak + lowest) / 2, lowest], rel=1e-4)
