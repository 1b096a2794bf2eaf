"""What every language model here has: an embedding, a softmax, a memory that is carried from segment to segment.

Axes: B lanes, L segment, d model width, V vocabulary.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import LossPart
from txlcli.core.model.embedding import AdaptiveEmbedding
from txlcli.core.model.losses import counted_positions
from txlcli.core.model.softmax import AdaptiveSoftmax

Memory = list[Tensor]
"""What a model remembers of the segments before, without gradient; lanes are the first axis of each tensor."""


class LanguageModel(nn.Module, ABC):
    """The two ends of a model, and what training and evaluation ask of it.

    Raises:
        RecipeError: a cutoff lies beyond the vocabulary.
    """

    read_in: str | None = None
    """Of a copy that was made for readers: the precision that it reads in."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.vocab_size = vocab_size
        cut = bands(settings, vocab_size)
        self.embedding = AdaptiveEmbedding(cut, settings.d_model, word_dropout=settings.word_dropout)
        self.softmax = AdaptiveSoftmax(cut, settings.d_model, tied=settings.tie_embeddings)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.softmax.biases[0].device

    @property
    def targets_device(self) -> torch.device:
        """Where `losses` wants the targets: on the host if it has to count those in each tail of the softmax."""
        return torch.device("cpu") if len(self.softmax.bands) > 1 else self.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' number format."""
        return self.softmax.biases[0].dtype

    @property
    def predicting_weights(self) -> list[nn.Parameter]:
        """The parameters that predictions rest on, without what only training has."""
        return list(self.parameters())

    @property
    def has_idle_weights(self) -> bool:
        """Whether some weights have no part in some training steps, and so no gradient."""
        return False

    @abstractmethod
    def first_memory(self, lanes: int, mem_len: int) -> Memory:
        """Memory before the first token."""

    @abstractmethod
    def full_memory(self, lanes: int, mem_len: int) -> Memory:
        """Memory of the size that it has after a long text; what it holds does not matter."""

    @abstractmethod
    def forward(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        """Read one segment (B, L); gives the last hidden states (B, L, d) and the new memory."""

    @abstractmethod
    def pack(self, dtype: torch.dtype) -> None:
        """Multiply in this number format from now on, by what the layers' weights are now, packed where that pays.

        For reading only, as long as no weight changes. Softmax and embedding stay as they are.
        """

    def recompute(self, enabled: bool) -> None:
        """Let backward passes compute logits again, and what else is large, instead of keeping it; or let them not."""
        self.softmax.recompute = enabled

    def forget_gradients(self) -> None:
        """Drop all gradients. On a CPU the next step's gradients of tables get the memory of this step's."""
        if self.device.type == "cpu":
            tables = self.embedding.tables if self.settings.tie_embeddings else self.softmax.tables
            for spare, table in zip(self.softmax.spare, tables, strict=True):
                spare.release(table.grad)
        self.zero_grad(set_to_none=True)

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy in nats of each target, in token order: (B, L, d), (B, L) -> (B, L), float32 at least."""
        losses = self.softmax.losses(hidden.flatten(0, 1), targets.flatten(), self.embedding)
        return losses.view(targets.shape)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all tokens: (B, L, d) -> (B, L, V), float32 at least."""
        return self.softmax.log_probs(hidden.flatten(0, 1), self.embedding).unflatten(0, hidden.shape[:2])

    def objective(
        self, tokens: Tensor, targets: Tensor, memory: Memory, *, mem_len: int, part: LossPart, progress: float
    ) -> tuple[Tensor, Tensor, Memory]:
        """What a training step minimises on one segment.

        Args:
            tokens: (B, L) read.
            targets: (B, L) predicted.
            memory: what the segment before left.
            mem_len: M.
            part: the positions whose losses count.
            progress: the share of the training that is done, 0 to 1.
        Returns:
            The objective (0-d), the mean loss in nats that is reported (0-d), the new memory.
        """
        hidden, memory = self(tokens, memory, mem_len=mem_len)
        counted = counted_positions(tokens.shape[1], part)
        loss = self.losses(hidden[:, counted], targets[:, counted]).mean()
        return loss, loss, memory
