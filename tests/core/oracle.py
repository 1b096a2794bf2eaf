"""A TransformerXL as the dict of weights that tests/reference.py reads, and a whole batch read by its loops."""

import itertools

import numpy as np

from tests import reference


def attention_weights(attention):
    """The matrices of one RelativeAttention; a Linear keeps them transposed."""
    names = ("w_q", "w_k_content", "w_v", "w_k_position", "w_o")
    return {name: getattr(attention, name).weight.detach().numpy().T for name in names}


def weights_of(model):
    """The model's own numbers, not copies: changing an entry changes the model."""

    def pair(module):
        return module.weight.detach().numpy(), module.bias.detach().numpy()

    def matrix_and_bias(linear):
        return linear.weight.detach().numpy().T, linear.bias.detach().numpy()

    layers = [
        {
            **attention_weights(layer.attention),
            "attention_norm": pair(layer.attention_norm),
            "ff_norm": pair(layer.ff_norm),
            "ff_1": matrix_and_bias(layer.feed_forward.ff_1),
            "ff_2": matrix_and_bias(layer.feed_forward.ff_2),
        }
        for layer in model.layers
    ]
    weights = {
        "embedding": model.embedding.tables[0].detach().numpy(),
        "softmax_bias": model.softmax.biases[0].detach().numpy(),
        "layers": layers,
    }
    for name in ("content_bias", "position_bias"):
        bias = getattr(model, name).detach().numpy()
        weights[name] = bias[0] if model.settings.tie_biases else bias
    return weights | ({"final_norm": pair(model.final_norm)} if model.settings.norm == "pre" else {})


def read_segments(model, tokens, lengths, *, mem_len, key_limit=None, max_distance=None):
    """Log-probabilities (B, T, V) and the last memory, (B, M, d) for each layer, by the oracle."""
    ends = list(itertools.accumulate(lengths))
    log_probs, memories = [], []
    for row in tokens.tolist():
        segments = [row[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        parts, memory = reference.forward_segments(
            segments,
            weights_of(model),
            mem_len=mem_len,
            norm=model.settings.norm,
            key_limit=key_limit,
            max_distance=max_distance,
        )
        log_probs.append(np.concatenate(parts))
        memories.append(memory)
    return np.stack(log_probs), [np.stack(rows) for rows in zip(*memories, strict=True)]
