"""Floating-point operations of a model, by formula.

A multiplication and an addition count as two. Axes: L segment, M memory, K = M + L, H heads, D head width,
d model width, F inner width, V vocabulary, N layers.

The number of times an adaptive softmax computes a tail depends on the text. By default, ids are assumed to follow
Zipf's law: the id of rank r has a share of log(1 + 1/r) / log(V + 1).
"""

import math
from collections.abc import Sequence
from typing import Any

from txlcli.config.bands import Band, bands
from txlcli.config.model_settings import CompressiveSettings, ModelSettings, RmtSettings, TransformerSettings
from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.model.registry import parameter_shapes
from txlcli.core.reading.scoring import keys_seen

Shares = Sequence[float]
"""Share of tokens in each band of a vocabulary, the head first."""


def zipf_shares(all_bands: Sequence[Band]) -> Shares:
    """Return the shares of the bands by Zipf's law."""
    vocab_size = all_bands[-1].end
    return [math.log((band.end + 1) / (band.first + 1)) / math.log(vocab_size + 1) for band in all_bands]


def softmax_columns(model: ModelSettings, vocab_size: int) -> int:
    """Return the mean number of logits per target: head and clusters always, a tail by the share of its targets."""
    all_bands = bands(model, vocab_size)
    sizes = [share * band.size for band, share in zip(all_bands, zipf_shares(all_bands), strict=True)]
    return round(all_bands[0].size + len(sizes[1:]) + sum(sizes[1:]))


def vocabulary_products(model: ModelSettings, vocab_size: int, shares: Shares | None = None) -> tuple[float, float]:
    """Return the multiplications that embed one token, and those that score one target.

    The former project an embedding to model width; the latter are of the head with its clusters, and of a tail.
    """
    all_bands = bands(model, vocab_size)
    embedding = softmax = 0.0
    for number, (band, share) in enumerate(zip(all_bands, shares or zipf_shares(all_bands), strict=True)):
        projected = 0 if band.projection is None else model.d_model
        columns = band.size if number else band.size + len(all_bands) - 1
        embedding += share * band.width * projected
        softmax += (share if number else 1.0) * ((columns + projected) * band.width)
    return embedding, softmax


class LayerProducts:
    """Multiplications of a model's layers, without embedding and softmax: with each matrix of the layers, once a token.

    An architecture whose layers multiply by anything else has a subclass.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def matrices(self, part: str = "layers.") -> int:
        """Count the numbers in the matrices with a part in their names, without biases and gains."""
        shapes = parameter_shapes(self.model)
        return sum(shape.numel() for name, shape in shapes.items() if part in name and len(shape) > 1)

    def decoding(self, settings: EvalSettings) -> float:
        """Return the products of one token, with projected keys and values of earlier tokens kept."""
        return self.matrices()

    def window(self, settings: EvalSettings) -> float:
        """Return the products of one prediction from a recomputed window; every token takes equally many by default."""
        return settings.seg_len * self.decoding(settings)

    def training(self, train: TrainSettings) -> float:
        """Return the products per token read of a step, forward and backward: three forward passes by default."""
        return 3 * self.decoding(EvalSettings(seg_len=train.read_len, mem_len=train.mem_len))

    def auxiliary(self, vocab_size: int) -> float:
        """Return the products per token of classifiers that exist in training only, forward: none by default."""
        return 0.0


class TransformerProducts(LayerProducts):
    """Layers of attention and feed-forward."""

    model: TransformerSettings

    @property
    def _width(self) -> int:
        return self.model.n_heads * self.model.d_head

    @property
    def _projection(self) -> int:
        """Products of one token's queries, keys or values."""
        return self.model.d_model * self._width

    def _layer(self, keys: float, max_distance: int | None = None) -> float:
        """Return the products of a layer for one token, with the keys and values of earlier tokens kept."""
        distances = keys if max_distance is None else min(keys, max_distance + 1)
        attention = (2 * keys + (distances if "b" in self.model.encoding.score_terms else 0)) * self._width
        return (self.matrices() - self.matrices(".compression.")) // self.model.n_layers + attention

    def decoding(self, settings: EvalSettings) -> float:
        return self.model.n_layers * self._layer(keys_seen(self.model, settings), settings.max_distance)

    def window(self, settings: EvalSettings) -> float:
        # Of the last layer only the last position is computed, from the keys of all.
        window, limit = settings.seg_len, settings.max_distance
        below = self._layer(self.model.mean_keys(seg_len=window, mem_len=0), limit)
        last = self._layer(min(window, self.model.window or window), limit)
        keys_before = 2 * (window - 1) * self._projection
        return (self.model.n_layers - 1) * window * below + last + keys_before

    def training(self, train: TrainSettings) -> float:
        # The backward pass takes twice the forward, but distances and memory need no gradient (the layer norm of the
        # memory does if it is the layer's own). Keys and values of the memory are projected at every step again, since
        # the weights change; distances are projected once for the whole batch.
        model, seg_len = self.model, train.read_len
        before = model.memory_keys(train.mem_len)
        keys, mem_len = model.mean_keys(seg_len=seg_len, mem_len=before), model.visible_memory(before)
        memory_passes = 2 if model.norm == "post" else 3
        memory = memory_passes * (2 * mem_len * self._projection) / seg_len
        scored = min(mem_len + seg_len, model.window or mem_len + seg_len)  # distances
        distances = scored * self._projection if model.encoding.projects_distances else 0
        layer = 3 * self._layer(keys) + memory + 2 * distances / (seg_len * train.batch_size)
        return model.n_layers * layer

    def auxiliary(self, vocab_size: int) -> float:
        # Layer l of N predicts two tokens for l / 2N of the training run; the last layer the second one throughout.
        if not self.model.auxiliary_losses:
            return 0.0
        lower = sum(layer / (2 * self.model.n_layers) for layer in range(1, self.model.n_layers))
        return (2 * lower + 1) * vocab_size * self.model.d_model


class CompressiveProducts(TransformerProducts):
    """Layers of a Transformer-XL that compress what leaves their memory, one position for each one that is read."""

    model: CompressiveSettings

    @property
    def _compression(self) -> int:
        """Products that compress one position."""
        return self.matrices(".compression.") // (self.model.n_layers * self.model.compression_rate)

    def decoding(self, settings: EvalSettings) -> float:
        # A token has its share of a slot, which is made, and projected to keys and values.
        slot = 2 * self._projection / self.model.compression_rate
        return super().decoding(settings) + self.model.n_layers * (self._compression + slot)

    def training(self, train: TrainSettings) -> float:
        # For the reconstruction loss, L queries attend to the L positions that leave, without gradient, and to the
        # slots in their place, which have one; so have their keys and values and the weights of the convolution.
        layers = super().training(train)
        if not (train.mem_len and self._compression):
            return layers
        rate = self.model.compression_rate
        # Query, key, value; and those of the slots, there and back.
        projections = 3 * self._projection + 2 * 2 * self._projection / rate
        attention = (2 + 5 / rate) * train.seg_len * self._width
        return layers + self.model.n_layers * (2 * self._compression + projections + attention)


class RmtProducts(TransformerProducts):
    """Layers of a Transformer that read memory tokens with each segment."""

    model: RmtSettings

    def decoding(self, settings: EvalSettings) -> float:
        # Of a whole segment, with its share of the memory tokens.
        rows_per_token = self.model.rows / self.model.segment_len
        return rows_per_token * super().decoding(settings)

    window = LayerProducts.window

    def training(self, train: TrainSettings) -> float:
        return super().training(train) * self.model.rows / self.model.segment_len


ARCHITECTURES: dict[str, type[LayerProducts]] = {
    "transformer": TransformerProducts,
    "compressive": CompressiveProducts,
    "rmt": RmtProducts,
}
"""Formulas of the layers for values of `model.arch` whose tokens are not only multiplied by each matrix."""


def _products(model: ModelSettings) -> LayerProducts:
    return ARCHITECTURES.get(model.arch, LayerProducts)(model)


def evaluation_flops_per_token(model: ModelSettings, vocab_size: int, settings: EvalSettings) -> float:
    """Return the operations of reading and scoring one token with a full memory. Only keys that queries see count.

    Distances beyond `max_distance` share one encoding, so that a query is multiplied with it once for all of them.
    """
    return 2.0 * (_products(model).decoding(settings) + sum(vocabulary_products(model, vocab_size)))


def window_flops_per_prediction(model: ModelSettings, vocab_size: int, settings: EvalSettings) -> float:
    """Return the operations of reading a window of L tokens from its first one and scoring the token after it.

    Only keys that queries see count.
    """
    embedding, softmax = vocabulary_products(model, vocab_size)
    return 2.0 * (_products(model).window(settings) + (settings.seg_len * embedding + softmax))


def step_flops_per_token(
    model: ModelSettings, vocab_size: int, train: TrainSettings, shares: Shares | None = None
) -> float:
    """Return the operations per predicted token of a training step. Only keys that queries see count.

    The backward pass takes twice the forward pass. The layers read `reread_len` tokens more than are predicted.
    """
    products = _products(model)
    once = sum(vocabulary_products(model, vocab_size, shares)) + products.auxiliary(vocab_size)
    return 2.0 * (products.training(train) * train.read_len / train.seg_len + 3 * once)
