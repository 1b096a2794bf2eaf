"""Floating-point operations of a model, by formula.

A multiplication and an addition count as two. Axes: L segment, M memory, K = M + L, H heads, D head width,
d model width, F inner width, V vocabulary, N layers.

How often an adaptive softmax computes a tail depends on the text. Where nothing else is known, ids are taken to follow
Zipf's law: the id of rank r has a share of log(1 + 1/r) / log(V + 1).
"""

import math

from txlcli.core.adaptive import Band, bands
from txlcli.settings import ModelSettings


def band_share(band: Band, vocab_size: int) -> float:
    """The share of tokens whose id lies in a band, by Zipf's law."""
    return math.log((band.end + 1) / (band.first + 1)) / math.log(vocab_size + 1)


def embedding_products(model: ModelSettings, vocab_size: int) -> float:
    """Multiplications that embed one token: its band's projection."""
    cut = bands(model, vocab_size)
    projected = (band for band in cut if band.projection is not None)
    return sum(band_share(band, vocab_size) * band.width * model.d_model for band in projected)


def softmax_columns(cut: list[Band]) -> float:
    """Logits that a target needs: the head's and the clusters', and a tail's as often as targets lie there."""
    head, *tails = cut
    return head.size + len(tails) + sum(band_share(band, cut[-1].end) * band.size for band in tails)


def softmax_products(model: ModelSettings, vocab_size: int) -> float:
    """Multiplications that score one target: the head with its clusters, and a tail where the target lies there."""
    cut = bands(model, vocab_size)
    products = 0.0
    for number, band in enumerate(cut):
        columns = band.size + (len(cut) - 1 if number == 0 else 0)
        projection = model.d_model * band.width if band.projection is not None else 0
        products += (band_share(band, vocab_size) if number else 1.0) * (columns * band.width + projection)
    return products


def decoding_flops_per_token(model: ModelSettings, vocab_size: int, *, keys: int) -> float:
    """Reading and scoring one token with projected keys and values kept, each query seeing `keys` keys."""
    width = model.n_heads * model.d_head
    projections = 4 * model.d_model * width  # query, key, value, output
    attention = 3 * keys * width  # content score, position score, weighted values
    feed_forward = 2 * model.d_model * model.d_inner
    ends = embedding_products(model, vocab_size) + softmax_products(model, vocab_size)
    return 2.0 * (model.n_layers * (projections + attention + feed_forward) + ends)


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
    ends = embedding_products(model, vocab_size) + softmax_products(model, vocab_size)
    return 2.0 * (model.n_layers * layer + 3 * ends)
