"""Floating-point operations of a model, by formula.

A multiplication and an addition count as two. Axes: L segment, M memory, K = M + L, H heads, D head width,
d model width, F inner width, V vocabulary, N layers.

The number of times an adaptive softmax computes a tail depends on the text. By default, ids are assumed to follow
Zipf's law: the id of rank r has a share of log(1 + 1/r) / log(V + 1).
"""

import math
from collections.abc import Sequence

from txlcli.config.bands import Band, bands
from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import products_of

Shares = Sequence[float]
"""Share of tokens in each band of a vocabulary, the head first."""


def zipf_shares(all_bands: Sequence[Band]) -> Shares:
    """Return the shares of the bands by Zipf's law."""
    vocab_size = all_bands[-1].end
    whole = math.log(vocab_size + 1)
    return [math.log((band.end + 1) / (band.first + 1)) / whole for band in all_bands]


def vocabulary_products(model: ModelSettings, vocab_size: int, shares: Shares | None = None) -> tuple[float, float]:
    """Return the multiplications that embed one token, and those that score one target.

    The former project an embedding to model width; the latter are of the head with its clusters, and of a tail.
    """
    all_bands = bands(model, vocab_size)
    clusters = len(all_bands) - 1
    embedding = 0.0
    softmax = 0.0
    for band, share in zip(all_bands, shares or zipf_shares(all_bands), strict=True):
        projected = 0 if band.projection is None else model.d_model
        embedding += share * band.width * projected
        if band.first == 0:  # the head, which every target needs
            softmax += (band.size + clusters + projected) * band.width
        else:
            softmax += share * ((band.size + projected) * band.width)
    return embedding, products_of(model).softmax(softmax)


def evaluation_flops_per_token(model: ModelSettings, vocab_size: int, settings: EvalSettings) -> float:
    """Return the operations of reading and scoring one token with a full memory. Only keys that queries see count.

    Distances beyond `max_distance` share one encoding, so that a query is multiplied with it once for all of them.
    """
    layers = products_of(model).decoding(settings)
    vocabulary = sum(vocabulary_products(model, vocab_size))
    return 2.0 * (layers + vocabulary)


def window_flops_per_prediction(model: ModelSettings, vocab_size: int, settings: EvalSettings) -> float:
    """Return the operations of reading a window of L tokens from its first one and scoring the token after it.

    Only keys that queries see count.
    """
    layers = products_of(model).window(settings)
    embedding, softmax = vocabulary_products(model, vocab_size)
    vocabulary = settings.seg_len * embedding + softmax
    return 2.0 * (layers + vocabulary)


def step_flops_per_token(
    model: ModelSettings, vocab_size: int, train: TrainSettings, shares: Shares | None = None
) -> float:
    """Return the operations per predicted token of a training step. Only keys that queries see count.

    The backward pass takes twice the forward pass. The layers read `reread_len` tokens more than are predicted.
    """
    products = products_of(model)
    layers = products.training(train) * train.read_len / train.seg_len
    vocabulary = sum(vocabulary_products(model, vocab_size, shares)) + products.auxiliary(vocab_size)
    return 2.0 * (layers + 3 * vocabulary)
