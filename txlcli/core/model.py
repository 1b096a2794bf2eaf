"""TransformerXL: embedding, layers with segment-level recurrence (section 3.2), softmax.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, d model width, F inner width, V vocabulary,
N layers, n distances.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.core.adaptive import AdaptiveEmbedding, AdaptiveSoftmax, bands
from txlcli.core.attention import RelativeAttention, distance_encoding
from txlcli.core.dropout import Dropout
from txlcli.settings import ModelSettings

Memory = list[Tensor]
"""The layer inputs of the past, (B, M, d) for each of the N layers, oldest first, without gradient."""


class FeedForward(nn.Module):
    """The position-wise sublayer, without its residual and norm."""

    def __init__(self, d_model: int, d_inner: int, dropout: float) -> None:
        super().__init__()
        self.ff_1 = nn.Linear(d_model, d_inner)
        self.ff_2 = nn.Linear(d_inner, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, d) -> (B, L, d)."""
        inner = self.dropout(F.relu(self.ff_1(hidden), inplace=True))  # (B, L, F)
        projected: Tensor = self.ff_2(inner)
        return projected


class Layer(nn.Module):
    """One layer: attention over memory and segment, then feed-forward, each with residual and norm."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        d_model = settings.d_model
        self.pre_norm = settings.norm != "post"
        self.attention = RelativeAttention(d_model, settings.n_heads, settings.d_head, settings.attention_dropout)
        self.attention_norm = nn.LayerNorm(d_model, settings.norm_eps)
        self.feed_forward = FeedForward(d_model, settings.d_inner, settings.dropout)
        self.ff_norm = nn.LayerNorm(d_model, settings.norm_eps)
        self.dropout = Dropout(settings.dropout)

    def attention_input(self, hidden: Tensor) -> Tensor:
        """What queries, keys and values are projected from, of any layer inputs (B, x, d)."""
        normed: Tensor = self.attention_norm(hidden) if self.pre_norm else hidden
        return normed

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output (B, L, d) from its input and what the attention gave for it."""
        hidden = hidden + self.dropout(attended)
        if self.pre_norm:
            return hidden + self.dropout(self.feed_forward(self.ff_norm(hidden)))
        hidden = self.attention_norm(hidden)
        normed: Tensor = self.ff_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return normed

    def forward(self, hidden: Tensor, memory: Tensor, encoding: Tensor, biases: tuple[Tensor, Tensor]) -> Tensor:
        """One segment (B, L, d) with the layer's memory (B, M, d) and the encodings of n distances (n, d)."""
        context = self.attention_input(torch.cat([memory, hidden], dim=1))  # (B, K, d)
        segment = context[:, memory.shape[1] :]
        position_key = self.attention.project_distances(encoding)
        attended = self.attention(segment, self.attention.project_keys(context), position_key, biases)
        return self.finish(hidden, attended)


def update_memory(memory: Tensor, hidden: Tensor, *, mem_len: int) -> Tensor:
    """The last `mem_len` of [memory o hidden], detached (3.2).

    Args:
        memory: (B, M, d), M up to mem_len.
        hidden: (B, L, d), the layer inputs of the segment that was just read.
    Returns:
        (B, min(M + L, mem_len), d).
    """
    hidden = hidden.detach()
    if mem_len == 0:
        return hidden[:, :0]
    if hidden.shape[1] >= mem_len:
        return hidden[:, -mem_len:]
    return torch.cat([memory, hidden], dim=1)[:, -mem_len:]


class TransformerXL(nn.Module):
    """The model of section 3: relative positions, memory of layer inputs, adaptive input and softmax.

    Raises:
        RecipeError: a cutoff lies beyond the vocabulary.
    """

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.vocab_size = vocab_size
        pairs = 1 if settings.tie_biases else settings.n_layers
        cut = bands(settings, vocab_size)
        self.embedding = AdaptiveEmbedding(cut, settings.d_model)
        self.softmax = AdaptiveSoftmax(cut, settings.d_model, tied=settings.tie_embeddings)
        self.content_bias = nn.Parameter(torch.empty(pairs, settings.n_heads, settings.d_head))
        self.position_bias = nn.Parameter(torch.empty(pairs, settings.n_heads, settings.d_head))
        self.layers = nn.ModuleList(Layer(settings) for _ in range(settings.n_layers))
        # A pre-norm stack ends in a sum of raw branches, so it needs one norm more; the released code has none.
        final = settings.norm == "pre"
        self.final_norm = nn.LayerNorm(settings.d_model, settings.norm_eps) if final else nn.Identity()
        self.dropout = Dropout(settings.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the released initialisation: normal weights and biases u, v, gains around 1, other biases 0."""
        std, exact = self.settings.init_std, self.settings.init == "tf"
        for name, parameter in self.named_parameters():
            if "norm." in name and name.endswith("weight"):
                nn.init.normal_(parameter, 1.0, 0.0 if exact else std)
            elif ".projections." in name:
                nn.init.normal_(parameter, 0.0, self.settings.proj_init_std)
            elif parameter.dim() == 1 or (exact and name.endswith("cluster_weight")):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, 0.0, std)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.content_bias.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' number format."""
        return self.content_bias.dtype

    def first_memory(self, lanes: int, mem_len: int) -> Memory:
        """Memory before the first token, for each layer: (B, 0, d), or (B, M, d) zeros that are attended to."""
        length = mem_len if self.settings.memory_start == "zeros" else 0
        return [self.content_bias.new_zeros(lanes, length, self.settings.d_model) for _ in self.layers]

    def biases(self, layer: int) -> tuple[Tensor, Tensor]:
        """The biases u and v, (H, D) each, that layer number `layer` uses."""
        pair = 0 if self.settings.tie_biases else layer
        return self.content_bias[pair], self.position_bias[pair]

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, L) tokens -> (B, L, d) inputs of the first layer."""
        embedded: Tensor = self.dropout(self.embedding(tokens) * self.settings.d_model**0.5)
        return embedded

    def encode_distances(self, count: int, *, max_distance: int | None) -> Tensor:
        """Encodings (n, d) of the distances n - 1 down to 0; those beyond `max_distance` share its encoding."""
        distances = torch.arange(count - 1, -1, -1, device=self.device)
        if max_distance is not None:
            distances = distances.clamp(max=max_distance)
        encoding = distance_encoding(distances, self.settings.d_model)
        return encoding.to(self.dtype)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        mem_len: int,
        key_limit: int | None = None,
        max_distance: int | None = None,
    ) -> tuple[Tensor, Memory]:
        """Read one segment.

        Args:
            tokens: (B, L).
            memory: what the segment before left.
            mem_len: M; how much of the layer inputs to keep for the next segment.
            key_limit: keys that a query may see at most, itself included; all of memory and segment by default.
            max_distance: distances beyond it share one encoding.
        Returns:
            The last hidden states (B, L, d) and the new memory.
        """
        key_len = memory[0].shape[1] + tokens.shape[1]
        reach = min(key_len, key_limit or key_len)
        encoding = self.dropout(self.encode_distances(reach, max_distance=max_distance))
        hidden = self.embed(tokens)
        inputs = []
        for number, (layer, past) in enumerate(zip(self.layers, memory, strict=True)):
            inputs.append(hidden)  # layer n reads layer n-1's past, so memory keeps layer inputs (3.2)
            hidden = layer(hidden, past, encoding, self.biases(number))
        kept = [update_memory(past, given, mem_len=mem_len) for past, given in zip(memory, inputs, strict=True)]
        return self.dropout(self.final_norm(hidden)), kept

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy in nats of each target, in token order: (B, L, d), (B, L) -> (B, L), float32 at least."""
        losses = self.softmax.losses(hidden.flatten(0, 1), targets.flatten(), self.embedding)
        return losses.view_as(targets)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all tokens: (B, L, d) -> (B, L, V), float32 at least."""
        return self.softmax.log_probs(hidden.flatten(0, 1), self.embedding).unflatten(0, hidden.shape[:2])


def count_parameters(settings: ModelSettings, vocab_size: int) -> int:
    """Parameters of a model, counted on the meta device: nothing is allocated."""
    with torch.device("meta"):
        model = TransformerXL(settings, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())
