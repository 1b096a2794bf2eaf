"""Converts between config.json of Hugging Face's TransfoXL and txl's settings."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.errors import RunError, UsageError
from txlcli.system.input_files import MAX_SETTINGS, read_text
from txlcli.system.plain_json import parse_json
from txlcli.workflows.exchange.weights import INDEX

CONFIG = "config.json"
FILES_OF_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of the file of weights in a Hugging Face directory."""
MODEL_TYPE = "transfo-xl"
TABLE = files("txlcli.workflows.exchange") / "huggingface.toml"
KEYS = tomllib.loads(TABLE.read_text(encoding="utf-8"))
"""Keys of config.json, with their defaults."""


def file_of_weights(directory: Path) -> Path:
    """Return the file of weights in a Hugging Face directory, or the index of its shards."""
    for name in FILES_OF_WEIGHTS:
        for path in (directory / name, directory / f"{name}{INDEX}"):
            if path.exists():
                return path
    raise RunError(f"{directory} has neither {' nor '.join(FILES_OF_WEIGHTS)}, nor the index ({INDEX}) of their shards")


def reject_own_export(directory: Path) -> None:
    """Reject a directory that `txl export` wrote for Transformers."""
    try:
        model_type = parse_json(read_text(directory / CONFIG, MAX_SETTINGS)).get("model_type")
    except (OSError, ValueError, AttributeError, UsageError):  # the caller reports what is wrong
        return
    if model_type == "txl":
        raise RunError(
            f"{directory} is a model that txl exported for Transformers, which evaluates it; txl reads the run itself, "
            "and imports exports with `format` hf only"
        )


def read_keys(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the keys of [model] and [eval] for the configuration in a directory."""
    reject_own_export(directory)
    path = directory / CONFIG
    try:
        stored = parse_json(read_text(path, MAX_SETTINGS))
        model_type = stored.get("model_type")
        if "model_type" not in stored and "n_token" in stored:  # of the first releases
            model_type = MODEL_TYPE
        if model_type != MODEL_TYPE:
            raise RunError(
                f'{path}: model_type is "{model_type}", not "{MODEL_TYPE}"; only Transformer-XL can be imported'
            )
        return keys_of(stored)
    except FileNotFoundError as error:
        raise RunError(f"{directory} has no {CONFIG}; give a Hugging Face folder, or a file of weights") from error
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RunError(f"{path}: not readable as a configuration ({error}); download it again") from error


def keys_of(stored: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the keys of [model] and [eval] for a configuration."""
    config = dict(KEYS["defaults"])
    for key, value in stored.items():
        config[KEYS["earlier_names"].get(key, key)] = value
    model = {ours: config[theirs] for ours, theirs in KEYS["same_values"].items()}
    model["norm"] = "pre_released" if config["pre_lnorm"] else "post"
    model["tie_biases"] = not config["untie_r"]
    tails = [bool(config["proj_share_all_but_first"])] * len(config["cutoffs"])
    model["tie_projections"] = config.get("tie_projs") or [False, *tails]
    same_length = "m" if config["same_length"] else "off"
    max_distance = config["clamp_len"]
    if max_distance <= 0:  # a model without it was trained on the distances of its own lengths, and on no others
        max_distance = config["tgt_len"] + config["mem_len"]
    evaluation = {
        "seg_len": config["tgt_len"],
        "mem_len": config["mem_len"],
        "max_distance": max_distance,
        "same_length": same_length,
    }
    return {"model": model, "eval": evaluation}


def config_of(
    model: TransformerSettings, evaluation: EvalSettings, vocab_size: int, boundary: int | None
) -> dict[str, Any]:
    """Return the configuration with which Hugging Face's TransfoXL is the same model."""
    # Without memory nothing limits the keys. With same_length, Hugging Face's model sees M keys including the token.
    same_length = evaluation.same_length != "off" and evaluation.mem_len > 0
    mem_len = evaluation.mem_len
    if same_length and evaluation.same_length == "m_plus_one":
        mem_len += 1
    config = {theirs: getattr(model, ours) for ours, theirs in KEYS["same_values"].items()}
    return config | {
        "model_type": MODEL_TYPE,
        "architectures": ["TransfoXLLMHeadModel"],
        "vocab_size": vocab_size,
        "d_embed": model.embed_width,
        "pre_lnorm": model.norm == "pre_released",
        "mem_len": mem_len,
        "tgt_len": evaluation.seg_len,
        "clamp_len": evaluation.max_distance or -1,
        "same_length": same_length,
        "tie_projs": list(model.tie_projections or [False, *[True] * len(model.cutoffs)]),
        "attn_type": 0,
        "untie_r": not model.tie_biases,
        "eos_token_id": boundary,
    }
