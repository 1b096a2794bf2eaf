"""The choice of a backend: the definition of attention in `core.model.attention`, or faster implementations."""

import dataclasses
from dataclasses import dataclass
from typing import TypedDict

from torch import Tensor
from torch.nn import functional as F

from txlcli.config.train_settings import AttentionBackend, Compile, Precision, Recompute
from txlcli.core.backend import Attend, AttendContext, Drop, Linear, ScoreTerms, pad_to
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.kernels.compilation import runs_triton
from txlcli.core.kernels.compiled_layers import aligned_linear, fused_linear, fused_relu_dropout, plain_dropout
from txlcli.core.kernels.device import CUDA_MULTIPLE
from txlcli.core.kernels.dropout import drop, relu_dropout
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.score_buffer import ScoreBuffers
from txlcli.core.model import attention


class Choices(TypedDict, total=False):
    """The fields of `Backend` that a caller chooses; a model adds what follows from them."""

    attention: AttentionBackend
    precision: Precision
    compiles: bool
    reading_compile: Compile
    recompute: Recompute
    gradient_of_rows: bool
    temperature: float


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How a model computes. At temperature 1, all backends compute the same function.

    A model and its modules share one of these, which never changes. Another way to compute is another view of the same
    parameters, see `LanguageModel.on` and `LanguageModel.for_reading`.
    """

    attention: AttentionBackend = "auto"
    """Name of the attention backend: the fast path of the device, or the definition."""
    precision: Precision = "fp32"
    """Of matrix products, and of what a reader keeps of the past; the caller of the model autocasts to it."""
    compiles: bool = False
    """True to compile the functions of a training step."""
    reading_compile: Compile = "auto"
    """If a reader is to compile; auto: on a GPU, for long texts. `compiles_reading` is what follows from it."""
    recompute: Recompute = False
    """Let backward passes compute attention probabilities again without keeping them, or whole layers."""
    gradient_of_rows: bool = False
    """True if `backward` adds the gradient of the embedded rows, in place, to the softmax's of the same table.

    Autograd would add two whole tables into a third, although one of them is nearly all zeros: on a CPU that is a fifth
    of a training step with the vocabulary of WikiText-103.
    """
    temperature: float = 1.0
    """Number that divides all logits, of the bands of the vocabulary and of the clusters."""
    only_reads: bool = False
    """True for a view whose matrices are packed for reading."""
    compiles_reading: bool = False
    """True for a view that compiles what a reader computes between two attentions: no shape in it depends on the past.
    """
    attend: Attend
    linear: Linear
    dropout: Drop
    relu_dropout: Drop
    """Dropout of relu(hidden); it may overwrite its input."""
    attend_context: AttendContext | None = None
    """Attention to keys and values of one product, for layers that train: every past is a `HiddenMemory`, and all
    positions are computed. None: matrices are not joined, since that saves launches only."""
    multiple: int = 1
    """Rows of hidden states have a multiple of so many numbers, with zeros at the end."""


FAST = Backend(attend=TiledAttention(), linear=linear, dropout=drop, relu_dropout=relu_dropout)
"""The fast path, before a model shares its score buffers."""


def make_backend(chosen: Backend, workspace: ScoreBuffers) -> Backend:
    """Return a backend with these choices that compiles nothing.

    With attention = "reference", PyTorch and `core.model.attention` compute the layers, except dropout.

    Args:
        chosen: its functions are replaced.
        workspace: score buffers that all layers share.
    """
    attend: Attend = attention.attend
    product: Linear = F.linear
    if chosen.attention == "auto":
        attend = FastAttention(TiledAttention(workspace, recompute=chosen.recompute is True))
        product = linear
    return dataclasses.replace(
        chosen,
        attend=attend,
        attend_context=None,
        linear=product,
        dropout=drop,
        relu_dropout=relu_dropout,
        multiple=1,
    )


class FastAttention:
    """`core.backend.Attend` on the fast path of the device: Triton's kernels on CUDA from Ampere on.

    Args:
        fallback: for devices, dtypes and head widths without kernels.
        compiles: compile what makes the queries that Triton's kernels read.
    """

    def __init__(self, fallback: Attend, *, compiles: bool = False) -> None:
        self.fallback = fallback
        self._compiles = compiles

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Return (B, H, L, D)."""
        if not runs_triton(query.device, query.dtype, query.shape[3]):
            return self.fallback(query, key, value, terms, dropout=dropout)
        from txlcli.core.kernels.attention_triton import attend  # noqa: PLC0415 - PyTorch for CPUs has no Triton

        return attend(query, key, value, terms, dropout=dropout, compiles=self._compiles)

    def to_context(
        self, query: Tensor, key_value: Tensor, terms: ScoreTerms, *, width: int, dropout: float = 0.0
    ) -> Tensor:
        """Return (B, H, L, D); see `core.backend.AttendContext`."""
        if runs_triton(query.device, query.dtype, query.shape[3]):
            from txlcli.core.kernels.attention_triton import attend  # noqa: PLC0415

            return attend(query, key_value, None, terms, d_head=width, dropout=dropout)
        key, value = key_value.transpose(1, 3).unbind(2)
        if terms.position_key is not None:  # without the zeros
            terms = dataclasses.replace(terms, position_key=terms.position_key[:, : terms.reach, :width])
        attended = self.fallback(query[..., :width], key[..., :width], value[..., :width], terms, dropout=dropout)
        return pad_to(attended, query.shape[3])


_KERNELS = FastAttention(attention.attend)
_KERNELS_TO_CONTEXT = _KERNELS.to_context
_KERNELS_FOR_READING = FastAttention(attention.attend, compiles=True)


def make_compiled_backend(chosen: Backend, *, joins_heads: bool, pads_rows: bool) -> Backend:
    """Return a backend with these choices: plain PyTorch, which torch.compile fuses, around the attention.

    Args:
        chosen: its functions are replaced. To read, what lies between two attentions is compiled, not whole layers.
        joins_heads: let one product make keys and values, where the kernels are in a compiled layer.
        pads_rows: pad the rows of hidden states there for widths that CUDA's fast products do not take.
    """
    attend: Attend = _KERNELS
    attend_context: AttendContext | None = None
    product = fused_linear
    multiple = 1
    if chosen.attention == "reference":
        attend = attention.attend
    elif chosen.compiles_reading:
        attend = _KERNELS_FOR_READING
    else:
        if joins_heads:
            attend_context = _KERNELS_TO_CONTEXT
        if pads_rows:
            product = aligned_linear
            multiple = CUDA_MULTIPLE
    return dataclasses.replace(
        chosen,
        attend=attend,
        attend_context=attend_context,
        linear=product,
        dropout=plain_dropout,
        relu_dropout=fused_relu_dropout,
        multiple=multiple,
    )
