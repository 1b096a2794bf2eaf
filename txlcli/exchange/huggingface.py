"""Converts between config.json of Hugging Face's TransfoXL and txl's settings."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.config.blocks import BLOCKS
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.errors import RecipeError, RunError
from txlcli.system.input_files import MAX_SETTINGS, read_text
from txlcli.system.plain_json import parse_json

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of the file of weights in a Hugging Face directory."""
MODEL_TYPE = "transfo-xl"
SEG_LEN = 128
"""Default of `tgt_len`: that of the released evaluation of the large model."""
DEFAULTS: dict[str, Any] = {
    "vocab_size": 267_735,
    "cutoffs": [20_000, 40_000, 200_000],
    "d_model": 1024,
    "d_embed": 1024,
    "n_head": 16,
    "d_head": 64,
    "d_inner": 4096,
    "div_val": 4,
    "pre_lnorm": False,
    "n_layer": 18,
    "mem_len": 1600,
    "clamp_len": 1000,
    "same_length": True,
    "proj_share_all_but_first": True,
    "attn_type": 0,
    "untie_r": True,
    "tie_word_embeddings": True,
    "dropout": 0.1,
    "dropatt": 0.0,
    "init_std": 0.02,
    "proj_init_std": 0.01,
    "layer_norm_epsilon": 1e-5,
    "memory_start": "zeros",  # a key of txl, which Hugging Face ignores
}
"""Values of keys that a configuration leaves out."""
SAME_VALUES = {
    "n_layers": "n_layer",
    "d_model": "d_model",
    "n_heads": "n_head",
    "d_head": "d_head",
    "d_inner": "d_inner",
    "div_val": "div_val",
    "dropout": "dropout",
    "attention_dropout": "dropatt",
    "norm_eps": "layer_norm_epsilon",
    "memory_start": "memory_start",
    "init_std": "init_std",
    "proj_init_std": "proj_init_std",
}
"""Keys of the configuration whose values are those of a [model] setting, by the name of the setting."""


def file_of_weights(directory: Path) -> Path:
    """Return the file of weights in a Hugging Face directory."""
    for name in WEIGHTS:
        if (directory / name).exists():
            return directory / name
    raise RunError(f"{directory} has neither {' nor '.join(WEIGHTS)}; sharded weights must be merged first")


def read_config(directory: Path) -> dict[str, Any]:
    """Read the configuration in a directory, and complete it with defaults."""
    path = directory / CONFIG
    try:
        config = parse_json(read_text(path, MAX_SETTINGS))
    except FileNotFoundError as error:
        raise RunError(f"{directory} has no {CONFIG}; give a Hugging Face folder, or a file of weights") from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: not readable as JSON ({error}); download it again") from error
    if not isinstance(config, Mapping) or config.get("model_type") != MODEL_TYPE:
        model_type = config.get("model_type") if isinstance(config, Mapping) else type(config).__name__
        raise RunError(f'{path}: model_type is "{model_type}", not "{MODEL_TYPE}"; only Transformer-XL can be imported')
    complete = DEFAULTS | dict(config)
    if complete["attn_type"] != 0:
        raise RunError(
            f"{path}: attn_type {complete['attn_type']} is not the attention of Transformer-XL; "
            "only models with attn_type 0 can be imported"
        )
    return complete


def model_settings(config: Mapping[str, Any], where: Path) -> TransformerSettings:
    """Return the [model] settings of a configuration."""
    shared = _flag(config, "proj_share_all_but_first", where)
    cutoffs = config["cutoffs"]
    tails = len(cutoffs) if isinstance(cutoffs, list) else 0
    keys = {
        **{ours: config[theirs] for ours, theirs in SAME_VALUES.items()},
        "norm": "pre_released" if _flag(config, "pre_lnorm", where) else "post",
        "tie_biases": not _flag(config, "untie_r", where),
        "cutoffs": cutoffs,
        "d_embed": config["d_embed"],
        "tie_embeddings": _flag(config, "tie_word_embeddings", where),
        "tie_projections": config.get("tie_projs", [False] + [shared] * tails),
    }
    settings = _section("model", keys, where)
    assert isinstance(settings, TransformerSettings)
    return settings


def eval_settings(config: Mapping[str, Any], where: Path) -> EvalSettings:
    """Return the [eval] settings of a configuration."""
    same = "m" if _flag(config, "same_length", where) else "off"
    keys = {"seg_len": config.get("tgt_len", SEG_LEN), "mem_len": config["mem_len"], "same_length": same}
    settings: EvalSettings = _section("eval", keys, where)
    clamp = config["clamp_len"]
    if not isinstance(clamp, int):
        raise RunError(f"{where}: clamp_len must be a whole number, not {clamp!r}")
    # A model without clamp_len was trained on the distances of its own lengths, and on no others.
    return dataclasses.replace(settings, max_distance=clamp if clamp > 0 else settings.seg_len + settings.mem_len)


def vocab_size(config: Mapping[str, Any], where: Path) -> int:
    """Return the vocabulary size of a configuration."""
    size = config["vocab_size"]
    if type(size) is not int or size < 1:
        raise RunError(f"{where}: vocab_size must be a whole number above 0, not {size!r}")
    return size


def _flag(config: Mapping[str, Any], key: str, where: Path) -> bool:
    value = config[key]
    if not isinstance(value, bool):
        raise RunError(f"{where}: {key} must be true or false, not {value!r}")
    return value


def _section(name: str, keys: Mapping[str, Any], where: Path) -> Any:
    try:
        return recipe.section(name, keys)
    except RecipeError as error:
        raise RunError(f"{where}: {error}") from error


def _other_settings(model: ModelSettings) -> Iterator[tuple[str, object, str]]:
    """Yield the settings that Hugging Face's TransfoXL does not have: name, value, and the value to train with."""
    if not isinstance(model, TransformerSettings) or model.arch != "transformer":
        yield "arch", model.arch, '"transformer"'
        return
    if not model.encoding.transformer_xl:
        yield "position", model.position, '"relative"'
    if model.auxiliary_losses:
        yield "auxiliary_losses", True, "false"
    if model.norm == "pre":  # ends in a layer norm
        yield "norm", model.norm, '"post" or "pre_released"'
    if model.window is not None:
        yield "window", model.window, '"none"'
    if model.gating != "residual":
        yield "gating", model.gating, '"residual"'
    for name, expected in dataclasses.asdict(BLOCKS["paper"]).items():
        if (value := getattr(model.parts, name)) != expected:
            yield name, value, f'"{expected}", as in block = "paper"'
    if model.depends_on_segments:
        yield "memory_source", model.memory_source, '"layer_input"'


def config_of(model: ModelSettings, evaluation: EvalSettings, vocab_size: int, boundary: int | None) -> dict[str, Any]:
    """Return the configuration with which Hugging Face's TransfoXL is the same model."""
    for name, value, usual in _other_settings(model):
        shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
        raise RunError(
            f"model.{name} = {shown}: Hugging Face's TransfoXL has no such model; to export, train with {usual}"
        )
    assert isinstance(model, TransformerSettings)
    # Without memory nothing limits the keys. With same_length, Hugging Face's model sees M keys including the token.
    same_length = evaluation.same_length != "off" and evaluation.mem_len > 0
    one_more = same_length and evaluation.same_length == "m_plus_one"
    bands = len(model.cutoffs) + 1
    return {
        **{theirs: getattr(model, ours) for ours, theirs in SAME_VALUES.items()},
        "model_type": MODEL_TYPE,
        "architectures": ["TransfoXLLMHeadModel"],
        "vocab_size": vocab_size,
        "cutoffs": list(model.cutoffs),
        "d_embed": model.embed_width,
        "pre_lnorm": model.norm == "pre_released",
        "mem_len": evaluation.mem_len + 1 if one_more else evaluation.mem_len,
        "tgt_len": evaluation.seg_len,
        "clamp_len": evaluation.max_distance or -1,
        "same_length": same_length,
        "tie_projs": list(model.tie_projections or [number > 0 for number in range(bands)]),
        "attn_type": 0,
        "untie_r": not model.tie_biases,
        "tie_word_embeddings": model.tie_embeddings,
        "eos_token_id": boundary,
    }
