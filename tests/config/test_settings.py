"""Every setting has a description, a valid default and a range."""

import ast
import dataclasses
import inspect

import pytest

from txlcli.config import model_settings, settings
from txlcli.config.model_settings import (
    MODELS,
    CompressiveSettings,
    ModelSettings,
    RmtSettings,
    RnnSettings,
    TransformerSettings,
)
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


def classes():
    trees = [ast.parse(inspect.getsource(module)) for module in (settings, model_settings)]
    return [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef) and node.name != "Settings"]


def test_every_section_is_a_frozen_dataclass_whose_docstring_names_it():
    expected = {name: cls for name, (cls, _) in SECTIONS.items()} | {"model": ModelSettings}
    assert {field.name: field.type for field in dataclasses.fields(Settings)} == expected
    assert {
        "transformer": TransformerSettings,
        "compressive": CompressiveSettings,
        "rmt": RmtSettings,
        "lstm": RnnSettings,
        "qrnn": RnnSettings,
    } == MODELS
    for name, (cls, _) in SECTIONS.items():
        assert cls.__doc__.startswith(f"[{name}]"), name
        with pytest.raises(dataclasses.FrozenInstanceError):
            build(name).anything = 1


@pytest.mark.parametrize("node", classes(), ids=lambda node: node.name)
def test_every_field_has_a_docstring(node):
    fields = [index for index, line in enumerate(node.body) if isinstance(line, ast.AnnAssign)]
    assert fields
    for index in fields:
        below = node.body[index + 1]
        name = node.body[index].target.id
        assert isinstance(below, ast.Expr), name
        assert isinstance(below.value.value, str), name
        assert below.value.value.endswith("."), name


@pytest.mark.parametrize("section", SECTIONS)
def test_every_default_is_valid(section):
    assert type(build(section)) is SECTIONS[section][0]


PLAIN = 'the name of a store: letters, digits, ".", "-" and "_"'
OUT_OF_RANGE = [
    ("corpus", {"store": ""}, f"store must be {PLAIN}, not ''"),
    ("corpus", {"store": "data/enwik8.h5"}, f"store must be {PLAIN}, not 'data/enwik8.h5'"),
    ("corpus", {"store": ".."}, f"store must be {PLAIN}, not '..'"),
    ("train", {"lr": float("inf")}, "lr must be a finite number, not inf"),
    ("train", {"weight_decay": float("nan")}, "weight_decay must be 0 or more, not nan"),
    ("train", {"seed": 2**63}, f"seed must be from 0 to {2**63 - 1}, not {2**63}"),
    ("published", {"vocab_size": -1}, "vocab_size must be greater than 0, not -1"),
    *[
        ("model", {key: value}, f"{key} must be greater than 0, not {value}")
        for key in (
            "n_layers",
            "d_model",
            "n_heads",
            "d_head",
            "d_inner",
            "d_embed",
            "div_val",
            "norm_eps",
            "init_std",
            "proj_init_std",
        )
        for value in (0, -2)
    ],
    ("model", {"d_model": 15}, "d_model must be even (half sines, half cosines), not 15"),
    *[
        ("model", {key: value}, f"{key} must be at least 0 and less than 1, not {value}")
        for key in (
            "dropout",
            "embedding_dropout",
            "inner_dropout",
            "output_dropout",
            "word_dropout",
            "attention_dropout",
        )
        for value in (-0.1, 1.0, float("nan"))
    ],
    ("model", {"norm": "Pre"}, "norm must be one of post, pre, pre_released, not 'Pre'; did you mean \"pre\"?"),
    ("model", {"init": "TF"}, "init must be one of pytorch, tf, not 'TF'"),
    (
        "model",
        {"memory_start": "zero"},
        "memory_start must be one of empty, zeros, not 'zero'; did you mean \"zeros\"?",
    ),
    *[
        ("model", {"cutoffs": cutoffs}, f"cutoffs must be ids above 0, each larger than the one before, not {shown}")
        for cutoffs, shown in [((5, 5), "[5, 5]"), ((7, 5), "[7, 5]"), ((0, 5), "[0, 5]"), ((-5,), "[-5]")]
    ],
    ("model", {"tie_projections": (True, False)}, "tie_projections must be as many as bands (1), not [True, False]"),
    (
        "model",
        {"cutoffs": (5, 7), "tie_projections": (True, False)},
        "tie_projections must be as many as bands (3), not [True, False]",
    ),
    # 14 // 4^2 and 7 // 8 are 0.
    (
        "model",
        {"cutoffs": (5, 7), "div_val": 4},
        "div_val must be small enough to leave band 3 a width, not 4",
    ),
    (
        "model",
        {"cutoffs": (5,), "div_val": 8, "d_embed": 7},
        "div_val must be small enough to leave band 2 a width, not 8",
    ),
    *[
        ("train", {key: value}, f"{key} must be greater than 0, not {value}")
        for key in (
            "seg_len",
            "batch_size",
            "max_steps",
            "accumulate",
            "lr",
            "clip",
            "valid_every",
            "valid_seg_len",
            "valid_batch_size",
            "valid_tokens",
        )
        for value in (0, -1)
    ],
    *[
        ("train", {key: -1}, f"{key} must be 0 or more, not -1")
        for key in (
            "mem_len",
            "momentum",
            "weight_decay",
            "warmup_steps",
            "plateau_patience",
            "average_patience",
        )
    ],
    *[("model", {"window": value}, f"window must be 2 or more, not {value}") for value in (-1, 0, 1)],
    ("model", {"gating": "gru"}, """gating must be "residual" unless norm = "pre" or "pre_released", not 'gru'"""),
    ("model", {"gate_bias": 3.0}, 'gate_bias must be left out unless gating = "gru", not 3.0'),
    ("model", {"gating": "gru", "norm": "pre", "gate_bias": -1.0}, "gate_bias must be 0 or more, not -1.0"),
    ("train", {"seed": -1}, f"seed must be from 0 to {2**63 - 1}, not -1"),
    ("train", {"lr": float("nan")}, "lr must be greater than 0, not nan"),
    (
        "train",
        {"optimizer": "adma"},
        "optimizer must be one of adam, adamw, lamb, muon, sgd, not 'adma'; did you mean \"adam\"?",
    ),
    (
        "train",
        {"schedule": "xyz"},
        "schedule must be one of cosine, inverse_sqrt, constant, plateau, not 'xyz'",
    ),
    (
        "train",
        {"precision": "float16"},
        "precision must be one of fp32, tf32, bf16, fp16, not 'float16'; did you mean \"fp16\"?",
    ),
    (
        "train",
        {"cosine_from": "warm_up"},
        "cosine_from must be one of start, warmup, not 'warm_up'; did you mean \"warmup\"?",
    ),
    *[
        (
            "train",
            {"schedule": schedule, key: value},
            f"{key} must be {usual} unless schedule = {words}, not {value!r}",
        )
        for schedule, key, value, usual, words in (
            ("constant", "min_lr_ratio", 0.1, 0, '"cosine" or "inverse_sqrt" or "plateau"'),
            ("constant", "cosine_from", "warmup", '"start"', '"cosine"'),
            ("cosine", "plateau_factor", 0.2, 0.5, '"plateau"'),
            ("inverse_sqrt", "plateau_patience", 2, 0, '"plateau"'),
        )
    ],
    (
        "train",
        {"average": "ema"},
        "average must be one of none, asgd, exponential, not 'ema'; did you mean \"exponential\"?",
    ),
    *[
        (
            "train",
            {"average": average, key: value},
            f'{key} must be {usual} unless average = "{word}", not {value!r}',
        )
        for average, key, value, usual, word in (
            ("none", "average_patience", 3, 5, "asgd"),
            ("exponential", "average_patience", 0, 5, "asgd"),
            ("none", "average_decay", 0.99, 0.999, "exponential"),
            ("asgd", "average_decay", 0.99, 0.999, "exponential"),
        )
    ],
    *[
        (
            "train",
            {"average": "exponential", "average_decay": value},
            f"average_decay must be between 0 and 1, not {value}",
        )
        for value in (0.0, 1.0, float("nan"))
    ],
    ("train", {"min_lr_ratio": -0.1}, "min_lr_ratio must be from 0 to 1, not -0.1"),
    ("train", {"min_lr_ratio": 1.1}, "min_lr_ratio must be from 0 to 1, not 1.1"),
    ("train", {"plateau_factor": 0.0}, "plateau_factor must be between 0 and 1, not 0.0"),
    ("train", {"plateau_factor": 1.0}, "plateau_factor must be between 0 and 1, not 1.0"),
    ("train", {"accumulate": 4}, "accumulate must be a divisor of batch_size (6), not 4"),
    ("train", {"momentum": 0.9}, 'momentum must be 0 unless optimizer = "muon" or "sgd", not 0.9'),
    ("train", {"valid_seg_len": 13}, "valid_seg_len must be at most seg_len + mem_len (12), not 13"),
    *[
        ("eval", {key: value}, f"{key} must be greater than 0, not {value}")
        for key in ("seg_len", "batch_size", "max_distance")
        for value in (0, -1)
    ],
    ("eval", {"mem_len": -1}, "mem_len must be 0 or more, not -1"),
    ("eval", {"same_length": "n"}, "same_length must be one of m, m_plus_one, off, not 'n'"),
    ("log", {"every": 0}, "every must be greater than 0, not 0"),
]


@pytest.mark.parametrize(("section", "changed", "message"), OUT_OF_RANGE, ids=str)
def test_a_value_out_of_range_is_refused(section, changed, message):
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
    ],
    ids=str,
)
def test_the_limits_of_a_range_are_valid(section, changed):
    assert vars(build(section, **changed)).items() >= changed.items()


def build_rnn(arch, **changed):
    return RnnSettings(**{"arch": arch, "n_layers": 3, "d_model": 7, **changed})


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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *[
            ({key: value}, f"{key} must be greater than 0, not {value}")
            for key in ("d_hidden", "window")
            for value in (0, -2)
        ],
        ({"n_layers": 1, "d_hidden": 11}, "d_hidden must be left out with one layer, which is d_model wide, not 11"),
        ({"arch": "lstm", "window": 2}, 'window must be left out with arch = "lstm", not 2'),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, not 1.0"),
        (
            {"arch": "gru"},
            "arch must be one of transformer, compressive, rmt, lstm, qrnn, not 'gru'",
        ),
    ],
    ids=str,
)
def test_a_recurrent_model_out_of_range_is_refused(changed, message):
    with pytest.raises(RecipeError) as caught:
        build_rnn(changed.pop("arch", "qrnn"), **changed)
    assert str(caught.value) == f"[model] {message}"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("recompute", True, "false"),
        ("compile", True, "false"),
        ("cuda_graph", True, "false"),
        ("attention", "sdpa", "auto"),
    ],
)
def test_attention_settings_are_refused_for_recurrent_models(key, value, expected):
    train = build("train", mem_len=0, **{key: value})
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus"), build_rnn("lstm"), train, build("eval", mem_len=0))
    assert str(caught.value) == (
        f'[train] {key} must be {expected} with arch = "lstm", which has no layers with attention, not {value!r}'
    )


def test_word_dropout_needs_segments_of_two_tokens_or_more():
    train = build("train", seg_len=1)
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus"), build("model", word_dropout=0.1), train, build("eval"))
    assert str(caught.value) == "[model] word_dropout must be 0 with train.seg_len = 1, not 0.1"


def test_rolled_lanes_are_refused_with_shuffled_sentences():
    train = build("train", roll_lanes=True)
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus", shuffle_sentences=True), build("model"), train, build("eval"))
    assert str(caught.value) == "[train] roll_lanes must be false with corpus.shuffle_sentences, not True"


def test_flex_attention_is_refused_where_every_run_must_give_the_same_bits():
    with pytest.raises(RecipeError) as caught:
        build("train", deterministic=True, attention="flex")
    assert str(caught.value) == (
        "[train] attention must be auto, reference, sdpa or triton with deterministic, not 'flex'"
    )


def test_flex_attention_refuses_attention_dropout():
    train = build("train", attention="flex")
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus"), build("model", attention_dropout=0.1), train, build("eval"))
    assert str(caught.value) == '[model] attention_dropout must be 0 with train.attention = "flex", not 0.1'


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"accumulate": 2, "batch_size": 4}, "accumulate must be 1 with cuda_graph, not 2"),
        ({"recompute": True}, "recompute must be false with cuda_graph, not True"),
        ({"precision": "fp16"}, "precision must be fp32, tf32 or bf16 with cuda_graph, not 'fp16'"),
        ({"attention": "flex"}, "attention must be auto, reference or sdpa with cuda_graph, not 'flex'"),
    ],
    ids=str,
)
def test_a_cuda_graph_needs_a_whole_step_without_loss_scaling(changed, message):
    with pytest.raises(RecipeError) as caught:
        build("train", cuda_graph=True, **changed)
    assert str(caught.value) == f"[train] {message}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"precision": "fp16"}, "precision must be fp32, tf32 or bf16 with parallel = \"fsdp\", not 'fp16'"),
        ({"compile": True}, 'compile must be false with parallel = "fsdp", not True'),
    ],
    ids=str,
)
def test_divided_weights_refuse_loss_scaling_and_compiled_layers(changed, message):
    assert build("train", **changed).parallel == "ddp"
    with pytest.raises(RecipeError) as caught:
        build("train", parallel="fsdp", **changed)
    assert str(caught.value) == f"[train] {message}"


@pytest.mark.parametrize("changed", [{"cutoffs": (2,)}, {"auxiliary_losses": True}], ids=str)
def test_a_cuda_graph_is_refused_if_operations_differ_between_steps(changed):
    if "auxiliary_losses" in changed:
        changed |= {"position": "learned", "n_positions": 99}
    train = build("train", cuda_graph=True, mem_len=0)
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus"), build("model", **changed), train, build("eval", mem_len=0))
    assert str(caught.value) == (
        "[train] cuda_graph must be false with model.cutoffs or model.auxiliary_losses, whose operations differ "
        "between steps, not True"
    )


@pytest.mark.parametrize(
    ("section", "key"),
    [("model", "d_model"), ("train", "mem_len"), ("eval", "seg_len"), ("log", "every"), ("published", "vocab_size")],
)
def test_no_size_exceeds_the_largest_count(section, key):
    most = 2**31 - 1
    most -= key == "d_model"  # which must be even
    assert getattr(build(section, **{key: most}), key) == most
    with pytest.raises(RecipeError) as caught:
        build(section, **{key: 2**31})
    assert str(caught.value) == f"[{section}] {key} must be at most 2147483647, not 2147483648"


def test_layers_and_bands_that_would_take_forever_to_build_are_refused():
    assert build("model", n_layers=1000).n_layers == 1000
    with pytest.raises(RecipeError) as caught:
        build("model", n_layers=1_000_000_000)
    assert str(caught.value) == "[model] n_layers must be at most 1000, not 1000000000"
    with pytest.raises(RecipeError) as caught:
        build("model", cutoffs=tuple(range(1, 1001)))
    assert str(caught.value) == "[model] cutoffs must be fewer than 1000 ids, not 1000"


def test_seeds_and_parameter_counts_may_exceed_the_largest_count():
    assert build("train", seed=2**40).seed == 2**40
    assert build("published", parameters=2**40).parameters == 2**40


def test_recompute_needs_the_default_attention():
    with pytest.raises(RecipeError) as caught:
        build("train", attention="sdpa", recompute=True)
    assert str(caught.value) == '[train] recompute must be false unless attention = "auto", not True'


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("train", "mem_len", 5, "0"),
        ("train", "valid_seg_len", 3, "left out"),
        ("eval", "mem_len", 5, "0"),
        ("eval", "max_distance", 5, "left out"),
        ("eval", "same_length", "off", "left out"),
    ],
)
def test_memory_settings_are_refused_for_recurrent_models(section, key, value, expected):
    none = {"mem_len": 0}
    more = {"train": dict(none), "eval": dict(none)}
    more[section][key] = value
    parts = {name: build(name, **more[name]) for name in more}
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus"), build_rnn("qrnn"), **parts)
    assert (
        str(caught.value)
        == f'[{section}] {key} must be {expected} with arch = "qrnn": its state is its memory, not {value!r}'
    )
    Settings(build("corpus"), build("model"), **parts)
    Settings(build("corpus"), build_rnn("lstm"), train=build("train", **none), eval=build("eval", **none))


@pytest.mark.parametrize(
    ("model", "train", "evaluation", "message"),
    [
        (
            {"position": "learned", "n_positions": 4},
            {},
            {},
            "[train] seg_len must be at most model.n_positions (4), not 5",
        ),
        (
            {"position": "learned", "n_positions": 6},
            {"valid_seg_len": 7},
            {},
            "[train] valid_seg_len must be at most model.n_positions (6), not 7",
        ),
        (
            {"position": "learned", "n_positions": 5},
            {"mem_len": 0},
            {"mem_len": 0, "seg_len": 6},
            "[eval] seg_len must be at most model.n_positions (5), not 6",
        ),
        (
            {"position": "learned", "n_positions": 5},
            {"mem_len": 0},
            {},
            '[eval] mem_len must be 0 with position = "learned" and train.mem_len = 0, not 7',
        ),
        (
            {"position": "learned", "n_positions": 6, "window": 7},
            {"mem_len": 0},
            {"mem_len": 0},
            "[model] window must be at most model.n_positions (6) without memory: no segment is longer, not 7",
        ),
        (
            {"memory_source": "layer_output"},
            {"mem_len": 0},
            {},
            """[model] memory_source must be "layer_input" with train.mem_len = 0, not 'layer_output'""",
        ),
        (
            {"position": "sinusoid"},
            {"mem_len": 0},
            {},
            '[eval] mem_len must be 0 with position = "sinusoid" and train.mem_len = 0, not 7',
        ),
    ],
)
def test_memory_and_lengths_must_suit_absolute_positions(model, train, evaluation, message):
    parts = {"train": build("train", **train), "eval": build("eval", **evaluation)}
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus"), build("model", **model), **parts)
    assert str(caught.value) == message
    Settings(build("corpus"), build("model"), **parts)  # distances mean the same everywhere


def build_compressive(**changed):
    own = {"arch": "compressive", "compressed_len": 5, "compression_rate": 2}
    return CompressiveSettings(**{**SECTIONS["model"][1], **own, **changed})


@pytest.mark.parametrize(
    ("model", "train", "evaluation", "message"),
    [
        ({"window": 4}, {}, {}, '[model] window must be left out with arch = "compressive", not 4'),
        (
            {"memory_source": "layer_output"},
            {},
            {},
            """[model] memory_source must be "layer_input" with arch = "compressive", not 'layer_output'""",
        ),
        (
            {"position": "sinusoid"},
            {},
            {},
            """[model] position must be an encoding of distances, or none, with arch = "compressive", not 'sinusoid'""",
        ),
        (
            {"auxiliary_losses": True},
            {},
            {},
            '[model] auxiliary_losses must be false with arch = "compressive", not True',
        ),
        ({"compression_rate": 1}, {}, {}, "[model] compression_rate must be 2 or more, not 1"),
        ({"compressed_len": 0}, {}, {}, "[model] compressed_len must be greater than 0, not 0"),
        (
            {},
            {"mem_len": 0},
            {},
            '[train] mem_len must be greater than 0 with model.arch = "compressive", not 0',
        ),
        ({}, {"seg_len": 7}, {}, "[train] seg_len must be a multiple of model.compression_rate (2), not 7"),
        (
            {},
            {},
            {"same_length": "m"},
            """[eval] same_length must be "off" with model.arch = "compressive": queries see all of its memory, """
            """not 'm'""",
        ),
        ({}, {}, {"compressed_len": 0}, "[eval] compressed_len must be greater than 0, not 0"),
    ],
)
def test_a_compressed_memory_refuses_what_it_cannot_support(model, train, evaluation, message):
    with pytest.raises(RecipeError) as caught:
        Settings(
            build("corpus"),
            build_compressive(**model),
            train=build("train", **{"seg_len": 6, **train}),
            eval=build("eval", **{"same_length": "off", **evaluation}),
        )
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("model", "train", "evaluation", "message"),
    [
        ({"window": 4}, {}, {}, '[model] window must be left out with arch = "rmt", not 4'),
        (
            {"memory_source": "layer_output"},
            {},
            {},
            """[model] memory_source must be "layer_input" with arch = "rmt": its state is its memory, """
            """not 'layer_output'""",
        ),
        (
            {"memory_start": "zeros"},
            {},
            {},
            """[model] memory_start must be "empty" with arch = "rmt": its state is its memory, not 'zeros'""",
        ),
        (
            {"position": "sinusoid"},
            {},
            {},
            """[model] position must be an encoding of distances, or none, with arch = "rmt", not 'sinusoid'""",
        ),
        ({"auxiliary_losses": True}, {}, {}, '[model] auxiliary_losses must be false with arch = "rmt", not True'),
        ({"n_memory_tokens": 0}, {}, {}, "[model] n_memory_tokens must be greater than 0, not 0"),
        (
            {},
            {"seg_len": 7},
            {},
            "[train] seg_len must be a multiple of model.segment_len (3): gradients pass through that many segments, "
            "not 7",
        ),
        ({}, {"mem_len": 7}, {}, '[train] mem_len must be 0 with arch = "rmt": its state is its memory, not 7'),
        ({}, {}, {"mem_len": 7}, '[eval] mem_len must be 0 with arch = "rmt": its state is its memory, not 7'),
        (
            {},
            {},
            {"same_length": "m"},
            """[eval] same_length must be "off" with arch = "rmt": its state is its memory, not 'm'""",
        ),
        (
            {},
            {},
            {"max_distance": 4},
            '[eval] max_distance must be left out, or "none", with position = "relative", not 4',
        ),
        (
            {"attention_dropout": 0.1},
            {"attention": "flex"},
            {},
            '[model] attention_dropout must be 0 with train.attention = "flex", not 0.1',
        ),
    ],
)
def test_memory_tokens_refuse_what_they_cannot_support(model, train, evaluation, message):
    own = {"arch": "rmt", "segment_len": 3}
    with pytest.raises(RecipeError) as caught:
        Settings(
            build("corpus"),
            RmtSettings(**{**SECTIONS["model"][1], **own, **model}),
            train=build("train", **{"seg_len": 6, "mem_len": 0, **train}),
            eval=build("eval", **{"mem_len": 0, "same_length": "off", **evaluation}),
        )
    assert str(caught.value) == message


@pytest.mark.parametrize("arch", ["transformer", "lstm"])
def test_other_models_have_no_compressed_memory(arch):
    model, mem_len = (build("model"), 7) if arch == "transformer" else (build_rnn(arch), 0)
    parts = {"train": build("train", mem_len=mem_len), "eval": build("eval", mem_len=mem_len, compressed_len=3)}
    with pytest.raises(RecipeError) as caught:
        Settings(build("corpus"), model, **parts)
    assert str(caught.value) == '[eval] compressed_len must be left out unless model.arch = "compressive", not 3'


def test_distances_of_a_compressed_memory_count_its_slots():
    parts = {"train": build("train", seg_len=6, mem_len=7), "eval": build("eval", same_length="off", compressed_len=9)}
    settings = Settings(build("corpus"), build_compressive(), **parts)
    assert settings.evaluation_settings().max_distance == 6 + 7 + 5


def test_a_window_fits_learned_positions_or_a_memory():
    learned = {"position": "learned", "n_positions": 6}
    for window, mem_len in ((6, 0), (2, 0), (7, 7)):  # with memory, a query may see more keys than positions
        parts = build("train", mem_len=mem_len), build("eval", mem_len=mem_len)
        settings = Settings(build("corpus"), build("model", **learned, window=window), *parts)
        assert settings.model.attention_window == window


def test_a_window_limits_the_memory_that_is_kept():
    assert [build("model", window=4).visible_memory(mem_len) for mem_len in (0, 2, 3, 7)] == [0, 2, 3, 3]
    assert build("model").visible_memory(7) == 7
    assert (build("model").attention_window, build_rnn("qrnn", window=3).attention_window) == (None, None)


def test_max_distance_defaults_to_the_trained_length_in_evaluation():
    parts = build("corpus"), build("model"), build("train", seg_len=5, mem_len=7)
    open_ended, limited = (Settings(*parts, build("eval", max_distance=limit)) for limit in (None, 3))
    assert open_ended.evaluation_settings() == dataclasses.replace(open_ended.eval, max_distance=5 + 7)
    assert limited.evaluation_settings(mem_len=11) == dataclasses.replace(limited.eval, mem_len=11)
    state = Settings(build("corpus"), build_rnn("lstm"), build("train", mem_len=0), build("eval", mem_len=0))
    assert state.evaluation_settings(batch_size=1) == dataclasses.replace(state.eval, batch_size=1)


@pytest.mark.parametrize(
    "model",
    [
        {"position": "sinusoid"},
        {"position": "learned", "n_positions": 11},
        {"position": "rotary", "d_head": 4},
        {"position": "alibi"},
        {"position": "none"},
    ],
    ids=lambda model: model["position"],
)
def test_positions_without_learned_distances_have_no_max_distance(model):
    position = model["position"]
    parts = build("corpus"), build("model", **model), build("train")
    assert Settings(*parts, build("eval")).evaluation_settings().max_distance is None
    with pytest.raises(RecipeError) as caught:
        Settings(*parts, build("eval", max_distance=3))
    assert str(caught.value) == (
        f'[eval] max_distance must be left out, or "none", with position = "{position}", not 3'
    )
    shaw = build("model", position="shaw", n_positions=11)
    limited = Settings(build("corpus"), shaw, build("train"), build("eval", max_distance=3))
    assert limited.evaluation_settings().max_distance == 3


@pytest.mark.parametrize(
    ("model", "longest"),
    [
        (build("model", position="learned", n_positions=11), 11),
        (build("model", position="shaw", n_positions=11), None),  # distances, not positions
        (build("model", position="sinusoid"), None),
        (build("model"), None),
        (build_rnn("lstm"), None),
    ],
    ids=lambda value: getattr(value, "position", getattr(value, "arch", "")),
)
def test_only_learned_positions_limit_a_window(model, longest):
    assert model.longest_window == longest


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
