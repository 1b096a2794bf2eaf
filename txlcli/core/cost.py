"""Floating-point operations of a model, by formula.

A multiplication and an addition count as two. Axes: L segment, M memory, K = M + L, H heads, D head width,
d model width, F inner width, V vocabulary, N layers.
"""

from txlcli.settings import ModelSettings


def decoding_flops_per_token(model: ModelSettings, vocab_size: int, *, keys: int) -> float:
    """Reading one token with projected keys and values kept, each query seeing `keys` keys."""
    width = model.n_heads * model.d_head
    projections = 4 * model.d_model * width  # query, key, value, output
    attention = 3 * keys * width  # content score, position score, weighted values
    feed_forward = 2 * model.d_model * model.d_inner
    return 2.0 * (model.n_layers * (projections + attention + feed_forward) + model.d_model * vocab_size)


def training_flops_per_token(model: ModelSettings, vocab_size: int, *, seg_len: int, mem_len: int, lanes: int) -> float:
    """Forward and backward pass of one segment, per predicted token.

    The backward pass costs twice the forward, but the distances need no gradient themselves. Keys and values of the
    memory are projected again at every step, since the weights change; distances are projected once for all lanes.
    """
    keys = mem_len + seg_len
    width = model.n_heads * model.d_head
    per_token = 2 * model.d_model * width + 3 * keys * width + 2 * model.d_model * model.d_inner
    per_lane = 2 * keys * model.d_model * width
    per_step = keys * model.d_model * width
    layer = 3 * (per_token + per_lane / seg_len) + 2 * per_step / (seg_len * lanes)
    return 2.0 * (model.n_layers * layer + 3 * model.d_model * vocab_size)
