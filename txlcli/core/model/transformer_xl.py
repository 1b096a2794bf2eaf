"""TransformerXL: embedding, layers with segment-level recurrence (section 3.2), softmax.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, d model width, F inner width, V vocabulary,
N layers, n distances.
"""

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import AttentionKind, LossPart
from txlcli.core.kernels.device import cast_for_products
from txlcli.core.kernels.distance_space import Workspace
from txlcli.core.kernels.linear import Linear
from txlcli.core.kernels.relu_dropout import relu_dropout
from txlcli.core.model.attention import Attention, ScoreTerms
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.encodings import ENCODINGS
from txlcli.core.model.losses import AuxiliaryLosses, counted_positions
from txlcli.core.model.module_list import ModuleList


class FeedForward(nn.Module):
    """The position-wise sublayer, without its residual and norm."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.ff_1 = Linear(settings.d_model, settings.d_inner)
        self.ff_2 = Linear(settings.d_inner, settings.d_model)
        self.dropout = Dropout(settings.share("inner_dropout"), variational=settings.variational_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, d) -> (B, L, d)."""
        inner = relu_dropout(self.ff_1(hidden), self.dropout)  # (B, L, F)
        projected: Tensor = self.ff_2(inner)
        return projected


class Layer(nn.Module):
    """One layer: attention over memory and segment, then feed-forward, each with residual and norm."""

    def __init__(self, settings: TransformerSettings, workspace: Workspace) -> None:
        super().__init__()
        d_model = settings.d_model
        self.pre_norm = settings.norm != "post"
        self.attention = Attention(
            d_model=d_model,
            n_heads=settings.n_heads,
            d_head=settings.d_head,
            attention_dropout=settings.attention_dropout,
            workspace=workspace,
        )
        self.attention_norm = nn.LayerNorm(d_model, settings.norm_eps)
        self.feed_forward = FeedForward(settings)
        self.ff_norm = nn.LayerNorm(d_model, settings.norm_eps)
        self.dropout = Dropout(settings.dropout, variational=settings.variational_dropout)

    def pack(self, dtype: torch.dtype) -> None:
        """`LanguageModel.pack` for this layer."""
        self.attention.pack(dtype)
        self.feed_forward.ff_1.pack(dtype)
        self.feed_forward.ff_2.pack(dtype)

    def memorable(self, hidden: Tensor) -> Tensor:
        """What memory keeps of layer inputs (B, x, d): as products read them, if nothing else reads them."""
        return hidden if self.pre_norm else cast_for_products(hidden)

    def attention_input(self, hidden: Tensor) -> Tensor:
        """What queries, keys and values are projected from, of any layer inputs (B, x, d)."""
        normed: Tensor = self.attention_norm(hidden) if self.pre_norm else hidden
        return normed

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output (B, L, d) from its input and what the attention gave for it, which is overwritten."""
        hidden = self._added(attended, hidden)
        if self.pre_norm:
            return self._added(self.feed_forward(self.ff_norm(hidden)), hidden)
        hidden = self.attention_norm(hidden)
        normed: Tensor = self.ff_norm(self._added(self.feed_forward(hidden), hidden))
        return normed

    def _added(self, branch: Tensor, hidden: Tensor) -> Tensor:
        """The residual sum (B, L, d), written over the branch unless the branch is in 16 bits."""
        dropped: Tensor = self.dropout(branch)
        return dropped.add_(hidden) if dropped.dtype == hidden.dtype else dropped + hidden

    def forward(self, hidden: Tensor, memory: Tensor, terms: ScoreTerms) -> tuple[Tensor, Tensor]:
        """One segment (B, L, d) with the layer's memory (B, M, d); gives its output and what to keep of its input."""
        layer_input = self.memorable(hidden)
        query, keys = self.attention.project(self.attention_input(layer_input))
        if memory.shape[1]:  # projected apart from the segment: no gradient goes into memory (3.2)
            remembered = self.attention.project_keys(self.attention_input(memory.to(layer_input.dtype)))
            keys = (torch.cat([remembered[0], keys[0]], dim=2), torch.cat([remembered[1], keys[1]], dim=2))
        return self.finish(hidden, self.attention(query, keys, terms)), layer_input.detach()


def update_memory(memory: Tensor, hidden: Tensor, *, mem_len: int) -> Tensor:
    """The last `mem_len` of [memory o hidden] (3.2).

    Args:
        memory: (B, M, d), M up to mem_len.
        hidden: (B, L, d), the layer inputs of the segment that was just read, detached.
    Returns:
        (B, min(M + L, mem_len), d), in the number format of `hidden`.
    """
    forgotten = memory.shape[1] + hidden.shape[1] - mem_len  # positions
    if forgotten <= memory.shape[1]:
        return torch.cat([memory[:, max(0, forgotten) :].to(hidden.dtype), hidden], dim=1)
    if hidden.shape[1] == mem_len:
        return hidden
    return hidden[:, hidden.shape[1] - mem_len :].clone()  # a view would keep all of the segment


class TransformerXL(LanguageModel):
    """The model of section 3: an encoding of positions, layers, and as memory the layer inputs of the past.

    The memory holds (B, M, d) for each of the N layers, oldest first.
    """

    settings: TransformerSettings

    def __init__(self, settings: TransformerSettings, vocab_size: int) -> None:
        super().__init__(settings, vocab_size)
        self.encoding = ENCODINGS[settings.position](settings)
        self.workspace = Workspace()
        self.layers: ModuleList[Layer] = ModuleList(Layer(settings, self.workspace) for _ in range(settings.n_layers))
        # A pre-norm stack ends in a sum of raw branches, so it needs one norm more; the released code has none.
        final = settings.norm == "pre"
        self.final_norm = nn.LayerNorm(settings.d_model, settings.norm_eps) if final else nn.Identity()
        variational = settings.variational_dropout
        self.embedding_dropout = Dropout(settings.share("embedding_dropout"), variational=variational)
        self.output_dropout = Dropout(settings.share("output_dropout"), variational=variational)
        bands = self.embedding.bands
        self.auxiliary = None
        if settings.auxiliary_losses:
            self.auxiliary = AuxiliaryLosses(bands, d_model=settings.d_model, n_layers=settings.n_layers)
        self.reset_parameters()

    @property
    def predicting_weights(self) -> list[nn.Parameter]:
        """All but the auxiliary classifiers."""
        return [one for name, one in self.named_parameters() if not name.startswith("auxiliary.")]

    @property
    def has_idle_weights(self) -> bool:
        """The auxiliary classifiers, once their schedule has ended."""
        return self.auxiliary is not None

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

    def first_memory(self, lanes: int, mem_len: int) -> Memory:
        """Memory before the first token, for each layer: (B, 0, d), or (B, M, d) zeros that are attended to."""
        length = mem_len if self.settings.memory_start == "zeros" else 0
        return [self.softmax.biases[0].new_zeros(lanes, length, self.settings.d_model) for _ in self.layers]

    def full_memory(self, lanes: int, mem_len: int) -> Memory:
        """M vectors per layer, (B, M, d), as after a text that is long enough."""
        shape = (lanes, mem_len, self.settings.d_model)
        return [layer.memorable(self.softmax.biases[0].new_zeros(shape)) for layer in self.layers]

    def recompute(self, enabled: bool) -> None:
        """Let backward passes compute logits and attention probabilities again, instead of keeping them; or not."""
        super().recompute(enabled)
        for layer in self.layers:
            layer.attention.recompute = enabled

    def pack(self, dtype: torch.dtype) -> None:
        """Lay out the matrices of attention and feed-forward for reading."""
        for layer in self.layers:
            layer.pack(dtype)

    @property
    def attention_kind(self) -> AttentionKind:
        """How attention is computed."""
        return self.layers[0].attention.kind

    def attend_by(self, kind: AttentionKind) -> None:
        """Compute attention in this way from now on; the function stays the same."""
        for layer in self.layers:
            layer.attention.kind = kind

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, L) tokens at positions (L,) -> (B, L, d) embeddings with what the encoding adds to them."""
        embedded = self.embedding(tokens) * self.settings.d_model**0.5
        dropped: Tensor = self.embedding_dropout(self.encoding.enter(embedded, positions))
        return dropped

    def score_terms(self, reach: int, *, max_distance: int | None) -> list[ScoreTerms]:
        """What each layer adds to its score of the distances 0 .. reach - 1."""
        return self.encoding.terms(reach, max_distance=max_distance, like=self.softmax.biases[0])

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
        outputs, new_memory = self._read(
            tokens, memory, mem_len=mem_len, key_limit=key_limit, max_distance=max_distance
        )
        return self._finished(outputs[-1]), new_memory

    def _read(
        self, tokens: Tensor, memory: Memory, *, mem_len: int, key_limit: int | None, max_distance: int | None
    ) -> tuple[list[Tensor], Memory]:
        """The output (B, L, d) of each layer, and the new memory."""
        key_len = memory[0].shape[1] + tokens.shape[1]
        terms = self.score_terms(min(key_len, key_limit or key_len), max_distance=max_distance)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.embed(tokens, positions)
        new_memory, outputs = [], []
        for number, (layer, past) in enumerate(zip(self.layers, memory, strict=True)):
            hidden = self.encoding.add(hidden, number, positions)
            # Layer n reads layer n-1's past, so memory keeps layer inputs (3.2).
            hidden, layer_input = layer(hidden, past, terms[number])
            new_memory.append(update_memory(past, layer_input, mem_len=mem_len))
            outputs.append(hidden)
        return outputs, new_memory

    def _finished(self, hidden: Tensor) -> Tensor:
        """What the softmax reads of a layer's output (B, L, d)."""
        finished: Tensor = self.output_dropout(self.final_norm(hidden))
        return finished

    def objective(
        self, tokens: Tensor, targets: Tensor, memory: Memory, *, mem_len: int, part: LossPart, progress: float
    ) -> tuple[Tensor, Tensor, Memory]:
        """The loss of the counted positions; with the auxiliary losses of every layer where the model has them."""
        if self.auxiliary is None:
            return super().objective(tokens, targets, memory, mem_len=mem_len, part=part, progress=progress)
        outputs, memory = self._read(tokens, memory, mem_len=mem_len, key_limit=None, max_distance=None)
        finished = [self._finished(output) for output in outputs]
        counted = counted_positions(tokens.shape[1], part)
        loss = self.losses(finished[-1][:, counted], targets[:, counted]).mean()
        auxiliary = self.auxiliary(
            [hidden[:, counted] for hidden in finished], targets[:, counted], self.embedding, progress
        )
        return loss + auxiliary, loss, memory
