"""The base class of all models: an embedding, a softmax, and a memory that is carried from segment to segment.

Axes: B batch, L segment, d model width, V vocabulary.
"""

import copy
import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor, nn

from txlcli.config.bands import Band, bands
from txlcli.config.model_settings import ModelSettings
from txlcli.config.train_settings import AttentionBackend
from txlcli.core.kernels.compilation import compiled, runs_triton
from txlcli.core.kernels.cuda_graph import is_capturing
from txlcli.core.kernels.device import product_dtype
from txlcli.core.kernels.linear import OneDnnUse, use_onednn
from txlcli.core.kernels.recomputation import recomputed
from txlcli.core.model.backends import FAST, Backend, Choices
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.embedding import AdaptiveEmbedding
from txlcli.core.model.linear import Linear
from txlcli.core.model.losses import Objective
from txlcli.core.model.softmax import AdaptiveSoftmax

Memory = list[Tensor]
"""Tensors that a model keeps of earlier segments, without gradient; the first axis of each is the batch."""


class LanguageModel(nn.Module, ABC):
    """Embedding and softmax of a model, and the methods that training and evaluation call.

    The contract of memory, on which training and readers rely (`txlcli.testing.check_architecture` tries it):

    - A memory is a list of tensors without gradient; the first axis of each is the lane. No lane depends on another.
    - `forward` reads whole segments. The hidden state of position i depends on the memory and on tokens 0 to i only.
    - The memory changes at the end of a segment, not within: a reader that gets the tokens of a segment in several
      calls uses `read_part`, which must give the hidden states and the memory that `forward` gives for all of them.
    - With M = 0, nothing is left of a segment: the next one is read as if it were the first.
    - If the settings have `recurrent_state`, the memory changes after every token instead, so that a text may be cut
      anywhere without a change of its hidden states, and M means nothing.
    - `full_memory` has the shapes of a memory after a long text, and `memory_is_full` is true of these shapes. They
      are the same after each segment, unless `memory_keeps_length` is false: a CUDA graph keeps a memory in one place.
    """

    backend: Backend = FAST
    """How the model computes; its modules have the same value."""
    own_reader: ClassVar[Callable[..., Any] | None] = None
    """Makes the reader of a model that is not in the table of architectures; None for all others."""
    hidden_are_logits: ClassVar[bool] = False
    """True if its last hidden states are logits, of which fewer fit in memory."""

    before_layer: Callable[[int], None] | None = None
    """Called with the number of each layer before it reads its weights, which training may still receive."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.vocab_size = vocab_size
        cut = bands(settings, vocab_size)
        self.embedding = AdaptiveEmbedding(cut, settings.d_model, word_dropout=settings.word_dropout)
        self.softmax = self.make_softmax(cut)

    def make_softmax(self, bands: list[Band]) -> AdaptiveSoftmax:
        """Return the softmax over a vocabulary of these bands; a subclass may return one of its own.

        It is called when the model has its settings and its embedding, and no layers yet.
        """
        return AdaptiveSoftmax(
            bands, self.settings.d_model, tied=self.settings.tie_embeddings, embedding=self.embedding
        )

    @abstractmethod
    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        """Return the memory before the first token."""

    def full_memory(self, batch_size: int, mem_len: int) -> Memory:
        """Return a memory of the size that it has after a long text, with arbitrary contents; by default the first."""
        return self.first_memory(batch_size, mem_len)

    @property
    def memory_starts_full(self) -> bool:
        """True if the memory has its full length before the first token."""
        return False

    def memory_is_full(self, memory: Memory, mem_len: int) -> bool:
        """Return True if a memory of length M has the size that it has after a long text."""
        return memory[0].shape[1] >= self.settings.visible_memory(mem_len)

    def memory_keeps_length(self, seg_len: int) -> bool:
        """Return True if a full memory has the same length after every segment of this length."""
        return True

    @abstractmethod
    def forward(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        """Read one segment (B, L); return the last hidden states (B, L, d) and the new memory."""

    def read_part(
        self, tokens: Tensor, memory: Memory, before: Memory, *, mem_len: int, ends: bool, **limits: int
    ) -> tuple[Tensor, Memory, Memory]:
        """Read a part of a segment, whose tokens arrive in several calls.

        By default the tokens before are read again, which is right for every model, and takes longer with each call.
        A model with a recurrent state reads on from its memory.

        Args:
            tokens: (B, l).
            memory: from the segment before.
            before: what this method returned for the part before, and no tensors at the beginning of a segment.
            mem_len: M; positions to keep for the next segment.
            ends: true for the last part of the segment.
            limits: as for `forward`.
        Returns:
            The last hidden states of this part (B, l, d), the memory for the next call, `before` for the next call.
        """
        if self.settings.recurrent_state:
            hidden, memory = self(tokens, memory, mem_len=mem_len, **limits)
            return hidden, memory, []
        segment = torch.cat([*before, tokens], dim=1)
        hidden, after = self(segment, memory, mem_len=mem_len, **limits)
        own = hidden[:, hidden.shape[1] - tokens.shape[1] :]
        if ends:
            return own, after, []
        return own, memory, [segment]

    def losses(self, hidden: Tensor, targets: Tensor, tail_rows: Sequence[Tensor] | None = None) -> Tensor:
        """Cross entropy in nats of each target, in token order: (B, L, d), (B, L) -> (B, L), float32 at least.

        `tail_rows` are those of `Objective`.
        """
        losses = self.softmax.losses(hidden.flatten(0, 1), targets.flatten(), tail_rows)
        return losses.view(targets.shape)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all tokens: (B, L, d) -> (B, L, V), float32 at least."""
        return self.softmax.log_probs(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])

    def objective(
        self, tokens: Tensor, targets: Tensor, memory: Memory, goal: Objective
    ) -> tuple[Tensor, Tensor, Memory]:
        """Compute what a training step minimizes on one segment.

        This method is for E = 0 and segments without padding; a model that allows more overrides it.

        Args:
            tokens: (B, E + L), read; the first E, which were read before, are fewer at the beginning of an epoch.
            targets: (B, L), predicted.
            memory: from the segment before.
            goal: which losses count, and what is added to them.
        Returns:
            The objective (0-d), the mean loss in nats to report (0-d), the new memory.
        """
        undropped, hidden, memory = self.read_undropped(tokens, memory, goal)
        counted = goal.counted(tokens.shape[1])
        loss = self.softmax.mean_loss(hidden[:, counted], targets[:, counted], goal.tail_rows)
        return sum(goal.penalties(undropped[:, counted]), loss), loss.detach(), memory

    def read_undropped(self, tokens: Tensor, memory: Memory, goal: Objective) -> tuple[Tensor, Tensor, Memory]:
        """Return the last hidden states (B, L, d) before and after their dropout, and the new memory.

        A model that drops its last hidden states overrides this: the penalties are of those before. So does one whose
        settings have `supports_reset`; it begins anew where `goal.since_reset` is 0.
        """
        hidden, memory = self(tokens, memory, mem_len=goal.mem_len)
        return hidden, hidden, memory

    def layer_function(self, layer: nn.Module) -> Callable[..., Any]:
        """Return the layer, or what calls it compiled, or again in the backward pass (train.recompute = "layers")."""
        compiles = self.backend.compiles
        if self.backend.recompute == "layers" and torch.is_grad_enabled():
            # The compiler repeats random numbers itself; elsewhere see `recomputed`.
            keeps = not compiles and (is_capturing(self.device) or self.device.type == "mps")
            return functools.partial(compiled(recomputed, compiles), layer, keeps_random_numbers=keeps)
        if compiles:
            return functools.partial(compiled(call_layer), layer)
        return layer

    def forget_gradients(self) -> None:
        """Drop all gradients. On a CPU the next step reuses the memory of the tables' gradients."""
        if self.device.type == "cpu":
            self.softmax.keep_memory_of_gradients()
        self.zero_grad(set_to_none=True)

    @property
    def has_idle_weights(self) -> bool:
        """True if some weights take no part in some training steps, and so have no gradient there.

        Which these are must not depend on the text: several processes have gradients of the same weights.
        """
        return False

    @property
    def has_layer_losses(self) -> bool:
        """True if layers add losses of their own, whose gradients need their weights before those of their outputs."""
        return False

    @property
    def predicting_weights(self) -> list[nn.Parameter]:
        """Parameters that predictions depend on, without those that only training uses."""
        return list(self.parameters())

    def reset_parameters(self) -> None:
        """Initialize all parameters."""
        if self.device.type == "meta":
            return  # there are no values, and PyTorch would import its compiler to draw some
        for name, parameter in self.named_parameters():
            self._initialize(name, parameter)

    def _initialize(self, name: str, parameter: nn.Parameter) -> None:
        """Initialize a parameter: gains with ones, other vectors with zeros, matrices with a normal distribution."""
        if parameter.dim() == 1 and name.endswith("weight"):  # as PyTorch calls the gains of a layer norm
            nn.init.ones_(parameter)
        elif parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            std = self.settings.proj_init_std if ".projections." in name else self.settings.init_std
            nn.init.normal_(parameter, 0.0, std)

    @property
    def memory_skips_padding(self) -> bool:
        """True if the memory leaves out the padding of a segment, which CUDA graphs add with train.seg_len_jitter.

        Training steps of other models run without graphs then.
        """
        return False

    @property
    def supports_reset(self) -> bool:
        """True if `objective` begins anew within a segment, at `Objective.since_reset` (train.reset_at_documents)."""
        return False

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.softmax.biases[0].device

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the weights."""
        return self.softmax.biases[0].dtype

    @property
    def targets_device(self) -> torch.device:
        """Device on which `losses` takes the targets: the host if it has to count those in each tail of the softmax."""
        return torch.device("cpu") if len(self.softmax.bands) > 1 else self.device

    @property
    def attention_backend(self) -> AttentionBackend | None:
        """Name of the attention backend; None for a model without attention."""
        return None

    @property
    def attention_kernels(self) -> str | None:
        """Name of what computes attention: "triton", "tiles" or "reference"; None for a model without attention.

        Without Triton's kernels, compiled layers contain the definition.
        """
        if self.attention_backend != "auto":
            return self.attention_backend
        dtype = product_dtype(self.backend.precision, self.dtype)
        if runs_triton(self.device, dtype, self.settings.head_width or 0):
            return "triton"
        is_compiled = self.backend.compiles or self.backend.compiles_reading
        return "reference" if is_compiled else "tiles"

    def on(self, **choices: Unpack[Choices]) -> Self:
        """Return a view of the same parameters that computes in another way; this model does not change.

        The choices are fields of `Backend`; what is not given stays as it is.
        """
        return self._view(dataclasses.replace(self.backend, **choices))

    def for_reading(self, *, compiles: bool = False) -> Self:
        """Return a view in evaluation mode that only reads: its matrices are cast and packed once, not at each segment.

        It shares the weights that need no other layout; no weight may change as long as it is used. It cannot be copied
        again, and is its own view for reading.

        Args:
            compiles: compile what a model with attention computes between two attentions.
        """
        if self.backend.only_reads:
            return self
        chosen = dataclasses.replace(self.backend, only_reads=True, compiles=False, compiles_reading=compiles)
        view = self._view(chosen).eval()
        dtype = product_dtype(self.backend.precision, self.dtype)
        if dtype != self.dtype:
            view.softmax = view.softmax.for_decoding(dtype)
        # Compiled code cannot read weights in oneDNN's layout.
        with use_onednn(OneDnnUse(fp32=False, bf16=False)) if compiles else nullcontext():
            view.pack(dtype)
        return view

    def _view(self, chosen: Backend) -> Self:
        """Return a model with the same parameters, whose modules are its own and compute as chosen."""
        shared: dict[int, Tensor] = {id(parameter): parameter for parameter in self.parameters()}
        for module in self.modules():
            constants = (*vars(module).values(), *module.buffers(recurse=False))
            for value in constants:  # PyTorch rejects a copy of a tensor without data next to other tensors
                if isinstance(value, Tensor):
                    shared[id(value)] = value
        view = copy.deepcopy(self, shared)
        view._use(view.make_backend(chosen))  # noqa: SLF001 - a view is made here alone
        return view

    def make_backend(self, chosen: Backend) -> Backend:
        """Return a backend for this model, which has the fields of `Choices` that are chosen.

        By default nothing is compiled: layers without attention have kernels of their own.
        """
        return dataclasses.replace(chosen, compiles=False, compiles_reading=False)

    def _use(self, backend: Backend) -> None:
        """Give the backend to all modules, when a model or a view is made."""
        self.backend = backend
        self.embedding.backend = backend
        self.softmax.backend = backend
        for module in self.modules():
            if isinstance(module, Dropout | Linear):
                module.backend = backend

    def pack(self, dtype: torch.dtype) -> None:
        """Give the layers copies of their matrices in this dtype, packed where that is faster; see `for_reading`."""
        for layer in getattr(self, "layers", ()):
            for module in layer.modules():
                if isinstance(module, Linear):
                    module.pack(dtype)

    def uncompiled(self) -> AbstractContextManager[None]:
        """Compile nothing inside this block, as for shapes that occur once."""
        return nullcontext()


def call_layer(layer: nn.Module, *inputs: object) -> Any:
    """Call a layer: one function of all layers, which have one shape, is compiled once."""
    return layer(*inputs)
