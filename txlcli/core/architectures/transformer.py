"""The architecture of the paper, whose model is `core.model.transformer_xl`: the count of its operations.

Axes: L segment, M memory, K = M + L, H heads, D head width, d model width, F inner width, N layers.
"""

from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.operations import LayerProducts
from txlcli.core.architectures.registry import register_architecture
from txlcli.core.model.transformer_xl import TransformerXL


def keys_seen(model: ModelSettings, settings: EvalSettings) -> float:
    """Return the mean number of keys that a query sees once the memory is full."""
    if settings.key_limit is not None:
        return min(settings.key_limit, model.attention_window or settings.key_limit)
    mem_len = model.memory_keys(settings.mem_len, settings.compressed_len)
    return model.mean_keys(seg_len=settings.seg_len, mem_len=mem_len)


class TransformerProducts(LayerProducts):
    """Layers of attention and feed-forward."""

    model: TransformerSettings

    @property
    def width(self) -> int:
        """H D, of the queries, keys or values of a token."""
        return self.model.n_heads * self.model.d_head

    @property
    def projection(self) -> int:
        """Products of one token's queries, keys or values."""
        return self.model.d_model * self.width

    @property
    def matrices_per_layer(self) -> int:
        """Elements of the matrices by which a layer multiplies each token."""
        return self.matrices() // self.model.n_layers

    def _layer(self, keys: float, max_distance: int | None = None) -> float:
        """Return the products of a layer for one token, with the keys and values of earlier tokens kept."""
        products = 2 * keys  # of the query with keys, and of probabilities with values
        if "b" in self.model.encoding.score_terms:
            distances = keys
            if max_distance is not None:
                distances = min(keys, max_distance + 1)
            products += distances
        return self.matrices_per_layer + products * self.width

    def decoding(self, settings: EvalSettings) -> float:
        return self.model.n_layers * self._layer(keys_seen(self.model, settings), settings.max_distance)

    def window(self, settings: EvalSettings) -> float:
        # Of the last layer only the last position is computed, from the keys and values of all.
        window = settings.seg_len
        mean_keys = self.model.mean_keys(seg_len=window, mem_len=0)
        lower_layers = (self.model.n_layers - 1) * window * self._layer(mean_keys, settings.max_distance)
        last_keys = min(window, self.model.window or window)
        last_position = self._layer(last_keys, settings.max_distance)
        keys_and_values = 2 * (window - 1) * self.projection
        return lower_layers + last_position + keys_and_values

    def training(self, train: TrainSettings) -> float:
        # The backward pass takes twice the forward, but distances and memory need no gradient (the layer norm of the
        # memory does if it is the layer's own). Keys and values of the memory are projected at every step again, since
        # the weights change; distances are projected once for the whole batch.
        model = self.model
        seg_len = train.read_len
        memory_keys = model.memory_keys(train.mem_len)
        mem_len = model.visible_memory(memory_keys)
        segment = 3 * self._layer(model.mean_keys(seg_len=seg_len, mem_len=memory_keys))
        memory_passes = 2 if model.norm == "post" else 3
        memory = memory_passes * (2 * mem_len * self.projection) / seg_len
        distances = 0.0
        if model.encoding.projects_distances:
            key_len = mem_len + seg_len
            count = min(key_len, model.window or key_len)
            distances = 2 * count * self.projection / (seg_len * train.batch_size)
        return model.n_layers * (segment + memory + distances)

    def auxiliary(self, vocab_size: int) -> float:
        # Layer l of N predicts two tokens for l / 2N of the training run; the last layer the second one throughout.
        if not self.model.auxiliary_losses:
            return 0.0
        lower = sum(layer / (2 * self.model.n_layers) for layer in range(1, self.model.n_layers))
        return (2 * lower + 1) * vocab_size * self.model.d_model


register_architecture(
    "transformer", settings=TransformerSettings, model=TransformerXL, products=TransformerProducts, reader="keys"
)
