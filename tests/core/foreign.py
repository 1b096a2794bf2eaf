"""A small Transformer-XL as three other systems store it, written from the oracle's weights by the documented facts.

Axes: H heads, D head width, d model width, F inner width, w width of a band, n ids of a band, V vocabulary, N layers.
"""

import numpy as np
import torch

from tests.core.builders import V

CUTOFFS = (5, 11)  # bands of 5, 6 and 8 ids
N, d, H, D, F = 2, 14, 3, 11, 17
SIZES = {"n_layers": N, "d_model": d, "n_heads": H, "d_head": D, "d_inner": F, "dropout": 0.0}


def draw_weights(
    *, cutoffs=CUTOFFS, div_val=1, d_embed=d, tied=None, project_same_width=True, tie_biases=True, tie_tables=True
):
    """What tests/reference.py reads; `tied` says of each band whether the softmax uses the embedding's projection."""
    chance = np.random.default_rng(3)

    def draw(*shape, mean=0.0):
        return chance.normal(mean, 0.3, shape).astype(np.float32).astype(np.float64)  # exact in both precisions

    edges = (0, *cutoffs, V)
    tied = tied or (False, *(True for _ in cutoffs))
    embedding, softmax, shared = [], [], None
    for band, uses_the_same in enumerate(tied):
        size, width = edges[band + 1] - edges[band], d_embed // div_val**band
        table = draw(size, width)
        inwards = outwards = None
        if width != d or (div_val > 1 and project_same_width):
            inwards = draw(width, d) if div_val > 1 or shared is None else shared  # one width, one projection
            outwards = inwards.T if uses_the_same else draw(d, width)
            shared = inwards
        embedding.append((table, inwards))
        softmax.append((table if tie_tables else draw(size, width), outwards, draw(size)))
    weights = {"embedding": embedding, "softmax": softmax}
    if cutoffs:
        weights["clusters"] = draw(d_embed, len(cutoffs)), draw(len(cutoffs))
    pairs = (H, D) if tie_biases else (N, H, D)
    return weights | {
        "content_bias": draw(*pairs),
        "position_bias": draw(*pairs),
        "layers": [
            {
                **{name: draw(d, H * D) for name in ("w_q", "w_k_content", "w_v", "w_k_position")},
                "w_o": draw(H * D, d),
                "attention_norm": (draw(d, mean=1.0), draw(d)),
                "ff_norm": (draw(d, mean=1.0), draw(d)),
                "ff_1": (draw(d, F), draw(F)),
                "ff_2": (draw(F, d), draw(d)),
            }
            for _ in range(N)
        ],
    }


def as_tensors(arrays):
    return {name: torch.tensor(np.ascontiguousarray(array), dtype=torch.float32) for name, array in arrays.items()}


def pytorch_state_dict(weights, *, div_val=1):
    """The released PyTorch code's: matrices (out, in), tail i's row of the clusters is the last but i."""
    state = _pytorch_names(weights, div_val, body="")
    if "clusters" in weights:
        matrix, bias = weights["clusters"]
        tails = range(len(bias))
        state["crit.cluster_weight"] = np.stack([matrix[:, len(bias) - 1 - i] for i in tails])
        state["crit.cluster_bias"] = np.stack([bias[len(bias) - 1 - i] for i in tails])
    return as_tensors(state)


def hugging_face_state_dict(weights, *, div_val=1):
    """Hugging Face's: the same under other names, but for the clusters, which stand in order."""
    state = _pytorch_names(weights, div_val, body="transformer.")
    if "clusters" in weights:
        matrix, bias = weights["clusters"]
        state["crit.cluster_weight"], state["crit.cluster_bias"] = matrix.T, bias
    for name in ("r_w_bias", "r_r_bias"):
        whole = f"transformer.{name}"
        for n in range(N):
            state[f"transformer.layers.{n}.dec_attn.{name}"] = state[whole] if whole in state else state[f"{n}.{name}"]
            state.pop(f"{n}.{name}", None)
    return as_tensors(state)


def _pytorch_names(weights, div_val, body):
    state = {}
    tables = [table for table, _ in weights["embedding"]]
    out_tables, biases = [table for table, _, _ in weights["softmax"]], [bias for _, _, bias in weights["softmax"]]
    if div_val == 1:
        tables, out_tables, biases = [np.concatenate(tables)], [np.concatenate(out_tables)], [np.concatenate(biases)]
    for i, table in enumerate(tables):
        state[f"{body}word_emb.emb_layers.{i}.weight"] = table
        state[f"crit.out_layers.{i}.weight"] = out_tables[i]
        state[f"crit.out_layers.{i}.bias"] = biases[i]
    for i, (_, inwards) in enumerate(weights["embedding"]):
        if inwards is not None and (div_val > 1 or i == 0):
            state[f"{body}word_emb.emb_projs.{i}"] = inwards.T
    for i, (_, outwards, _) in enumerate(weights["softmax"]):
        if outwards is not None:
            state[f"crit.out_projs.{i}"] = outwards
    for name, bias in (("r_w_bias", weights["content_bias"]), ("r_r_bias", weights["position_bias"])):
        if bias.ndim == 2:
            state[f"{body}{name}"] = bias
        else:
            state |= {f"{n}.{name}": bias[n] for n in range(N)}
    for n, layer in enumerate(weights["layers"]):
        attention, ff = f"{body}layers.{n}.dec_attn.", f"{body}layers.{n}.pos_ff."
        state[f"{attention}qkv_net.weight"] = np.concatenate(
            [layer["w_q"].T, layer["w_k_content"].T, layer["w_v"].T], axis=0
        )
        state[f"{attention}r_net.weight"] = layer["w_k_position"].T
        state[f"{attention}o_net.weight"] = layer["w_o"].T
        state[f"{attention}layer_norm.weight"], state[f"{attention}layer_norm.bias"] = layer["attention_norm"]
        state[f"{ff}layer_norm.weight"], state[f"{ff}layer_norm.bias"] = layer["ff_norm"]
        for number, name in ((0, "ff_1"), (3, "ff_2")):
            matrix, bias = layer[name]
            state[f"{ff}CoreNet.{number}.weight"], state[f"{ff}CoreNet.{number}.bias"] = matrix.T, bias
    return state


def tf_variables(weights, *, div_val=1, tied=None):
    """The released TF code's: matrices (in, out), what is tied stands there once."""
    cutoffs = len(weights["embedding"]) - 1
    tied = tied or (False, *(True for _ in range(cutoffs)))
    embed, softmax = "transformer/adaptive_embed/", "transformer/adaptive_softmax/"
    held = {"transformer/r_w_bias": weights["content_bias"], "transformer/r_r_bias": weights["position_bias"]}
    if div_val == 1:
        held[f"{embed}lookup_table"] = np.concatenate([table for table, _ in weights["embedding"]])
        if weights["embedding"][0][1] is not None:
            held[f"{embed}proj_W"] = weights["embedding"][0][1]
    else:
        for i, (table, inwards) in enumerate(weights["embedding"]):
            held[f"{embed}cutoff_{i}/lookup_table"] = table
            if inwards is not None:
                held[f"{embed}cutoff_{i}/proj_W"] = inwards
    if not cutoffs:
        held[f"{softmax}bias"] = weights["softmax"][0][2]
    else:
        for i, (_, outwards, bias) in enumerate(weights["softmax"]):
            held[f"{softmax}cutoff_{i}/b"] = bias
            if outwards is not None and not tied[i]:
                held[f"{softmax}cutoff_{i}/proj"] = outwards.T
        matrix, bias = weights["clusters"]
        held[f"{softmax}cutoff_0/cluster_W"], held[f"{softmax}cutoff_0/cluster_b"] = matrix.T, bias
    for n, layer in enumerate(weights["layers"]):
        root = f"transformer/layer_{n}/"
        held[f"{root}rel_attn/qkv/kernel"] = np.concatenate([layer["w_q"], layer["w_k_content"], layer["w_v"]], axis=1)
        held[f"{root}rel_attn/r/kernel"], held[f"{root}rel_attn/o/kernel"] = layer["w_k_position"], layer["w_o"]
        for number, name in ((1, "ff_1"), (2, "ff_2")):
            held[f"{root}ff/layer_{number}/kernel"], held[f"{root}ff/layer_{number}/bias"] = layer[name]
        for place, name in (("rel_attn", "attention_norm"), ("ff", "ff_norm")):
            held[f"{root}{place}/LayerNorm/gamma"], held[f"{root}{place}/LayerNorm/beta"] = layer[name]
    return as_tensors(held)
