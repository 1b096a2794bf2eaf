"""Writes a run as a folder that Hugging Face Transformers 5 opens: settings, weights, code, tokenizer and card."""

import shutil
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from txlcli.config.bands import bands
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RunError
from txlcli.runs.loading import OpenRun
from txlcli.workflows.exchange import weights
from txlcli.workflows.exchange.export_directory import write_json
from txlcli.workflows.exchange.huggingface import CONFIG
from txlcli.workflows.exchange.model_card import card_of

WEIGHTS = "model.safetensors"
CARD = "README.md"
MODEL_CODE = "modeling_txl.py"
TOKENIZER_CODE = "tokenization_txl.py"
TOKENIZER_CONFIG = "tokenizer_config.json"
FILES: tuple[str, ...] = (CONFIG, WEIGHTS, CARD, MODEL_CODE, TOKENIZER_CODE, TOKENIZER_CONFIG)
CODE = files("txlcli.workflows.exchange") / "transformers_files"
EXPORTED_POSITIONS = ("relative", "relative_tied", "shaw", "sinusoid", "learned", "rotary", "alibi", "t5", "none")
EXPORTED_FEED_FORWARDS = ("relu", "swiglu")
SAME_SETTINGS = (
    "n_layers",
    "d_model",
    "n_heads",
    "d_head",
    "position",
    "tie_biases",
    "tie_embeddings",
    "norm",
    "norm_eps",
    "gating",
    "gate_bias",
    "memory_start",
    "init_std",
    "dropout",
    "attention_dropout",
    "projection_dropout",
    "variational_dropout",
    "word_dropout",
)
"""Settings of [model] that config.json has under the same names."""
DROPOUTS = ("embedding_dropout", "output_dropout", "distance_dropout", "feed_forward_dropout")


def check_architecture(opened: OpenRun) -> None:
    """Reject a run whose model is not a Transformer-XL."""
    arch = opened.model.settings.arch
    if arch != "transformer":
        raise RunError(f'{opened.run.directory}: only arch = "transformer" can be exported, not "{arch}"')


def check(opened: OpenRun) -> None:
    """Reject a run whose model the code in the folder does not compute."""
    check_architecture(opened)
    registered = registered_part(opened.transformer.settings)
    if registered is not None:
        raise RunError(
            f"{opened.run.directory}: {registered} is not part of the exported code: only `format` pt2 exports it"
        )


def registered_part(settings: TransformerSettings) -> str | None:
    """Return a setting that names a part of a package, which the code in the folder lacks; None if there is none."""
    if settings.position not in EXPORTED_POSITIONS:
        return f'position = "{settings.position}"'
    if settings.parts.feed_forward not in EXPORTED_FEED_FORWARDS:
        return f'feed_forward = "{settings.parts.feed_forward}"'
    return None


def write(opened: OpenRun, draft: Path) -> None:
    """Write the files of the folder."""
    model = opened.transformer
    config = config_of(model.settings, opened.run.settings.evaluation_settings(), model.vocab_size)
    write_json(draft / CONFIG, config)
    weights.write(draft / WEIGHTS, weights_of(model))
    names = [MODEL_CODE]
    if opened.vocab.tokenizer != "ids":  # ids have no text
        names.append(TOKENIZER_CODE)
        tokenizer = {
            "auto_map": {"AutoTokenizer": ["tokenization_txl.TxlTokenizer", None]},
            "tokenizer_class": "TxlTokenizer",
        }
        write_json(draft / TOKENIZER_CONFIG, tokenizer)
    for name in names:
        shutil.copyfile(str(CODE / name), draft / name)
    (draft / CARD).write_text(card_of(opened), encoding="utf-8")


def weights_of(model: TransformerXL) -> dict[str, Any]:
    """Return the weights by name, those of the code in the folder."""
    return {
        name: parameter.detach().contiguous()
        for name, parameter in model.named_parameters()
        if not name.startswith("auxiliary.")  # classifiers that are used in training only
    }


def config_of(model: TransformerSettings, evaluation: EvalSettings, vocab_size: int) -> dict[str, Any]:
    """Return config.json: the settings of the model, and those of its evaluation that decide what a token sees."""
    limits = [limit for limit in (evaluation.key_limit, model.window) if limit is not None]
    auto_map = {"AutoConfig": "modeling_txl.TxlConfig", "AutoModelForCausalLM": "modeling_txl.TxlForCausalLM"}
    segment_len = evaluation.seg_len if evaluation.mem_len else None
    longest_text = None if evaluation.mem_len else model.longest_window
    return {
        "model_type": "txl",
        "architectures": ["TxlForCausalLM"],
        "auto_map": auto_map,
        "vocab_size": vocab_size,
        **{name: getattr(model, name) for name in SAME_SETTINGS},
        **asdict(model.parts),
        "n_learned_vectors": model.n_positions,
        "n_positions": longest_text,  # as other programs read it
        "inner_width": model.inner_width,
        "bands": [asdict(band) for band in bands(model, vocab_size)],
        "segment_len": segment_len,
        "mem_len": evaluation.mem_len,
        "key_limit": min(limits, default=None),
        "max_distance": evaluation.max_distance,
        "softmax_temperature": evaluation.fixed_temperature,
        **{name: model.dropout_rate(name) for name in DROPOUTS},
        "inner_dropout": model.dropout_rate("inner_dropout", "feed_forward_dropout"),
        "dtype": "float32",
    }
