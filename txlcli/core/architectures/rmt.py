"""The Recurrent Memory Transformer (Bulatov et al. 2022): memory tokens are read before a segment and written after it.

A segment of L tokens is read as [state o segment o state], n + L + n rows. The first group is read by all tokens after
it; the outputs of the last group, which sees all of them, are the next state. There is no other memory. Within one call
gradients pass through all states, so that a training step of k segments trains what they keep for each other.

A state changes when a segment of L tokens is complete, however the text is cut into calls: the memory has the tokens of
a segment that is not complete, which are read again with those that follow.

Axes: B batch, L segment, n memory tokens, d model width, T tokens of a call.
"""

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import RmtSettings
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import register_architecture
from txlcli.core.architectures.transformer import TransformerProducts
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.layer import HiddenMemory, rotated
from txlcli.core.model.losses import Objective
from txlcli.core.model.transformer_xl import TransformerXL, last_output


class RecurrentMemoryTransformer(TransformerXL):
    """A Transformer with memory tokens.

    The memory holds the state (B, n, d), with n = 0 before the first complete segment, and tokens (B, x), x < L, of a
    segment that is not complete.
    """

    settings: RmtSettings
    supports_reset = False

    def __init__(self, settings: RmtSettings, vocab_size: int) -> None:
        super().__init__(settings, vocab_size)
        self.first_state = nn.Parameter(torch.empty(settings.n_memory_tokens, settings.d_model))
        if self.device.type != "meta":
            nn.init.normal_(self.first_state)

    @property
    def has_idle_weights(self) -> bool:
        """True: the first state has a gradient in the first step of an epoch only, so that it is hardly trained."""
        return True

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        return [tensor[:, :0] for tensor in self.full_memory(batch_size, mem_len)]

    def full_memory(self, batch_size: int, mem_len: int) -> Memory:
        like = self.softmax.biases[0]
        state = like.new_zeros(batch_size, self.settings.n_memory_tokens, self.settings.d_model)
        return [state, like.new_zeros(batch_size, 0, dtype=torch.int64)]

    def memory_is_full(self, memory: Memory, mem_len: int) -> bool:
        return memory[0].shape[1] > 0 and memory[1].shape[1] == 0

    def forward(  # type: ignore[override]
        self, tokens: Tensor, memory: Memory, *, mem_len: int
    ) -> tuple[Tensor, Memory]:
        """Read tokens (B, T) in segments; return their last hidden states (B, T, d) and the new memory.

        The memory has no gradient. M is 0: the state is all the memory.
        """
        _, hidden, memory = self.read_undropped(tokens, memory, Objective(mem_len=mem_len))
        return hidden, memory

    def read_undropped(self, tokens: Tensor, memory: Memory, goal: Objective) -> tuple[Tensor, Tensor, Memory]:
        last_state, unfinished = memory
        state = last_state
        if not state.shape[1]:
            state = self.first_state.expand(len(tokens), -1, -1)
        segment_len = self.settings.segment_len
        present = torch.cat([unfinished, tokens], dim=1)  # (B, x + T)
        outputs = []
        dropped = []
        for segment in present.split(segment_len, dim=1):
            output, written = self._read_segment(segment, state)
            outputs.append(output)
            dropped.append(self.output_dropout(output))
            if segment.shape[1] == segment_len:
                state = written
                last_state = written
        before = unfinished.shape[1]
        complete = present.shape[1] // segment_len * segment_len
        new_memory = [last_state.detach(), present[:, complete:].clone()]
        undropped = torch.cat(outputs, dim=1)[:, before:]
        hidden = torch.cat(dropped, dim=1)[:, before:]
        return undropped, hidden, new_memory

    def objective(
        self, tokens: Tensor, targets: Tensor, memory: Memory, goal: Objective
    ) -> tuple[Tensor, Tensor, Memory]:
        """See `LanguageModel.objective`, not that of TransformerXL: segments are read one after another."""
        return LanguageModel.objective(self, tokens, targets, memory, goal)

    def read_part(  # type: ignore[override]
        self, tokens: Tensor, memory: Memory, before: Memory, *, mem_len: int, ends: bool, **limits: int
    ) -> tuple[Tensor, Memory, Memory]:
        """See `LanguageModel.read_part`: the memory is a state, from which the model reads on."""
        hidden, memory = self(tokens, memory, mem_len=mem_len)
        return hidden, memory, []

    def _read_segment(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return a segment's last hidden states before dropout (B, x, d), and the state written after it (B, n, d)."""
        count = state.shape[1]
        rows = tokens.shape[1] + 2 * count
        positions = torch.arange(rows, device=tokens.device)
        embedded = self.embed(tokens, positions[count : rows - count])
        state = state.to(embedded.dtype)
        hidden = torch.cat([state, embedded, state], dim=1)  # (B, n + x + n, d)
        terms = rotated(self.score_terms(rows, max_distance=None), self.encoding.rotation(positions))
        empty = HiddenMemory(hidden=embedded[:, :0].detach())
        outputs = self.run_layers(hidden, [empty] * len(self.layers), terms, positions)
        hidden = self.undropped_hidden(last_output(outputs))
        return hidden[:, count : rows - count], hidden[:, rows - count :]


class RmtProducts(TransformerProducts):
    """Layers of a Transformer that read memory tokens with each segment."""

    model: RmtSettings

    @property
    def _rows_per_token(self) -> float:
        return self.model.rows / self.model.segment_len

    def decoding(self, settings: EvalSettings) -> float:
        # Of a whole segment, with its share of the memory tokens.
        return self._rows_per_token * super().decoding(settings)

    def window(self, settings: EvalSettings) -> float:
        return settings.seg_len * self.decoding(settings)

    def training(self, train: TrainSettings) -> float:
        return super().training(train) * self.model.rows / self.model.segment_len


register_architecture(
    "rmt", settings=RmtSettings, model=RecurrentMemoryTransformer, products=RmtProducts, reader="states"
)
