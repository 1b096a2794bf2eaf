"""The packaged recipes match the publications: sizes, lengths, schedules, parameter counts, headers."""

import ast
import dataclasses
import re
from itertools import pairwise

import pytest

from txlcli import corpora
from txlcli.config import recipe
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.measures.forecast import parameters_by_part
from txlcli.core.training.schedule import scheduled_lr

# The sources of each table: the paper, its released scripts, and the publications that the headers name. A key of the
# first line is in the section of the key before it; "-" is None.
SIZES = """
name model.n_layers d_model n_heads d_head d_inner train.seg_len mem_len published.vocab_size parameters valid test
ptb-memory                   16  380 10  38  750   70   70  10_000  24_525_160 56.72 54.52
enwik8                12  512  8  64 2048  512  512     204  41_055_436     -  1.06
enwik8-18l            18  576  8  72 2816  768  768     204  88_473_804     -  1.03
enwik8-24l            24 1024  8 128 3072  768  768     204 277_231_820     -  0.99
text8                 12  512  8  64 2048  512  512      27  40_964_635     -     -
text8-24l             24 1024  8 128 3072  768  768      27 277_050_395     -  1.08
wt103                 16  410 10  41 2100  150  150 267_735 151_107_538  23.1  24.0
wt103-large           18 1024 16  64 4096  384  384 267_735 285_170_506  17.7  18.3
wt103-large-tf        18 1024 16  64 4096  384  384 267_735 285_205_322  17.7  18.3
wt103-ablation        14  400 10  40  900  128  128 267_735 128_684_338 26.77     -
lm1b                  20 1024  8 128 6144   32   32 793_470 469_020_513     -  23.5
lm1b-released         18 1024  8 128 4096   32   32 793_470 357_812_065     -     -
lm1b-large            24 1280 16  80 8192   32   32 793_470 841_295_961     -  21.8
lm1b-large-tf         24 1280 16  80 8192   32   32 793_470 838_078_041     -  21.8
lm1b-ablation         20 1024  8 128 2048   32   32 793_470 301_166_433     -  25.2
vanilla-enwik8        12  512  2 256 2048  512    0     256  44_232_704     -  1.11
vanilla-enwik8-64l    64  512  2 256 2048  512    0     256 235_339_776     -  1.06
adaptive-input-wt103  16 1024  8 128 4096 3072    0 267_735 247_135_129  19.8  20.5
wt103-nvidia          16  512  8  64 2048  192  192 267_735 191_950_298     -     -
wt103-nvidia-large    18 1024 16  64 4096  384  384 267_735 285_167_482     -     -
compressive-enwik8    24 1024  8 128 3072  768  768     204 352_753_868     -  0.97
compressive-wt103     18 1024 16  64 4096  512  512 267_735 360_686_410  16.0  17.1
"""
TRAINING = """
name model.dropout attention_dropout train.lr warmup_steps max_steps batch_size seg_len_in_validation
ptb-memory                   0.25 0.15  4e-4  2_000    40_000  20  70
enwik8                 0.1    0 2.5e-4     0   400_000  22 128
enwik8-18l            0.15 0.15 2.5e-4 4_000   400_000  64 128
enwik8-24l            0.15 0.15 2.5e-4 4_000   400_000  64 128
text8                  0.1    0 2.5e-4     0   400_000  22 128
text8-24l             0.15 0.15 2.5e-4     0   400_000  64 128
wt103                  0.1    0 2.5e-4     0   200_000  60 150
wt103-large            0.2  0.2 2.5e-4 16_000 4_000_000 128 128
wt103-large-tf         0.2  0.2 2.5e-4 16_000 4_000_000 128 128
wt103-ablation         0.1    0 2.5e-4     0   200_000  60 128
lm1b                     0    0 2.5e-4 20_000  500_000 224  32
lm1b-released            0    0 2.5e-4 20_000  500_000 224  32
lm1b-large            0.05 0.05 2.5e-4 30_000 1_200_000 512  32
lm1b-large-tf         0.05 0.05  1e-4 30_000 1_200_000 512  32
lm1b-ablation            0    0 2.5e-4 20_000  400_000 224  32
wt103-nvidia           0.1    0  0.01  1_000    40_000 256 192
wt103-nvidia-large     0.2  0.2  0.01 16_000   100_000 128 128
"""
# The released code has no max_distance for lm1b: there it is M + L. NVIDIA's mask leaves M + 1 keys to a query.
EVALUATION = """
name eval.seg_len mem_len batch_size max_distance same_length compressed_len
ptb-memory                   70  140 10    - m          -
enwik8                80 2100 10  820 m          -
enwik8-18l           128 3800 10 1000 m          -
enwik8-24l           128 3800 10 1000 m          -
text8                 80 2100 10  820 m          -
text8-24l            128 3800 10 1000 m          -
wt103                 64  640 10  400 m          -
wt103-large          128 1600 10 1000 m          -
wt103-large-tf       128 1600 16 1000 m_plus_one -
wt103-ablation        64  500 10  256 m          -
lm1b                  32  128 64  160 m          -
lm1b-released         32  128 64  160 m          -
lm1b-large            32  128  8  160 m          -
lm1b-large-tf         32  128 16  160 m_plus_one -
lm1b-ablation         32  128 64  160 m          -
wt103-nvidia          64  640 16  400 m_plus_one -
wt103-nvidia-large   128 1600 16 1000 m_plus_one -
"""
NVIDIA_TRAINING = """
name model.init_std train.lowest_lr
wt103-nvidia       0.02  0.001
wt103-nvidia-large 0.005 0.0001
"""
COMPRESSION = """
name model.compressed_len compression_rate eval.mem_len compressed_len train.warmup_steps max_steps batch_size
compressive-enwik8 1152 3 768 3072  4_000 104_000  64
compressive-wt103   512 4 500 1500 16_000 516_000 128
"""
RECURRENT = """
name model.arch n_layers d_model d_hidden published.vocab_size parameters valid test
lstm-wt103 lstm 3 400 1765 267_735 151_065_078    -    -
qrnn-wt103 qrnn 4 400 2415 267_735 151_073_223 32.0 33.0
"""
SMALL = """
name model.arch n_layers d_model d_hidden
lstm-ptb lstm 2 200 400
qrnn-ptb qrnn 2 200 400
"""
MODERN = """
name model.n_heads d_head d_inner inner_width published.vocab_size parameters valid test train.lr warmup_steps
enwik8-modern  8  64 2304 1536     204  41_013_452 - - 6e-4  2_000
text8-modern   8  64 2304 1536      27  40_922_651 - - 6e-4  2_000
wt103-modern  10  40 2304 1536 267_735 150_779_608 - - 6e-4  2_000
lm1b-modern    8 128 6624 4416 793_470 467_529_569 - - 3e-4 20_000
ptb-modern    10  38  936  624  10_000  24_447_116 - - 6e-4  2_000
"""
RMT = """
name model.segment_len n_memory_tokens train.seg_len eval.seg_len published.valid test
rmt-wt103 150 10 450 150 - 25.04
"""

EXTENDED = """
name model.n_layers d_model n_heads d_head d_inner train.seg_len reread_len mem_len batch_size max_steps lr clip
ptb      16 380 10 38 900 70 70 0 10 232_400 3e-4 0.25
ptb-fast 16 380 10 38 750 70 0 70 40  45_000 2e-3 0.25
"""


def read(text):
    """Return the expected settings of each recipe, by full name."""
    (_, *header), *rows = (line.split() for line in text.strip().splitlines())
    sections = [key.partition(".")[0] if "." in key else None for key in header]
    keys = []
    for section, key in zip(sections, header, strict=True):
        keys.append(key if section else f"{keys[-1].partition('.')[0]}.{key}")
    return {name: dict(zip(keys, map(value_of, words), strict=True)) for name, *words in rows}


def value_of(word):
    try:
        return None if word == "-" else ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


TABLES = [
    *map(read, (SIZES, TRAINING, EVALUATION, NVIDIA_TRAINING, COMPRESSION, RECURRENT, SMALL, MODERN, RMT, EXTENDED))
]
(SIZES, TRAINING, EVALUATION, NVIDIA_TRAINING, COMPRESSION, RECURRENT, SMALL, MODERN, RMT, EXTENDED) = TABLES
BASELINES = [name for name, row in SIZES.items() if row["train.mem_len"] == 0]
NVIDIA, COMPRESSIVE = list(NVIDIA_TRAINING), list(COMPRESSION)
PUBLISHED = [name for name in TRAINING if name not in NVIDIA]
TF = ["wt103-large-tf", "lm1b-large-tf"]
PYTORCH = [name for name in PUBLISHED if name not in TF]
INFERRED = ("ptb-memory", "enwik8-18l", "wt103-ablation", "lm1b", "lm1b-ablation")
"""Recipes without a released script."""
PLAIN = "model.variational_dropout=False word_dropout=0 train.weight_decay=0 average=none"
SAME = (  # recipes, and settings that they share
    (PUBLISHED, "train.optimizer=adam schedule=cosine clip=0.25 seed=1111 valid_batch_size=10"),
    (PUBLISHED, "model.tie_embeddings=True norm=post proj_init_std=0.01"),
    (["ptb-memory"], "model.variational_dropout=True word_dropout=0.2 train.weight_decay=1.2e-6 average=exponential"),
    ([name for name in PUBLISHED if name != "ptb-memory"], PLAIN),
    (TF, "model.init=tf init_std=0.005 norm_eps=1e-12 tie_biases=False memory_start=zeros"),
    (TF, "train.cosine_from=warmup min_lr_ratio=0.004"),
    (PYTORCH, "model.init=pytorch init_std=0.02 norm_eps=1e-5 tie_biases=True memory_start=empty"),
    (PYTORCH, "train.cosine_from=start min_lr_ratio=0"),
    (BASELINES, "eval.mem_len=0"),
    (BASELINES[:2], "train.optimizer=sgd momentum=0.99 lr=0.003 clip=-"),  # of Al-Rfou et al.
    (EXTENDED, "model.variational_dropout=True word_dropout=0.2 norm=post published.vocab_size=10_000"),
    (EXTENDED, "model.embedding_dropout=0.6 output_dropout=0.5 inner_dropout=- feed_forward_dropout=- init_std=0.02"),
    (["ptb"], "model.position=relative_tied dropout=0.2 published.parameters=24_040_400"),
    (["ptb"], "train.activation_penalty=0.2 slowness_penalty=0.1"),
    (["ptb-fast"], "model.position=relative dropout=0.25 attention_dropout=0.15 published.parameters=24_525_160"),
    (["ptb-fast"], "train.optimizer=muon embedding_lr=2 betas=(0.9,0.99) weight_decay=0.2 average=exponential"),
    (
        ["ptb"],
        "model.distance_dropout=0.6 projection_dropout=0.2 attention_dropout=0.2 published.valid=56.72 test=54.52",
    ),
    (["ptb"], "train.optimizer=adam embedding_lr=2 weight_decay=1.2e-6 warmup_steps=3_000 seg_len_jitter=True"),
    (["ptb"], "train.schedule=cosine average=mean schedule_steps=166_000 average_lr_factor=0.5 lowest_lr=1e-4"),
    (NVIDIA, "train.optimizer=lamb roll_lanes=True clip=0.25 weight_decay=0 valid_every=5_000 valid_batch_size=16"),
    (NVIDIA, "train.seed=1111 model.tie_biases=True memory_start=empty norm=post init=pytorch"),
    (NVIDIA, "model.cutoffs=(19_997,39_997,199_997)"),
    (COMPRESSIVE, "model.arch=compressive compression=convolution memory_start=zeros eval.same_length=off"),
    (COMPRESSIVE, "train.optimizer=adam lr=3e-4 cosine_from=warmup clip=0.1 lowest_lr=1e-6"),
    (RECURRENT, "model.cutoffs=(20_000,40_000,200_000) div_val=1 embed_width=400 tie_embeddings=True dropout=0.1"),
    (RECURRENT, "train.seg_len=140 batch_size=60 lr=1e-3 optimizer=adam"),
    (MODERN, "model.block=modern norm=pre position=rotary eval.same_length=m max_distance=-"),
    (MODERN, "train.optimizer=adamw schedule=cosine cosine_from=warmup min_lr_ratio=0.1 weight_decay=0.01 clip=1.0"),
)
for names, settings in SAME:
    keys, values = zip(*(word.split("=") for word in settings.split()), strict=True)
    lines = [("name", *keys), *((name, *values) for name in names)]
    TABLES.append(read("\n".join(map(" ".join, lines))))

WT, LM = (20_000, 40_000, 200_000), (60_000, 100_000, 640_000)
# cutoffs, div_val, projections shared by embedding and softmax, projections of a band as wide as the model
EMBEDDINGS = dict.fromkeys(PUBLISHED, ((), 1, None, True)) | {
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
LIKE = {"compressive-enwik8": "enwik8-24l", "compressive-wt103": "wt103-large", "rmt-wt103": "wt103"}
"""The Transformer-XL of as many layers, whose widths, dropout and embeddings they have."""
OF_COMPRESSION = {"arch", "compressed_len", "compression_rate", "compression", "memory_start"}
OF_MEMORY_TOKENS = {"arch", "segment_len", "n_memory_tokens"}
OF_THE_BLOCK = {"d_head", "d_inner", "block", "norm", "position"}
"""Settings of the model that may differ from those of the paper's recipe."""
OF_THE_OPTIMIZER = {"optimizer", "lr", "weight_decay", "warmup_steps", "cosine_from", "min_lr_ratio", "clip"}


def test_every_packaged_recipe_is_in_these_tables():
    others = {"stdlib", "ptb-small", "vanilla-stdlib"}
    assert set().union(*TABLES) == set(recipe.packaged_names()) - others
    assert set(TRAINING) == set(EVALUATION) == {*PUBLISHED, *NVIDIA}


@pytest.mark.parametrize("name", sorted(set().union(*TABLES)))
def test_settings_match_the_publication(name):
    settings = recipe.load(name)
    train, expected = settings.train, {}
    derived = {
        "train.seg_len_in_validation": train.valid_seg_len or train.seg_len,
        "train.lowest_lr": pytest.approx(train.lr * train.min_lr_ratio, rel=0.02),
    }
    for table in TABLES:
        expected |= table.get(name, {})
    for key, value in expected.items():
        section, _, field = key.partition(".")
        assert (derived[key] if key in derived else getattr(getattr(settings, section), field)) == value, key
    published = settings.published
    if published.parameters is not None:
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


def sizes_of(name):
    """Return the layers, d, heads, head width, F, L, M, V and the parameters."""
    return list(SIZES[name].values())[:9]


@pytest.mark.parametrize("name", PUBLISHED)
def test_embeddings_match_the_released_code_and_the_parameters_the_formula(name):
    """Count layers, biases u and v, tables, projections, cluster rows, softmax biases."""
    layers, d, heads, width, inner, _, _, vocab_size, parameters = sizes_of(name)
    attention = 5 * d * heads * width  # queries, keys, values, keys of distances, output
    feed_forward = 2 * d * inner + inner + d
    norms = 2 * 2 * d
    pairs_of_biases = layers if name in TF else 1
    count = layers * (attention + feed_forward + norms) + pairs_of_biases * 2 * heads * width
    cutoffs, div_val, shared, all_projected = EMBEDDINGS[name]
    bands = list(pairwise((0, *cutoffs, vocab_size)))
    for number, (first, end) in enumerate(bands):
        columns = d // div_val**number
        count += (end - first) * (columns + 1)
        if div_val > 1 and (all_projected or columns != d):
            count += d * columns * (1 if shared[number] else 2)
    assert count + (len(bands) - 1) * (d + 1) == parameters
    model = recipe.load(name).model
    assert (model.cutoffs, model.div_val, model.tie_projections, model.project_same_width) == EMBEDDINGS[name]
    assert model.embed_width == model.d_model


def test_sixteen_of_the_18_released_layers_give_the_papers_257m_on_wikitext_103():
    settings = recipe.load("wt103-large", ["model.n_layers=16"])
    assert count_parameters(settings.model, settings.published.vocab_size) == 257_889_098


def layers(n, d, inner):
    """Count four projections without biases, a feed-forward block with biases, and two norms."""
    return n * (4 * d * d + 2 * d * inner + inner + d + 4 * d)


@pytest.mark.parametrize("name", ["vanilla-enwik8", "vanilla-enwik8-64l"])
def test_the_vanilla_model_has_two_classifiers_per_layer(name):
    n, d, _, _, inner, seg_len, _, vocab_size, parameters = sizes_of(name)
    classifiers = 2 * n * (vocab_size * d + vocab_size)
    assert vocab_size * d + n * seg_len * d + layers(n, d, inner) + classifiers == parameters
    model = recipe.load(name).model
    in_use = count_parameters(dataclasses.replace(model, auxiliary_losses=False), vocab_size)
    assert in_use == parameters - (2 * n - 1) * (vocab_size * d + vocab_size)
    assert f"{in_use:,}" in recipe.packaged(name)[1]


@pytest.mark.parametrize("name", NVIDIA)
def test_the_learning_rate_falls_from_the_end_of_the_warm_up_to_nvidias_lowest(name):
    train, lowest = recipe.load(name).train, NVIDIA_TRAINING[name]["train.lowest_lr"]
    peak, warmup, steps, *_ = list(TRAINING[name].values())[2:]
    middle = warmup + (steps - warmup) // 2 + 1
    rates = [scheduled_lr(train, step) for step in (warmup // 2, warmup, warmup + 1, middle, steps)]
    assert rates == pytest.approx([peak / 2, peak, peak, (peak + lowest) / 2, lowest], rel=1e-4)


def changed_keys(settings, others):
    table, other = dataclasses.asdict(settings), dataclasses.asdict(others)
    return {key for key, value in table.items() if value != other.get(key)}


@pytest.mark.parametrize("name", LIKE)
def test_all_else_is_that_of_the_transformer_xl_of_as_many_layers(name):
    model, other = recipe.load(name).model, recipe.load(LIKE[name]).model
    assert changed_keys(model, other) == (OF_MEMORY_TOKENS if name == "rmt-wt103" else OF_COMPRESSION)
    vocab_size = recipe.load(LIKE[name]).published.vocab_size
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
def test_recurrent_parameters_by_formula_and_epochs(name):
    *sizes, vocab_size, parameters, _, _ = RECURRENT[name].values()
    model, train = recipe.load(name).model, recipe.load(name).train
    assert model.first_window == (2 if model.arch == "qrnn" else 1)
    assert recurrent_count(sizes, vocab_size, WT) == parameters
    assert parameters // 10**6 == 151
    assert round(train.max_steps * train.seg_len * train.batch_size / 103_227_021) == 14


def test_the_width_of_the_released_command_gives_more_parameters_than_the_paper():
    assert count_parameters(recipe.load("qrnn-wt103", ["model.d_hidden=2500"]).model, 267_735) == 153_886_638
    assert "153.9M" in header_of("qrnn-wt103")


@pytest.mark.parametrize("name", SMALL)
def test_a_small_recurrent_model_has_few_million_parameters(name):
    counted = recurrent_count(SMALL[name].values(), 10_000, ())
    assert count_parameters(recipe.load(name).model, 10_000) == counted < 4e6


def base_of(name):
    return recipe.load({"ptb-modern": "ptb-memory"}.get(name, name.removesuffix("-modern")))


@pytest.mark.parametrize("name", MODERN)
def test_modern_parameters_by_formula_are_within_one_percent_of_the_papers_recipe(name):
    heads, width, _, inner, vocab_size, parameters, *_ = MODERN[name].values()
    model, base = recipe.load(name).model, base_of(name)
    d, n = model.d_model, model.n_layers
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
for name, row in MODERN.items():
    parameters = row["published.parameters"]
    fewer = 100 * (1 - parameters / base_of(name).published.parameters)
    FURTHER_NUMBERS[name] = f"{parameters:,} parameters, {fewer:.1f} % fewer"


@pytest.mark.parametrize("name", sorted({"vanilla-stdlib", *set().union(*TABLES)}))
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


@pytest.mark.parametrize("name", PUBLISHED)
def test_only_headers_of_inferred_recipes_say_inferred(name):
    assert ("inferred" in recipe.packaged(name)[1]) == (name in INFERRED)
