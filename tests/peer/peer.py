"""Hugging Face's TransfoXL with random weights, and its predictions: the independent peer.

Only transformers 4.36.2 still has the model. It starts from M zero vectors of memory, and its losses are neither
complete nor in token order, so everything is compared through the log-probabilities of all tokens.
"""

import os
import warnings

import torch

from txlcli.config import recipe
from txlcli.core.training.checkpoint import Checkpoint, build_model, grouped
from txlcli.workflows.exchange.conversion import Layout
from txlcli.workflows.exchange.huggingface import keys_of

os.environ.setdefault("TRUST_REMOTE_CODE", "True")  # it does not load otherwise, though nothing is unpickled here
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers.models.deprecated.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel
    from transformers.utils import logging

logging.set_verbosity_error()

V = 37
WORDS = [*(f"w{number}" for number in range(V - 1)), "<eos>"]


def peer_config(**changed):
    return TransfoXLConfig(
        **{
            **{"vocab_size": V, "cutoffs": [11, 24], "div_val": 1, "n_layer": 3, "d_model": 14, "d_embed": 14},
            **{"n_head": 3, "d_head": 11, "d_inner": 17, "mem_len": 7, "clamp_len": -1, "same_length": False},
            **{"dropout": 0.0, "dropatt": 0.0, "untie_r": True},
            **changed,
        }
    )


def peer_model(*, std=0.3, seed=1, **changed):
    """In evaluation mode, with weights so large that every one of them matters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TransfoXLLMHeadModel(peer_config(**changed)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("layer_norm.weight") else 0.0, std, generator=generator)
    return model


def save(model, directory):
    """As a user finds it: config.json, pytorch_model.bin, and the vocabulary."""
    model.save_pretrained(directory, safe_serialization=False)
    (directory / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))


def load(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TransfoXLLMHeadModel.from_pretrained(directory).eval()


def log_probs(model, tokens, lengths):
    """(B, T, V) of segments read one after the other."""
    memory, parts = None, []
    for segment in tokens.split(lengths, dim=1):
        out = model(segment, mems=memory)
        memory = out.mems
        parts.append(out.prediction_scores)
    return torch.cat(parts, dim=1)


def imported(model):
    """Our model with the peer's weights, and the layout that links their names."""
    settings = recipe.read_section("model", keys_of(model.config.to_dict())["model"])
    layout = Layout("hugging_face", settings, model.config.vocab_size)
    tensors = layout.read(model.state_dict(), "the peer")
    return build_model(settings, model.config.vocab_size, Checkpoint(grouped("model", tensors))), layout


def draw_tokens(lanes, count, seed=2):
    return torch.randint(V, (lanes, count), generator=torch.Generator().manual_seed(seed))
