"""Floating-point operations of a model, by formula.

A multiplication and an addition count as two. Axes: L segment, M memory, K = M + L, H heads, D head width,
d model width, F inner width, V vocabulary, N layers.

How often an adaptive softmax computes a tail depends on the text. Where nothing else is known, ids are taken to follow
Zipf's law: the id of rank r has a share of log(1 + 1/r) / log(V + 1).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from txlcli.config.bands import Band, bands
from txlcli.config.model_settings import ModelSettings, RnnSettings, TransformerSettings

COUNTED = 5_000_000  # tokens; more change no share that matters


def band_share(band: Band, vocab_size: int) -> float:
    """The share of tokens whose id lies in a band, by Zipf's law."""
    return math.log((band.end + 1) / (band.first + 1)) / math.log(vocab_size + 1)


Shares = Sequence[float]
"""The share of tokens in each band of a vocabulary, the head's first."""


def zipf_shares(cut: Sequence[Band]) -> Shares:
    """Shares by Zipf's law."""
    return [band_share(band, cut[-1].end) for band in cut]


def counted_shares(cut: Sequence[Band], ids: NDArray[np.integer]) -> Shares:
    """Shares in the head of a text."""
    counts = np.histogram(ids[:COUNTED], [*(band.first for band in cut), cut[-1].end])[0]
    return [float(count) / max(counts.sum(), 1) for count in counts]


def embedding_products(model: ModelSettings, cut: Sequence[Band], shares: Shares) -> float:
    """Multiplications that embed one token: its band's projection."""
    return sum(
        share * band.width * model.d_model
        for band, share in zip(cut, shares, strict=True)
        if band.projection is not None
    )


def softmax_columns(cut: list[Band]) -> float:
    """Logits that a target needs: the head's and the clusters', and a tail's as often as targets lie there."""
    head, *tails = cut
    return head.size + len(tails) + sum(band_share(band, cut[-1].end) * band.size for band in tails)


def softmax_products(model: ModelSettings, cut: Sequence[Band], shares: Shares) -> float:
    """Multiplications that score one target: the head with its clusters, and a tail where the target lies there."""
    products = 0.0
    for number, (band, share) in enumerate(zip(cut, shares, strict=True)):
        columns = band.size + (len(cut) - 1 if number == 0 else 0)
        projection = model.d_model * band.width if band.projection is not None else 0
        products += (share if number else 1.0) * (columns * band.width + projection)
    return products


def _ends(model: ModelSettings, vocab_size: int, shares: Shares | None = None, *, read: int = 1) -> float:
    """Multiplications of embedding `read` tokens and scoring one."""
    cut = bands(model, vocab_size)
    shares = shares or zipf_shares(cut)
    return read * embedding_products(model, cut, shares) + softmax_products(model, cut, shares)


def state_products(model: RnnSettings) -> int:
    """Multiplications of the layers of an LSTM or a QRNN for one token: W outputs a layer, several gates each."""
    inputs = [model.first_window * model.d_model, *model.widths[:-1]]
    if model.arch == "lstm":  # input gate, forget gate, candidate and output gate, of the input and of the state
        return sum(4 * width * (read + width) for read, width in zip(inputs, model.widths, strict=True))
    return sum(3 * width * read for read, width in zip(inputs, model.widths, strict=True))


def decoding_flops_per_token(
    model: ModelSettings, vocab_size: int, *, keys: float, max_distance: int | None = None
) -> float:
    """Reading and scoring one token with projected keys and values kept, each query seeing `keys` keys.

    Distances beyond `max_distance` share one encoding, so that a query is multiplied with it once for all of them. A
    model that carries a state sees no keys.
    """
    ends = _ends(model, vocab_size)
    if isinstance(model, RnnSettings):
        return 2.0 * (state_products(model) + ends)
    assert isinstance(model, TransformerSettings)
    return 2.0 * (model.n_layers * _layer_products(model, keys=keys, max_distance=max_distance) + ends)


def window_flops_per_prediction(
    model: ModelSettings, vocab_size: int, *, window: int, max_distance: int | None = None
) -> float:
    """Reading a window of N tokens from its first one on and scoring what follows, of the keys that queries see.

    Of the last layer only the last position is computed, from the keys and values of all.
    """
    assert isinstance(model, TransformerSettings)
    below = _layer_products(model, keys=(window + 1) / 2, max_distance=max_distance)
    last = _layer_products(model, keys=window, max_distance=max_distance)
    keys_before = 2 * (window - 1) * model.d_model * model.n_heads * model.d_head
    layers = (model.n_layers - 1) * window * below + last + keys_before
    return 2.0 * (layers + _ends(model, vocab_size, read=window))


def _layer_products(model: TransformerSettings, *, keys: float, max_distance: int | None) -> float:
    """Multiplications of a layer for one token, with the keys and values of those before it kept."""
    width = model.n_heads * model.d_head
    projections = 4 * model.d_model * width  # query, key, value, output
    distances = keys if max_distance is None else min(keys, max_distance + 1)
    attention = (2 * keys + (distances if model.scores_distances else 0)) * width
    return projections + attention + 2 * model.d_model * model.d_inner


def training_flops_per_token(
    model: ModelSettings, vocab_size: int, *, seg_len: int, mem_len: int, batch_size: int, shares: Shares | None = None
) -> float:
    """Forward and backward pass of one segment, per predicted token, of the keys that queries see.

    The backward pass costs twice the forward, but distances and memory need no gradient themselves (the norm of the
    memory does where it is a layer's own). Keys and values of the memory are projected again at every step, since the
    weights change; distances are projected once for the whole batch.
    """
    ends = _ends(model, vocab_size, shares)
    if isinstance(model, RnnSettings):
        return 6.0 * (state_products(model) + ends)
    assert isinstance(model, TransformerSettings)
    width = model.n_heads * model.d_head
    seen = mem_len + (seg_len + 1) / 2  # keys, on average
    terms = 3 if model.scores_distances else 2  # content score, weighted values, position score
    per_token = 4 * model.d_model * width + terms * seen * width + 2 * model.d_model * model.d_inner
    memory = 2 * mem_len * model.d_model * width
    memory_passes = 2 if model.norm == "post" else 3
    distances = (mem_len + seg_len) * model.d_model * width if model.encoding.projects_distances else 0
    layer = 3 * per_token + memory_passes * memory / seg_len + 2 * distances / (seg_len * batch_size)
    return 2.0 * (model.n_layers * layer + 3 * (ends + auxiliary_products(model, vocab_size)))


def auxiliary_products(model: TransformerSettings, vocab_size: int) -> float:
    """Multiplications of the classifiers that exist in training only, per token, over a whole training.

    Layer l of N predicts two tokens for l / 2N of it; the last layer predicts the second one throughout.
    """
    if not model.auxiliary_losses:
        return 0.0
    lower = sum(layer / (2 * model.n_layers) for layer in range(1, model.n_layers))
    return (2 * lower + 1) * vocab_size * model.d_model
