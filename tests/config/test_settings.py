"""Every setting has a description, a valid default and a range."""

import dataclasses

import pytest

from txlcli.config import recipe
from txlcli.config.model_settings import RnnSettings, TransformerSettings
from txlcli.config.settings import CorpusSettings, EvalSettings, LogSettings, PublishedSettings, Settings, TrainSettings
from txlcli.errors import RecipeError, UsageError

SECTIONS = {
    "corpus": (CorpusSettings, {"store": "enwik8"}),
    "model": (TransformerSettings, {"n_layers": 2, "d_model": 14, "n_heads": 3, "d_head": 11, "d_inner": 17}),
    "train": (TrainSettings, {"seg_len": 5, "mem_len": 7, "batch_size": 6, "max_steps": 11}),
    "eval": (EvalSettings, {"seg_len": 5, "mem_len": 7}),
    "log": (LogSettings, {}),
    "published": (PublishedSettings, {}),
}


def build(section, **changed):
    cls, required = SECTIONS[section]
    return cls(**{**required, **changed})


PLAIN = 'the name of a store: letters, digits, ".", "-" and "_"'
COUNT, POSITIVE, NOT_NEGATIVE, RATE = "at least 1", "greater than 0", "at least 0", "at least 0 and less than 1"
SIZES = ("d_model", "n_heads", "d_head", "d_inner", "d_embed", "div_val")
RATES = (
    *("projection_dropout", "feed_forward_dropout", "distance_dropout"),
    *("dropout", "embedding_dropout", "inner_dropout", "output_dropout", "word_dropout", "attention_dropout"),
)
COUNTS = (
    *("seg_len", "batch_size", "max_steps", "accumulate", "valid_every", "valid_seg_len", "stop_after", "keep_every"),
    *("valid_batch_size", "valid_tokens"),
)
NATURAL = (
    "mem_len",
    "reread_len",
    "activation_penalty",
    "slowness_penalty",
    "weight_decay",
    "warmup_steps",
    "plateau_patience",
    "average_patience",
)
NAN, INF, TIED = float("nan"), float("inf"), (True, False)
LIMITS = [  # section, keys, values, what each must be
    ("corpus", ("store",), ("", "data/enwik8.h5", ".."), PLAIN),
    ("model", SIZES, (0, -2), COUNT),
    ("model", ("n_layers",), (0, -2), "at least 1 and at most 1000"),
    ("model", ("norm_eps", "init_std", "proj_init_std"), (0, -2), POSITIVE),
    ("model", ("d_model",), (15,), "even (half sines, half cosines)"),
    ("model", RATES, (-0.1, 1.0, NAN), RATE),
    ("model", ("cutoffs",), ((5, 5), (7, 5), (0, 5), (-5,)), "ids above 0, each larger than the one before"),
    ("model", ("tie_projections",), (TIED,), "as many as bands (1)"),
    ("model", ("window",), (-1, 0, 1), "at least 2"),
    ("model", ("gating",), ("gru",), '"residual" unless norm = "pre" or "pre_released"'),
    ("model", ("gate_bias",), (3.0,), 'left out unless gating = "gru"'),
    ("model", ("init",), ("TF",), "one of pytorch, tf"),
    ("train", COUNTS, (0, -1), COUNT),
    ("train", ("lr", "clip", "average_from", "average_lr_factor", "embedding_lr"), (0, -1), POSITIVE),
    ("train", NATURAL, (-1,), NOT_NEGATIVE),
    ("train", ("weight_decay",), (NAN,), NOT_NEGATIVE),
    ("train", ("momentum",), (-0.1, 1.0), RATE),
    ("train", ("lr",), (NAN, INF), POSITIVE),
    ("train", ("seed",), (-1,), f"at least 0 and at most {2**63 - 1}"),
    ("train", ("seed",), (2**63,), f"at most {2**63 - 1}"),
    ("train", ("schedule",), ("xyz",), "one of cosine, inverse_sqrt, constant, plateau, wsd"),
    ("train", ("min_lr_ratio",), (-0.1,), "at least 0 and at most 1"),
    ("train", ("min_lr_ratio",), (1.1,), "at most 1"),
    ("train", ("plateau_factor", "decay_share"), (0.0, 1.0), "greater than 0 and less than 1"),
    (
        "train",
        ("betas",),
        ((0.9,), (0.9, 1.0), (NAN, 0.9), (0.9, 0.9, 0.9)),
        "two numbers of at least 0 and less than 1",
    ),
    ("train", ("accumulate",), (4,), "a divisor of batch_size (6)"),
    ("train", ("momentum",), (0.9,), 'left out unless optimizer = "muon" or "sgd"'),
    ("train", ("valid_seg_len",), (13,), "at most seg_len + mem_len (12)"),
    ("train", ("decay_norms",), (False,), "left out with weight_decay = 0"),
    ("eval", ("seg_len", "batch_size", "max_distance"), (0, -1), COUNT),
    ("eval", ("mem_len",), (-1,), NOT_NEGATIVE),
    ("eval", ("same_length",), ("n",), "one of m, m_plus_one, off"),
    ("log", ("every",), (0,), COUNT),
    ("published", ("vocab_size",), (-1,), COUNT),
]
SUGGESTED = [  # section, key, a wrong word, all words, the one that was meant
    ("model", "norm", "Pre", "post, pre, pre_released", "pre"),
    ("model", "memory_start", "zero", "empty, zeros", "zeros"),
    ("train", "optimizer", "adma", "adam, adamw, lamb, muon, sgd", "adam"),
    ("train", "precision", "float16", "fp32, tf32, bf16, fp16", "fp16"),
    ("train", "cosine_from", "warm_up", "start, warmup", "warmup"),
    ("train", "average", "ema", "none, asgd, exponential, mean", "exponential"),
]
UNUSED = [  # a choice of [train], and a key with a value that it would ignore, the default, choices that use the key
    ("schedule", "constant", "min_lr_ratio", 0.1, '"cosine" or "inverse_sqrt" or "plateau" or "wsd"'),
    ("schedule", "cosine", "decay_share", 0.1, '"wsd"'),
    ("average", "asgd", "average_from", 0.1, '"mean"'),
    ("average", "none", "average_lr_factor", 0.5, '"mean"'),
    ("optimizer", "sgd", "betas", (0.9, 0.99), '"adam" or "adamw" or "lamb" or "muon"'),
    ("schedule", "constant", "cosine_from", "warmup", '"cosine"'),
    ("schedule", "cosine", "plateau_factor", 0.2, '"plateau"'),
    ("schedule", "inverse_sqrt", "plateau_patience", 2, '"plateau"'),
    ("average", "none", "average_patience", 3, '"asgd"'),
    ("average", "exponential", "average_patience", 0, '"asgd"'),
    ("average", "none", "average_decay", 0.99, '"exponential"'),
    ("average", "asgd", "average_decay", 0.99, '"exponential"'),
]
COUNTS_OF_SECTIONS = (("train", "mem_len"), ("eval", "seg_len"), ("log", "every"), ("published", "vocab_size"))
OUT_OF_RANGE = [
    *[
        (section, {key: value}, f"{key} must be {expected}, not {list(value) if isinstance(value, tuple) else value!r}")
        for section, keys, values, expected in LIMITS
        for key in keys
        for value in values
    ],
    *[
        (section, {key: word}, f'{key} must be one of {words}, not {word!r}; did you mean "{meant}"?')
        for section, key, word, words, meant in SUGGESTED
    ],
    *[
        (
            "train",
            {choice: word, key: value},
            f"{key} must be left out unless {choice} = {users}, not {list(value) if key == 'betas' else value!r}",
        )
        for choice, word, key, value, users in UNUSED
    ],
    *[
        (section, {key: 2**31}, f"{key} must be at most 2147483647, not 2147483648")
        for section, key in (("model", "d_model"), *COUNTS_OF_SECTIONS)
    ],
    (
        "model",
        {"cutoffs": tuple(range(1, 1001))},
        "cutoffs must be fewer than 1000 ids, not " + str([*range(1, 1001)])[:80] + "...",
    ),
]


@pytest.mark.parametrize(("section", "changed", "message"), OUT_OF_RANGE, ids=str)
def test_a_value_out_of_range_is_rejected(section, changed, message):
    with pytest.raises(RecipeError) as caught:
        build(section, **changed)
    assert str(caught.value) == f"[{section}] {message}"


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("model", {"dropout": 0.0, "attention_dropout": 0.99}),
        ("model", {"cutoffs": (1, 2, 3), "tie_projections": (True, False, True, False)}),
        ("model", {"cutoffs": (5, 7), "div_val": 4, "d_embed": 16}),
        ("model", {"cutoffs": (5, 7), "div_val": 3}),
        ("train", {"mem_len": 0, "momentum": 0.0, "seed": 0}),
        ("train", {"min_lr_ratio": 1.0}),
        ("train", {"clip": None, "valid_seg_len": 12, "accumulate": 6}),
        ("train", {"optimizer": "sgd", "momentum": 0.9}),
        ("train", {"average": "asgd", "average_patience": 0}),
        ("train", {"average": "exponential", "average_decay": 0.5}),
        ("model", {"word_dropout": 0.0, "embedding_dropout": 0.0, "inner_dropout": 0.99, "output_dropout": None}),
        ("model", {"gating": "gru", "norm": "pre", "gate_bias": 0.0}),
        ("model", {"gating": "gru", "norm": "pre_released"}),
        ("eval", {"mem_len": 0, "max_distance": 1}),
        *((section, {key: 2**31 - 1}) for section, key in COUNTS_OF_SECTIONS),
        ("model", {"d_model": 2**31 - 2, "n_layers": 1000}),
        ("train", {"seed": 2**40}),
        ("published", {"parameters": 2**40}),
    ],
    ids=str,
)
def test_the_limits_of_a_range_are_valid(section, changed):
    assert vars(build(section, **changed)).items() >= changed.items()


TRAINED, READ = SECTIONS["train"][1], SECTIONS["eval"][1]
OF_STATE = {"train": TRAINED | {"seg_len": 6, "mem_len": 0}, "eval": READ | {"mem_len": 0}}
ATTENTION = SECTIONS["model"][1]
BASES = {
    "transformer": {"model": ATTENTION, "train": TRAINED, "eval": READ},
    "compressive": {
        "model": ATTENTION | {"arch": "compressive", "compressed_len": 5, "compression_rate": 2},
        "train": TRAINED | {"seg_len": 6},
        "eval": READ | {"same_length": "off"},
    },
    "rmt": {
        "model": ATTENTION | {"arch": "rmt", "segment_len": 3},
        "train": OF_STATE["train"],
        "eval": OF_STATE["eval"] | {"same_length": "off"},
    },
    "lstm": {"model": {"arch": "lstm", "n_layers": 3, "d_model": 7}, **OF_STATE},
    "qrnn": {"model": {"arch": "qrnn", "n_layers": 3, "d_model": 7}, **OF_STATE},
}
"""Settings of a small model of each architecture, to which the others below are changes."""


def resolve(arch, *changes):
    table = {"corpus": {"store": "enwik8"}, **BASES[arch]}
    return recipe.resolve(table, "here", changes)


def build_rnn(arch, **changed):
    return RnnSettings(**{**BASES[arch]["model"], **changed})


def test_recurrent_layers_have_the_configured_widths_and_windows():
    assert build_rnn("lstm").widths == [7, 7, 7]
    assert build_rnn("lstm", d_hidden=11).widths == [11, 11, 7]
    assert build_rnn("qrnn", n_layers=1).widths == [7]
    windows = [
        build_rnn(arch, **more).first_window for arch, more in (("lstm", {}), ("qrnn", {}), ("qrnn", {"window": 5}))
    ]
    assert windows == [1, 2, 5]
    assert build_rnn("lstm").recurrent_state
    assert not build("model").recurrent_state


LEARNED = "model.position=learned"
REJECTED = """
transformer | train.average=exponential train.average_decay=nan | average_decay must be greater than 0 and less than \
1, not nan
transformer | train.average=mean train.schedule=constant train.average_from=1.5 | average_from must be a share below \
1, or a step before max_steps (11), not 1.5
transformer | train.average=mean train.schedule=constant train.average_from=11.0 | average_from must be a share below \
1, or a step before max_steps (11), not 11.0
transformer | train.average=mean train.schedule=constant train.average_from=12.0 | average_from must be a share below \
1, or a step before max_steps (11), not 12.0
transformer | train.average=mean train.schedule=cosine | min_lr_ratio must be greater than 0 with average = "mean", \
which begins there, not 0.0
transformer | train.average=mean train.schedule=wsd | min_lr_ratio must be greater than 0 with average = "mean", which \
begins there, not 0.0
transformer | model.gating=gru model.norm=pre model.gate_bias=-1.0 | gate_bias must be at least 0, not -1.0
transformer | model.cutoffs=[5,7] model.tie_projections=[true,false] | tie_projections must be as many as bands (3), \
not [True, False]
transformer | model.n_layers=1000000000 | n_layers must be at most 1000, not 1000000000
transformer | model.cutoffs=[5,7] model.div_val=4 | div_val must be small enough to leave band 3 a width, not 4
transformer | model.cutoffs=[5] model.div_val=8 model.d_embed=7 | div_val must be small enough to leave band 2 a \
width, not 8
qrnn | model.d_hidden=0 | d_hidden must be at least 1, not 0
qrnn | model.window=0 | window must be at least 1, not 0
qrnn | model.n_layers=1 model.d_hidden=11 | d_hidden must be left out with one layer, which is d_model wide, not 11
lstm | model.window=2 | window must be left out with arch = "lstm", not 2
qrnn | model.dropout=1.0 | dropout must be at least 0 and less than 1, not 1.0
qrnn | model.arch=gru | arch must be one of transformer, compressive, rmt, lstm, qrnn, not 'gru'
transformer | train.recompute=layer | [train] recompute must be one of true, false, layers, not 'layer'; did you \
mean "layers"?
transformer | train.attention=sdpa | [train] attention must be one of auto, reference, not 'sdpa'; did you mean "auto"?
qrnn | train.mem_len=5 | mem_len must be 0 with arch = "qrnn" (its state is its memory), not 5
qrnn | train.valid_seg_len=3 | valid_seg_len must be left out with arch = "qrnn" (its state is its memory), not 3
qrnn | eval.mem_len=5 | mem_len must be 0 with arch = "qrnn" (its state is its memory), not 5
qrnn | eval.max_distance=5 | max_distance must be left out with arch = "qrnn", which has no layers with attention, not 5
qrnn | eval.same_length=off | same_length must be left out with arch = "qrnn", which has no layers with attention, \
not 'off'
transformer | eval.compressed_len=3 | compressed_len must be left out unless model.arch = "compressive", not 3
transformer | model.word_dropout=0.1 train.seg_len=1 | word_dropout must be left out with train.seg_len = 1, not 0.1
transformer | train.roll_lanes=true corpus.shuffle_sentences=true | roll_lanes must be left out with \
corpus.shuffle_sentences, not True
transformer | train.attention=reference train.recompute=true | recompute must be false or "layers" unless \
attention = "auto", not True
transformer | train.parallel=fsdp train.precision=fp16 | precision must be fp32, tf32 or bf16 with parallel = "fsdp", \
not 'fp16'
transformer | train.parallel=fsdp train.compile=on | compile must be "auto" or "off" with parallel = "fsdp", not 'on'
transformer | model.position=learned model.n_positions=4 | [train] seg_len must be at most model.n_positions (4), not 5
transformer | model.position=learned model.n_positions=6 train.valid_seg_len=7 | valid_seg_len must be at most \
model.n_positions (6), not 7
transformer | model.position=learned model.n_positions=5 train.mem_len=0 eval.mem_len=0 eval.seg_len=6 | [eval] \
seg_len must be at most model.n_positions (5), not 6
transformer | model.position=learned model.n_positions=5 train.mem_len=0 | [eval] mem_len must be 0 with position = \
"learned" and train.mem_len = 0, not 7
transformer | model.position=learned model.n_positions=6 model.window=7 train.mem_len=0 eval.mem_len=0 | window must \
be at most model.n_positions (6) without memory: no segment is longer, not 7
transformer | model.position=sinusoid train.mem_len=0 | [eval] mem_len must be 0 with position = "sinusoid" and \
train.mem_len = 0, not 7
transformer | model.position=sinusoid train.reread_len=3 | reread_len must be left out with position = "sinusoid", not 3
transformer | model.position=learned model.n_positions=24 train.seg_len_jitter=true | [train] seg_len must be at most \
model.n_positions (24) minus 20 tokens of jitter, not 5
transformer | train.reread_len=3 train.valid_seg_len=16 | valid_seg_len must be at most seg_len + reread_len + mem_len \
(15), not 16
transformer | model.position=alibi model.distance_dropout=0.5 | distance_dropout must be left out with position = \
"alibi", not 0.5
qrnn | train.reread_len=3 | reread_len must be left out with arch = "qrnn", not 3
compressive | train.reread_len=3 | reread_len must be left out with arch = "compressive", not 3
compressive | train.seg_len_jitter=true | seg_len_jitter must be left out with arch = "compressive", not True
rmt | train.seg_len_jitter=true | seg_len_jitter must be left out with arch = "rmt", not True
rmt | train.activation_penalty=2 | activation_penalty must be left out with arch = "rmt", not 2.0
compressive | model.window=4 | window must be left out with arch = "compressive", not 4
compressive | model.position=sinusoid | position must be an encoding of distances, or none, with arch = \
"compressive", not 'sinusoid'
compressive | model.auxiliary_losses=true | auxiliary_losses must be left out with arch = "compressive", not True
compressive | model.compression_rate=1 | compression_rate must be at least 2, not 1
compressive | model.compressed_len=0 | compressed_len must be at least 1, not 0
compressive | train.mem_len=0 | mem_len must be greater than 0 with arch = "compressive", not 0
compressive | train.seg_len=7 | seg_len must be a multiple of model.compression_rate (2), not 7
compressive | eval.same_length=m | same_length must be "off" with arch = "compressive" (queries see all of its \
memory), not 'm'
compressive | eval.compressed_len=0 | [eval] compressed_len must be at least 1, not 0
rmt | model.memory_start=zeros | memory_start must be left out with arch = "rmt" (its state is its memory), not 'zeros'
rmt | model.n_memory_tokens=0 | n_memory_tokens must be at least 1, not 0
rmt | train.seg_len=7 | seg_len must be a multiple of model.segment_len (3): gradients pass through that many \
segments, not 7
rmt | train.mem_len=7 | mem_len must be 0 with arch = "rmt" (its state is its memory), not 7
rmt | eval.mem_len=7 | [eval] mem_len must be 0 with arch = "rmt" (its state is its memory), not 7
rmt | eval.same_length=m | same_length must be "off" with arch = "rmt" (queries see all of its memory), not 'm'
rmt | eval.max_distance=4 | max_distance must be left out with position = "relative", not 4
transformer | model.position=rotary model.d_head=4 eval.max_distance=3 | max_distance must be left out with position \
= "rotary", not 3
"""
"""Architecture, changes, and the error, which begins with a changed section unless it names another."""


@pytest.mark.parametrize("arch", BASES)
def test_the_settings_to_which_the_others_are_changes_are_valid(arch):
    assert resolve(arch).model.arch == arch


@pytest.mark.parametrize("row", REJECTED.strip().splitlines())
def test_settings_that_do_not_suit_each_other_are_rejected(row):
    arch, changes, message = row.split(" | ")
    changes = changes.split()
    sections = {change.partition(".")[0] for change in changes}
    with pytest.raises(RecipeError) as caught:
        resolve(arch, *changes)
    expected = [message] if message.startswith("[") else [f"[{section}] {message}" for section in sections]
    assert str(caught.value).partition(": ")[2] in expected


def test_distances_of_a_compressed_memory_count_its_slots():
    assert resolve("compressive", "eval.compressed_len=9").evaluation_settings().max_distance == 6 + 7 + 5


@pytest.mark.parametrize(("window", "mem_len"), [(6, 0), (2, 0), (7, 7)])
def test_a_window_fits_learned_positions_or_a_memory(window, mem_len):
    """With memory, a query may see more keys than positions."""
    changes = f"{LEARNED} model.n_positions=6 model.window={window} train.mem_len={mem_len} eval.mem_len={mem_len}"
    assert resolve("transformer", *changes.split()).model.attention_window == window


def test_a_window_limits_the_memory_that_is_kept():
    assert [build("model", window=4).visible_memory(mem_len) for mem_len in (0, 2, 3, 7)] == [0, 2, 3, 3]
    assert build("model").visible_memory(7) == 7
    assert (build("model").attention_window, build_rnn("qrnn", window=3).attention_window) == (None, None)


def test_max_distance_defaults_to_the_trained_length_in_evaluation():
    open_ended, limited = (resolve("transformer", f"eval.max_distance={limit}") for limit in ("none", 3))
    assert open_ended.evaluation_settings() == dataclasses.replace(open_ended.eval, max_distance=5 + 7)
    assert limited.evaluation_settings(mem_len=11) == dataclasses.replace(limited.eval, mem_len=11)
    state = resolve("lstm")
    assert state.evaluation_settings(batch_size=1) == dataclasses.replace(state.eval, batch_size=1)
    assert resolve("transformer", "model.position=alibi").evaluation_settings().max_distance is None
    shaw = resolve("transformer", "model.position=shaw", "model.n_positions=11", "eval.max_distance=3")
    assert shaw.evaluation_settings().max_distance == 3


def test_only_learned_positions_limit_a_window():
    assert build("model", position="learned", n_positions=11).longest_window == 11
    distances = build("model", position="shaw", n_positions=11)
    others = (distances, build("model", position="sinusoid"), build("model"), build_rnn("lstm"))
    assert [model.longest_window for model in others] == [None] * 4


@pytest.mark.parametrize("mem_len", [0, 5])
@pytest.mark.parametrize("position", ["relative", "shaw", "alibi", "t5", "none", "sinusoid", "learned"])
def test_memory_needs_relative_distances_or_training_with_memory(position, mem_len):
    learned = {"n_positions": 11} if position in ("shaw", "learned") else {}
    model, train = build("model", position=position, **learned), build("train", mem_len=mem_len)
    settings = Settings(build("corpus"), model, train, build("eval", mem_len=0))
    settings.check_memory(0, run="runs/mine", instead="")
    if mem_len or position not in ("sinusoid", "learned"):
        settings.check_memory(7, run="runs/mine", instead="")
        return
    with pytest.raises(UsageError) as caught:
        settings.check_memory(7, run="runs/mine", instead="give --mem-len 0")
    assert str(caught.value) == ("runs/mine was trained without memory and with absolute positions; give --mem-len 0")
