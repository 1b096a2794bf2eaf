"""TransformerXL: embedding, layers with segment-level recurrence (section 3.2), softmax.

In this order: how a segment is read, what is remembered of it, the loss of a training step, the first weights. What
follows decides how the model computes, not what.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, d model width, F inner width, V vocabulary,
N layers, n distances.
"""

import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import TransformerSettings
from txlcli.config.train_settings import AttentionBackend
from txlcli.core.backend import ScoreTerms, pad_to, round_up
from txlcli.core.kernels.compilation import check_compiler, compiled
from txlcli.core.kernels.device import autocast_dtype, row_multiple
from txlcli.core.kernels.linear import by_onednn, linear
from txlcli.core.kernels.score_buffer import ScoreBuffers
from txlcli.core.model import backends
from txlcli.core.model.backends import Backend
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.encodings import ENCODINGS
from txlcli.core.model.layer import HiddenMemory, Layer, LayerOutput, Past, rotated, update_memory
from txlcli.core.model.linear import merge
from txlcli.core.model.losses import AuxiliaryLosses, Objective
from txlcli.core.model.module_list import ModuleList
from txlcli.core.model.sublayers import make_norm

Rule = TypeVar("Rule", bound=Callable[..., Memory])


def declares(*, skips_padding: bool = False, supports_reset: bool = False) -> Callable[[Rule], Rule]:
    """Declare properties of a rule of memory (`remember`). A class that overrides the rule loses them.

    Args:
        skips_padding: the rule leaves out the padding of a segment, see `TransformerXL.remember`.
        supports_reset: the memory has the keys that `Objective.since_reset` counts, each at its token's distance.
    """

    def declared(remember: Rule) -> Rule:
        remember.skips_padding = skips_padding  # type: ignore[attr-defined]
        remember.supports_reset = supports_reset  # type: ignore[attr-defined]
        return remember

    return declared


class TransformerXL(LanguageModel):
    """The model of section 3: an encoding of positions, layers, and as memory the layer inputs of the past.

    The memory holds (B, M, d) for each of the N layers, oldest first.
    """

    settings: TransformerSettings
    layer_class: type[Layer] = Layer
    reads_padded_rows = True
    """True if all methods read hidden states that end in zeros. Not inherited, since a subclass may override any of
    them: each class declares it for itself."""

    def __init__(self, settings: TransformerSettings, vocab_size: int) -> None:
        super().__init__(settings, vocab_size)
        # What the class itself declares; asked once, because `fully_shard` replaces the class of a model.
        self.reads_padded_rows = vars(type(self)).get("reads_padded_rows", False)
        self.encoding = ENCODINGS[settings.position](settings)
        self.layers: ModuleList[Layer] = ModuleList(self.layer_class(settings) for _ in range(settings.n_layers))
        self.workspace = ScoreBuffers()
        """Score buffers that all layers share."""
        # A pre-norm stack ends in a sum of raw branches, so it needs a final norm; the released code has none.
        self.final_norm = make_norm(settings) if settings.norm == "pre" else nn.Identity()
        self.embedding_dropout = Dropout.of(settings, "embedding_dropout")
        self.output_dropout = Dropout.of(settings, "output_dropout")
        self.auxiliary = AuxiliaryLosses(self.embedding.bands, settings) if settings.auxiliary_losses else None
        self._use(self.make_backend(self.backend))
        self.reset_parameters()

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        mem_len: int,
        key_limit: int | None = None,
        max_distance: int | None = None,
        **lengths: int,
    ) -> tuple[Tensor, Memory]:
        """Read one segment.

        Args:
            tokens: (B, L).
            memory: what the segment before left.
            mem_len: M; positions to keep for the next segment, at most W - 1 with a window.
            key_limit: the largest number of keys a query may see, itself included; all by default. A window W is one
                more limit.
            max_distance: distances beyond it share one encoding.
            lengths: of memories that other architectures have, see `pasts`.
        Returns:
            The last hidden states (B, L, d) and the new memory.
        """
        pasts = self.pasts(memory, mem_len, **lengths)
        outputs = self.read_layers(tokens, pasts, key_limit, max_distance)
        hidden = self.final_hidden(outputs[-1].hidden)
        return hidden, self.memory_after(pasts, outputs, Objective(mem_len=mem_len))

    def read_layers(
        self,
        tokens: Tensor,
        pasts: Sequence[HiddenMemory],
        key_limit: int | None = None,
        max_distance: int | None = None,
        since_reset: Tensor | None = None,
    ) -> list[LayerOutput]:
        """Return the outputs of all layers for a segment, or a part of it (B, L); for `since_reset` see `Objective`."""
        seg_len = tokens.shape[1]
        key_len = pasts[0].length + seg_len
        reach = min(key_len, key_limit or key_len, self.settings.window or key_len)
        in_stream = torch.arange(key_len, device=tokens.device)  # positions of past and tokens
        terms = rotated(self.score_terms(reach, max_distance=max_distance), self.encoding.rotation(in_stream))
        if since_reset is not None:
            terms = [dataclasses.replace(added, farthest=since_reset) for added in terms]
        first = pasts[0].segment_len
        positions = torch.arange(first, first + seg_len, device=tokens.device)  # in the segment
        return list(self.run_layers(self.embed(tokens, positions), pasts, terms, positions))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return embeddings (B, L, d) of tokens (B, L) at positions (L,), with what the encoding adds to them."""
        return compiled(embed_inputs, self.backend.compiles)(self, self.embedding.look_up(tokens), tokens, positions)

    def score_terms(self, reach: int, *, max_distance: int | None) -> list[ScoreTerms]:
        """Return the score terms of each layer, for the distances 0 .. reach - 1."""
        return self.encoding.score_terms(reach, max_distance=max_distance, like=self.softmax.biases[0])

    def run_layers(
        self,
        hidden: Tensor,
        pasts: Iterable[Past],
        terms: Sequence[ScoreTerms],
        positions: Tensor,
        *,
        count: int | None = None,
    ) -> Iterator[LayerOutput]:
        """Read one segment through all layers: the loop that training, evaluation and decoding share.

        Args:
            hidden: embeddings (B, L, d).
            pasts: what each layer knows of the tokens before.
            terms: what the encoding adds to each layer's score.
            positions: (L,) in the segment.
            count: number of final positions to compute in the last layer, 0 included; all by default.
        """
        last = len(self.layers) - 1
        layer_input = None
        for number, (layer, past, layer_terms) in enumerate(zip(self.layers, pasts, terms, strict=True)):
            hidden = self.encoding.add_to_layer_input(hidden, number, positions)
            if layer_input is None and self.backend.attend_context is not None:
                layer_input = layer.memory_input(hidden)
            if self.before_layer is not None:
                self.before_layer(number)
            count_here = count if number == last else None
            output: LayerOutput = self.layer_function(layer)(hidden, past, layer_terms, count_here, layer_input)
            yield output
            hidden = output.hidden
            layer_input = None if self.encoding.changes_layers else output.next_input

    def final_hidden(self, hidden: Tensor) -> Tensor:
        """Return the final hidden states, which the softmax reads, from the output of a layer (B, L, d)."""
        dropped: Tensor = self.output_dropout(self.undropped_hidden(hidden))
        return dropped

    def undropped_hidden(self, hidden: Tensor) -> Tensor:
        """Return the final hidden states before their dropout, (B, L, d), from the output of a layer."""
        normed: Tensor = self.final_norm(hidden)
        return normed[..., : self.settings.d_model]  # without the zeros of padded rows

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        """Return the memory before the first token, for each layer: (B, 0, d), or (B, M, d) visible zeros."""
        if self.memory_starts_full:
            return self.full_memory(batch_size, mem_len)
        return self._zeros(batch_size, 0)

    def full_memory(self, batch_size: int, mem_len: int) -> Memory:
        return self._zeros(batch_size, self.settings.visible_memory(mem_len))

    def _zeros(self, batch_size: int, length: int) -> Memory:
        """Return a tensor of zeros for each layer, (B, x, d)."""
        shape = (batch_size, length, self.settings.d_model)
        return [torch.zeros(shape, dtype=self.memory_dtype, device=self.device) for _ in self.layers]

    @property
    def memory_skips_padding(self) -> bool:
        return getattr(self.remember, "skips_padding", False)

    @property
    def supports_reset(self) -> bool:
        return getattr(self.remember, "supports_reset", False)

    @property
    def memory_starts_full(self) -> bool:
        return self.settings.memory_start == "zeros"

    @property
    def memory_dtype(self) -> torch.dtype:
        """dtype of a memory: that of products, if nothing else reads it."""
        weight = self.embedding.tables[0]
        return autocast_dtype(weight) if self.settings.norm == "post" else weight.dtype

    def pasts(self, memory: Memory, mem_len: int) -> Sequence[HiddenMemory]:
        """Return the past of each layer before a segment: layer n reads the past of layer n - 1 (3.2).

        A subclass with another memory returns N objects whose `remembered` (B, x, d) are the hidden states that the
        layer attends to, and whose `length` is x + `segment_len`, the same for all layers. `segment_len` is the
        number of tokens of the present segment that were read before.
        """
        return [HiddenMemory(hidden=past) for past in self._readable(memory)]

    def _readable(self, memory: Memory) -> Memory:
        """Cast a memory that was saved in another precision before a run was resumed."""
        return [tensor.to(self.memory_dtype) for tensor in memory]

    def memory_after(self, pasts: Sequence[HiddenMemory], outputs: Sequence[LayerOutput], goal: Objective) -> Memory:
        """Return the memory after the last token of a segment, given the outputs of its last part."""
        goal = dataclasses.replace(goal, mem_len=self.settings.visible_memory(goal.mem_len))
        whole = []
        for past, output in zip(pasts, outputs, strict=True):
            kept = past.whole_segment(output.kept)
            end = max(0, kept.shape[1] - goal.reread_len)
            whole.append(output._replace(hidden=output.hidden[:, :end], kept=kept[:, :end]))
        return self.remember(pasts, whole, goal)

    @declares(skips_padding=True, supports_reset=True)
    def remember(self, pasts: Sequence[HiddenMemory], outputs: Sequence[LayerOutput], goal: Objective) -> Memory:
        """Return the memory after a segment: the last M positions of each layer.

        It is called once for each segment, after its last token, however many calls have read the segment. A subclass
        may keep anything else. `txlcli.core.reading.decoder`, the reader "keys", does not call it: it keeps the last M
        positions, and so is for this memory alone.

        Args:
            pasts: of the N layers, before the segment.
            outputs: of the N layers. `kept`, (B, L, d), is what each has read since the segment began, without the last
                E positions, which the next segment reads again. `hidden` is the output for the tokens of the last call
                alone, with a gradient: a rule that reads it needs `read_part = LanguageModel.read_part`, which reads a
                whole segment in each call.
            goal: `mem_len` is M, at most W - 1 with a window. `seg_len` is L if the segment is padded: then `kept` has
                more positions, of which the first L count. This occurs only after a full memory, and only for a rule
                that declares `skips_padding`.
        """
        pairs = [(past.hidden, output.kept) for past, output in zip(pasts, outputs, strict=True)]
        if goal.seg_len is None or not goal.mem_len:
            return [update_memory(past, kept, mem_len=goal.mem_len) for past, kept in pairs]
        last = torch.arange(goal.mem_len, device=self.device) + goal.seg_len  # of M + L positions before the padding
        return [torch.cat(pair, dim=1).index_select(1, last) for pair in pairs]

    def read_part(
        self,
        tokens: Tensor,
        memory: Memory,
        before: Memory,
        *,
        mem_len: int,
        ends: bool,
        key_limit: int | None = None,
        max_distance: int | None = None,
        **lengths: int,
    ) -> tuple[Tensor, Memory, Memory]:
        """See `LanguageModel.read_part`; `before` has the inputs of each layer, so that nothing is read again."""
        pasts = [
            dataclasses.replace(past, segment=segment, ends=ends)
            for past, segment in zip_longest(self.pasts(memory, mem_len, **lengths), before)
        ]
        outputs = self.read_layers(tokens, pasts, key_limit, max_distance)
        hidden = self.final_hidden(outputs[-1].hidden)
        if ends:
            return hidden, self.memory_after(pasts, outputs, Objective(mem_len=mem_len)), []
        segments = [past.whole_segment(output.kept) for past, output in zip(pasts, outputs, strict=True)]
        return hidden, memory, segments

    def objective(
        self, tokens: Tensor, targets: Tensor, memory: Memory, goal: Objective
    ) -> tuple[Tensor, Tensor, Memory]:
        """See `LanguageModel.objective`; layers may add losses of their own, and auxiliary classifiers theirs."""
        pasts = self.pasts(memory, goal.mem_len)
        outputs = self.read_layers(tokens, pasts, since_reset=goal.since_reset)
        memory = self.memory_after(pasts, outputs, goal)
        added = [output.loss for output in outputs if output.loss is not None]
        of_layers = [output.hidden for output in outputs]
        if self.auxiliary is None:
            of_layers = of_layers[-1:]
        del pasts, outputs  # the backward pass frees the old memory layer by layer
        targets = targets[:, goal.counted(targets.shape[1])]
        first = tokens.shape[1] - targets.shape[1]  # positions before it were read again, or do not count
        final = compiled(final_states, self.backend.compiles)
        finals = [final(self, hidden, first, goal) for hidden in of_layers]
        del of_layers  # freed before the logits take memory
        states = [hidden for hidden, _ in finals]
        penalties = finals[-1][1]
        weights = goal.weights(targets.shape[1])
        loss = self.softmax.mean_loss(states[-1], targets, goal.tail_rows, weights)
        if self.auxiliary is not None:
            added.append(self.auxiliary(states, targets, goal.progress))
        return sum([*added, *penalties], loss), loss.detach(), memory

    @property
    def predicting_weights(self) -> list[nn.Parameter]:
        """All parameters but the auxiliary classifiers'."""
        return [parameter for name, parameter in self.named_parameters() if not name.startswith("auxiliary.")]

    @property
    def has_idle_weights(self) -> bool:
        """True with auxiliary classifiers, whose schedule ends before training does."""
        return self.auxiliary is not None

    def reset_parameters(self) -> None:
        """Initialize as the released code does; the encoding may then initialize its own parameters."""
        super().reset_parameters()
        if self.device.type != "meta":
            self.encoding.reset_parameters()

    def _initialize(self, name: str, parameter: nn.Parameter) -> None:
        """Initialize gains around 1, gates by their bias; with init = "tf" gains at 1, vectors of clusters at 0."""
        tf_init = self.settings.init == "tf"
        if "norm." in name and name.endswith("weight"):
            std = 0.0 if tf_init else self.settings.init_std
            nn.init.normal_(parameter, 1.0, std)
        elif name.endswith(".update_bias"):
            nn.init.constant_(parameter, self.settings.gate_bias)
        elif tf_init and name.endswith("cluster_weight"):
            nn.init.zeros_(parameter)
        else:
            super()._initialize(name, parameter)

    @property
    def attention_backend(self) -> AttentionBackend:
        return self.backend.attention

    def make_backend(self, chosen: Backend) -> Backend:
        if not (chosen.compiles or chosen.compiles_reading):
            return backends.make_backend(chosen, self.workspace)
        if not self.backend.compiles:
            check_compiler(self.device, "`compile` off")
        # Heads that are normalized or rotated are not joined.
        joins_heads = self.settings.parts.qk_norm == "none" and not self.encoding.rotates
        return backends.make_compiled_backend(chosen, joins_heads=joins_heads, pads_rows=self._pads_rows)

    def _use(self, backend: Backend) -> None:
        super()._use(backend)
        self.encoding.backend = backend
        for layer in self.layers:
            layer.backend = backend

    @property
    def width(self) -> int:
        """Width of the rows of hidden states: d, and zeros up to a multiple of the backend."""
        return round_up(self.settings.d_model, self.backend.multiple)

    @property
    def _pads_rows(self) -> bool:
        """True if hidden states are padded for CUDA's products; most parts read them unpadded.

        The layers and the methods of a subclass do, and so do gates, norms of heads, encodings that change the input
        of layers, and feed-forward sublayers that do not declare otherwise.
        """
        if not self.reads_padded_rows or self.encoding.changes_layers:
            return False
        if self.settings.gating != "residual" or self.settings.parts.qk_norm != "none":
            return False
        return row_multiple(self.device) > 1 and all(layer.reads_padded_rows for layer in self.layers)

    def pack(self, dtype: torch.dtype) -> None:
        if self.attention_backend == "reference":
            return  # the definition reads the parameters themselves
        super().pack(dtype)
        for layer in self.layers:
            matrices = [layer.attention.w_q, layer.attention.w_k_content, layer.attention.w_v]
            if self.device.type != "cpu" or by_onednn(matrices[0].weight, dtype):  # else they are as fast apart
                layer.attention.project_all = functools.partial(linear, weight=merge(matrices, dtype))

    def projected_terms(self, reach: int, *, max_distance: int | None) -> list[ScoreTerms]:
        """Return the score terms for reading, with everything that does not depend on the text."""
        projected = []
        for layer, terms in zip(self.layers, self.score_terms(reach, max_distance=max_distance), strict=True):
            projected.append(layer.attention.project_distances(terms, layer.projection_dropout))
        return projected

    @contextlib.contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Compile nothing inside this block, as for shapes that occur once."""
        with torch.compiler.set_stance("force_eager"):
            yield


def embed_inputs(model: TransformerXL, vectors: list[Tensor], tokens: Tensor, positions: Tensor) -> Tensor:
    """Return the input of the first layer, (B, L, d), from what the embedding finds for tokens at positions (L,)."""
    embedded = model.embedding.join(vectors, tokens) * model.settings.d_model**0.5
    encoded = model.encoding.add_to_embedding(embedded, positions)
    return pad_to(model.embedding_dropout(encoded), model.width)


def final_states(model: TransformerXL, hidden: Tensor, first: int, goal: Objective) -> tuple[Tensor, list[Tensor]]:
    """Return the final hidden states (B, x, d) from a position of a layer's output on, with dropout, and penalties."""
    undropped = model.undropped_hidden(hidden)
    states = model.output_dropout(undropped)[:, first:].contiguous()
    return states, goal.penalties(undropped[:, first:])


def last_output(layers: Iterator[LayerOutput]) -> Tensor:
    """Run all layers and return the output of the last one."""
    (output,) = deque(layers, maxlen=1)  # the outputs of the layers below are freed
    return output.hidden
