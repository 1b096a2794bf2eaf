"""Every setting has a description, a valid default and a range."""

import dataclasses

import pytest

from txlcli.config import recipe
from txlcli.config.model_settings import MODELS, TransformerSettings
from txlcli.config.settings import CorpusSettings, EvalSettings, LogSettings, PublishedSettings, Settings
from txlcli.config.train_settings import TrainSettings
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
    *("mem_len", "reread_len", "activation_penalty", "slowness_penalty"),
    *("weight_decay", "warmup_steps", "plateau_patience", "average_patience"),
)
NAN, INF = float("nan"), float("inf")
RANGES = [  # section, keys, values, what each must be
    ("corpus", ("store",), ("", "data/enwik8", "enwik8.h5", ".."), "the name of a store"),
    ("model", SIZES, (0, -2), COUNT),
    ("model", ("n_layers",), (0, -2, 10**9), "at most 1000"),
    ("model", ("norm_eps", "init_std", "proj_init_std"), (0, -2), POSITIVE),
    ("model", RATES, (-0.1, 1.0, NAN), RATE),
    ("model", ("window",), (-1, 0, 1), "at least 2"),
    ("model", ("gate_bias",), (-1.0,), NOT_NEGATIVE),
    ("model", ("d_model",), (2**31,), "at most 2147483647"),
    ("train", COUNTS, (0, -1), COUNT),
    ("train", ("lr", "clip", "average_from", "average_lr_factor", "embedding_lr", "cosine_until"), (0, -1), POSITIVE),
    ("train", NATURAL, (-1,), NOT_NEGATIVE),
    ("train", ("weight_decay",), (NAN,), NOT_NEGATIVE),
    ("train", ("momentum",), (-0.1, 1.0), RATE),
    ("train", ("lr",), (NAN, INF), POSITIVE),
    ("train", ("lr", "weight_decay", "save_minutes"), (INF,), "and finite, not inf"),
    ("train", ("clip",), (INF,), 'finite, or "none", not inf'),
    ("train", ("clip",), (0.0,), 'or "none"'),
    ("train", ("seed",), (-1, 2**63), f"at most {2**63 - 1}"),
    ("train", ("mem_len",), (2**31,), "at most 2147483647"),
    ("train", ("min_lr_ratio",), (-0.1, 1.1), "at most 1"),
    ("train", ("plateau_factor", "decay_share"), (0.0, 1.0), "greater than 0 and less than 1"),
    ("train", ("average_decay",), (NAN,), "greater than 0 and less than 1"),
    ("eval", ("seg_len", "batch_size", "max_distance"), (0, -1), COUNT),
    ("eval", ("mem_len",), (-1,), NOT_NEGATIVE),
    ("eval", ("seg_len",), (2**31,), "at most 2147483647"),
    ("log", ("every",), (0,), COUNT),
    ("published", ("vocab_size",), (-1,), COUNT),
]
OUT_OF_RANGE = [
    (section, key, value, expected) for section, keys, values, expected in RANGES for key in keys for value in values
]


def rejection(function, setting, *arguments, **changed):
    """Return the message of the error about a setting."""
    with pytest.raises(RecipeError) as caught:
        function(*arguments, **changed)
    assert caught.value.setting == setting
    return str(caught.value)


@pytest.mark.parametrize(("section", "key", "value", "expected"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_rejected(section, key, value, expected):
    message = rejection(build, f"{section}.{key}", section, **{key: value})
    assert message.startswith(f"[{section}] {key} must be ")
    assert expected in message


@pytest.mark.parametrize(
    ("section", "key", "word", "meant"),
    [
        ("model", "norm", "Pre", "pre"),
        ("train", "precision", "float16", "fp16"),
        ("train", "recompute", "layer", "layers"),
    ],
)
def test_a_wrong_word_is_rejected_with_the_one_that_was_meant(section, key, word, meant):
    message = rejection(build, f"{section}.{key}", section, **{key: word})
    assert message.startswith(f"[{section}] {key} must be one of ")
    assert message.endswith(f'; did you mean "{meant}"?')


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("model", {"dropout": 0.0, "attention_dropout": 0.99}),
        ("model", {"cutoffs": (1, 2, 3), "tie_projections": (True, False, True, False)}),
        ("model", {"cutoffs": (5, 7), "div_val": 4, "d_embed": 16}),
        ("model", {"cutoffs": (5, 7), "div_val": 3}),
        ("train", {"mem_len": 0, "momentum": 0.0, "seed": 0, "min_lr_ratio": 1.0}),
        ("train", {"average": "asgd", "average_patience": 0}),
        ("train", {"clip": None, "valid_seg_len": 12, "accumulate": 6, "optimizer": "sgd", "momentum": 0.9}),
        ("model", {"gating": "gru", "norm": "pre", "gate_bias": 0.0, "inner_dropout": 0.99, "output_dropout": None}),
        ("eval", {"mem_len": 0, "max_distance": 1, "seg_len": 2**31 - 1}),
        ("log", {"every": 2**31 - 1}),
        ("model", {"d_model": 2**31 - 2, "n_layers": 1000}),
        ("train", {"seed": 2**40, "mem_len": 2**31 - 1}),
        ("published", {"parameters": 2**40, "vocab_size": 2**31 - 1}),
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
    return MODELS[arch](**{**BASES[arch]["model"], **changed})


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
ALIBI = "model.position=alibi"
VANILLA = "train.mem_len=0 eval.mem_len=0"
MANY = str([*range(1, 1001)]).replace(" ", "")
RULES = f"""
transformer | train.attention=reference train.recompute=true | train.recompute | attention = "auto"
transformer | train.parallel=fsdp train.precision=fp16 | train.precision | "fsdp"
transformer | train.parallel=fsdp train.compile=on | train.compile | "fsdp"

transformer | train.schedule=constant train.cosine_from=warmup | train.cosine_from | "cosine"
transformer | train.schedule=constant train.cosine_until=5 | train.cosine_until | "cosine"
transformer | train.schedule=constant train.min_lr_ratio=0.1 | train.min_lr_ratio | "inverse_sqrt"
transformer | train.decay_share=0.1 | train.decay_share | "wsd"
transformer | train.plateau_factor=0.2 | train.plateau_factor | "plateau"
transformer | train.schedule=inverse_sqrt train.plateau_patience=2 | train.plateau_patience | "plateau"

transformer | train.average_patience=3 | train.average_patience | "asgd"
transformer | train.average=asgd train.average_decay=0.99 | train.average_decay | "exponential"
transformer | train.cosine_until=1.0 | train.cosine_until | a step of at least 2
transformer | train.cosine_until=1.7 | train.cosine_until | a step of at least 2
transformer | train.cosine_until=5.5 | train.cosine_until | a step of at least 2
transformer | train.cosine_until=0.1 | train.cosine_until | share of max_steps (11)
transformer | train.average=asgd train.average_from=0.1 | train.average_from | "mean"
transformer | train.average_lr_factor=0.5 | train.average_lr_factor | "mean"
transformer | train.average=mean | train.min_lr_ratio | whose steps have this rate
transformer | train.average=mean train.schedule=wsd | train.min_lr_ratio | whose steps have this rate
transformer | train.average=mean train.schedule=constant train.average_from=1.5 | train.average_from | max_steps (11)
transformer | train.average=mean train.schedule=constant train.average_from=11.0 | train.average_from | max_steps (11)
transformer | train.average=mean train.schedule=constant train.average_from=0.96 | train.average_from | max_steps (11)
transformer | train.average=mean train.schedule=constant train.average_from=0.04 | train.average_from | max_steps (11)

transformer | train.decay_norms=false | train.decay_norms | weight_decay = 0
transformer | train.momentum=0.9 | train.momentum | "muon" or "sgd"
transformer | train.optimizer=sgd train.betas=[0.9,0.99] | train.betas | "lamb"
transformer | train.betas=[0.9] | train.betas | two numbers
transformer | train.betas=[0.9,1.0] | train.betas | two numbers
transformer | train.betas=[nan,0.9] | train.betas | two numbers

transformer | train.loss_part=half | train.seg_len | even
transformer | train.accumulate=4 | train.accumulate | divisor of batch_size (6)
transformer | train.valid_seg_len=13 | train.valid_seg_len | seg_len + reread_len + mem_len (12)
transformer | train.reread_len=3 train.valid_seg_len=16 | train.valid_seg_len | reread_len + mem_len (15)
transformer | train.valid_attn_len=4 | train.seg_len | at most valid_attn_len (4)
transformer | train.valid_attn_len=9 train.valid_seg_len=10 | train.valid_seg_len | at most valid_attn_len (9)
transformer | train.parallel=fsdp train.valid_attn_len=9 train.valid_seg_len=3 | train.valid_attn_len | "fsdp"

transformer | model.cutoffs=[7,5] | model.cutoffs | larger than the one before
transformer | model.cutoffs=[0,5] | model.cutoffs | ids above 0
transformer | model.cutoffs={MANY} | model.cutoffs | fewer than 1000
transformer | model.tie_projections=[true,false] | model.tie_projections | bands (1)
transformer | model.cutoffs=[5,7] model.tie_projections=[true,false] | model.tie_projections | bands (3)
transformer | model.cutoffs=[5,7] model.div_val=4 | model.div_val | band 3
transformer | model.cutoffs=[5] model.div_val=8 model.d_embed=7 | model.div_val | band 2

transformer | model.d_model=15 | model.d_model | even
transformer | model.gating=gru | model.gating | "pre_released"
transformer | model.gate_bias=3.0 | model.gate_bias | "gru"
transformer | model.n_positions=5 | model.n_positions | "relative"
transformer | {LEARNED} | model.n_positions | vectors to learn
transformer | {ALIBI} model.tie_biases=false | model.tie_biases | "alibi"
transformer | {ALIBI} model.distance_dropout=0.5 | model.distance_dropout | "alibi"
transformer | model.position=rotary | model.d_head | "rotary"
compressive | model.position=sinusoid | model.position | encoding of distances
rmt | model.position=sinusoid | model.position | encoding of distances
compressive | model.window=4 | model.window | "compressive"
rmt | model.window=4 | model.window | "rmt"
compressive | model.auxiliary_losses=true | model.auxiliary_losses | "compressive"
rmt | model.auxiliary_losses=true | model.auxiliary_losses | "rmt"
rmt | model.memory_start=zeros | model.memory_start | its state
lstm | model.window=2 | model.window | "lstm"
qrnn | model.n_layers=1 model.d_hidden=11 | model.d_hidden | one layer

transformer | train.roll_lanes=true corpus.shuffle_sentences=true | train.roll_lanes | shuffle_sentences
transformer | train.roll_lanes=true corpus.shuffle_documents=true | train.roll_lanes | shuffle_documents
transformer | model.auxiliary_losses=true | model.auxiliary_losses | vanilla model
transformer | model.position=sinusoid train.reread_len=3 | train.reread_len | "sinusoid"
compressive | train.reread_len=3 | train.reread_len | "compressive"
rmt | train.reread_len=3 | train.reread_len | "rmt"
qrnn | train.reread_len=3 | train.reread_len | "qrnn"
compressive | train.reset_at_documents=true | train.reset_at_documents | "compressive"
rmt | train.reset_at_documents=true | train.reset_at_documents | "rmt"
transformer | model.position=sinusoid train.reset_at_documents=true | train.reset_at_documents | "sinusoid"
transformer | model.memory_start=zeros train.reset_at_documents=true | train.reset_at_documents | "zeros"
transformer | model.auxiliary_losses=true train.mem_len=0 train.reset_at_documents=true | train.reset_at_documents | aux
transformer | train.parallel=fsdp train.reset_at_documents=true | train.reset_at_documents | "fsdp"
transformer | train.valid_attn_len=9 train.reset_at_documents=true | train.reset_at_documents | valid_attn_len
compressive | train.seg_len_jitter=true | train.seg_len_jitter | "compressive"
rmt | train.seg_len_jitter=true | train.seg_len_jitter | "rmt"
compressive | train.mem_len=0 | train.mem_len | greater than 0
compressive | train.seg_len=7 | train.seg_len | model.compression_rate (2)
rmt | train.seg_len=7 | train.seg_len | model.segment_len (3)

rmt | train.mem_len=7 | train.mem_len | its state
qrnn | train.mem_len=5 | train.mem_len | its state
qrnn | train.valid_seg_len=3 | train.valid_seg_len | its state
qrnn | eval.mem_len=5 | eval.mem_len | its state
transformer | eval.compressed_len=3 | eval.compressed_len | "compressive"
transformer | model.position=sinusoid train.mem_len=0 | eval.mem_len | "sinusoid" and train.mem_len = 0
transformer | {LEARNED} model.n_positions=5 train.mem_len=0 | eval.mem_len | "learned" and train.mem_len = 0

compressive | eval.same_length=m | eval.same_length | all of its memory
rmt | eval.same_length=m | eval.same_length | all of its memory
lstm | train.compile=on | train.compile | no layers with attention
lstm | train.attention=reference | train.attention | no layers with attention
qrnn | eval.max_distance=5 | eval.max_distance | no layers with attention
qrnn | eval.same_length=off | eval.same_length | no layers with attention
transformer | model.position=rotary model.d_head=4 eval.max_distance=3 | eval.max_distance | "rotary"
rmt | eval.max_distance=4 | eval.max_distance | "relative"

transformer | {LEARNED} model.n_positions=4 | train.seg_len | n_positions (4)
transformer | {LEARNED} model.n_positions=24 train.seg_len_jitter=true | train.seg_len | tokens of jitter
transformer | {LEARNED} model.n_positions=6 train.valid_seg_len=7 | train.valid_seg_len | n_positions (6)
transformer | {LEARNED} model.n_positions=6 train.valid_attn_len=7 train.valid_seg_len=2 | train.valid_attn_len | (6)
transformer | {LEARNED} model.n_positions=5 {VANILLA} eval.seg_len=6 | eval.seg_len | n_positions (5)
transformer | {LEARNED} model.n_positions=6 {VANILLA} model.window=7 | model.window | no segment is longer
"""
"""Architecture, changes, the setting that is rejected with them, and a telling word of the message."""


@pytest.mark.parametrize("arch", BASES)
def test_the_settings_to_which_the_others_are_changes_are_valid(arch):
    assert resolve(arch).model.arch == arch


@pytest.mark.parametrize("row", [row for row in RULES.splitlines() if row])
def test_settings_that_do_not_suit_each_other_are_rejected(row):
    arch, changes, setting, word = row.split(" | ")
    section, _, key = setting.partition(".")
    message = rejection(resolve, setting, arch, *changes.split())
    assert f": [{section}] {key} must be " in message
    assert word in message


def test_distances_of_a_compressed_memory_count_its_slots():
    settings = resolve("compressive", "eval.compressed_len=9").evaluation_settings()
    assert settings.max_distance == 6 + 8 + 5  # M = 7 with a rate of 2 keeps 8 positions


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
