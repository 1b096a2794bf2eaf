"""Attention with relative positions as Triton kernels for CUDA: flash attention in distance space.

One product writes the position score of every query for every distance; probabilities are never written. The forward
kernel reads the position scores skewed (query i, key j: column of distance M + i - j), adds the content score of a tile
of keys, and keeps a running softmax. The backward pass computes the probabilities of each tile again from the saved log
normalizer: the kernel of keys writes their gradients, their values' and that of each score; the kernel of queries
multiplies the latter by the keys. Every element has one writer, so there are no atomic additions, and repeated runs
give the same bits. Products in PyTorch then give the gradients of queries and position keys.

When there are few queries, as in evaluation, several programs divide the keys of the same queries (split-K), and one
more kernel combines their outputs; single tokens of a CUDA graph have a kernel of their own for the parts.

torch.compile treats `txl::attention`, its backward pass and `txl::attend_token` as operators. Importing this module
needs Triton.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a score of
their own, P columns of a row of position scores (m, padded), S splits of the keys, a power of two.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import triton
from torch import Tensor
from triton.runtime import driver

from txlcli.core.backend import ScoreTerms, nearest_rows, pad_to
from txlcli.core.kernels import attention_triton_kernels as kernels
from txlcli.core.kernels.alignment_triton import alignment_of
from txlcli.core.kernels.attention_inputs import scaled_queries
from txlcli.core.kernels.compilation import compiled

COLUMN_MULTIPLE = 8
"""P is a multiple of this: rows of 16-bit position scores begin at multiples of 16 bytes."""
PROGRAMS_PER_PROCESSOR = 2
"""Programs that a processor of the GPU should find, before the keys of a query are divided among several."""
MIN_TILES_OF_SPLIT = 4
MAX_SPLITS = 32
UNSEEN = -30_000.0
"""Score of a distance that one of the queries does not see: finite, so that a tile may have no others, and in the range
of fp16. A query sees its own position, and the softmax over all tiles gives the others a probability of 0."""
KEYS_OF_TOKEN = 64
"""Keys of a tile of the kernel of single tokens."""

Kernel = Literal["forward", "keys", "queries"]
"""The forward kernel, and the backward kernels of keys and of queries."""


class KernelConfig(NamedTuple):
    """Constants of a kernel: sides of its tile, and resources."""

    QUERIES: int
    KEYS: int
    num_warps: int
    """Groups of 32 threads per program."""
    num_stages: int
    """Tiles that are loaded ahead."""


CONFIGS: dict[tuple[Kernel, bool, bool], KernelConfig] = {  # kernel, 16 bits, head width over 64
    ("forward", True, False): KernelConfig(64, 64, 4, 3),
    ("forward", True, True): KernelConfig(64, 64, 8, 2),
    ("forward", False, False): KernelConfig(32, 16, 4, 2),
    ("forward", False, True): KernelConfig(16, 32, 8, 2),
    ("keys", True, False): KernelConfig(64, 64, 4, 1),
    ("keys", True, True): KernelConfig(32, 64, 8, 1),
    ("keys", False, False): KernelConfig(16, 16, 4, 1),
    ("keys", False, True): KernelConfig(16, 32, 8, 1),
    ("queries", True, False): KernelConfig(64, 64, 4, 2),
    ("queries", True, True): KernelConfig(64, 32, 8, 2),
    ("queries", False, False): KernelConfig(16, 32, 4, 1),
    ("queries", False, True): KernelConfig(16, 32, 8, 1),
}
"""The tiles of 16 bits and widths up to 64 were the fastest, or within 5 % of it, on an H100 for the recipes enwik8,
wt103 and wt103-nvidia. The others have not been timed: they need no more registers and shared memory than compute
capability 8.0 and 9.0 have."""
AMPERE_CONFIGS: dict[tuple[Kernel, bool, bool], KernelConfig] = {
    ("forward", True, False): KernelConfig(64, 32, 4, 3),
    ("forward", True, True): KernelConfig(64, 32, 8, 2),
    ("keys", True, False): KernelConfig(64, 32, 4, 1),
}
"""Instead of the tiles that spill registers where products read their factors from registers."""


def _constants_of(kernel: Kernel, query: Tensor, key: Tensor) -> dict[str, Any]:
    """Return the constants of a kernel with tiles, for queries (B, L, H, D) and keys (B, K, H, D)."""
    *_, heads, width = query.shape
    case = kernel, query.dtype.itemsize == 2, width > 64
    config = CONFIGS[case]
    if not _multiplies_from_shared_memory():
        config = AMPERE_CONFIGS.get(case, config)
    uses_tf32 = query.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    precision = "tf32" if uses_tf32 else "ieee"
    align = alignment_of(*key.stride()[:3])
    return {"HEADS": heads, "WIDTH": width, "PRECISION": precision, "ALIGN": align, **config._asdict()}


def _multiplies_from_shared_memory() -> bool:
    """Return True on Hopper and on data-center Blackwell, whose products leave more registers for addresses.

    Compute capability 12.x has the instructions of Ampere again.
    """
    return bool(triton.knobs.runtime.interpret or 90 <= driver.active.get_current_target().arch < 120)


def splits_of(programs: int, tiles: int, processors: int) -> int:
    """Return the number of programs that divide the keys of a query, so that all processors of a GPU have work.

    Args:
        programs: without a division.
        tiles: of keys that a query sees.
        processors: of the GPU; 0 for Triton's interpreter, which divides nothing.
    """
    wanted = PROGRAMS_PER_PROCESSOR * processors
    limit = max(1, min(wanted // programs, tiles // MIN_TILES_OF_SPLIT, MAX_SPLITS))
    return 1 << limit.bit_length() - 1  # the largest power of two up to the limit


def _count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 0 of a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    terms: ScoreTerms,
    *,
    d_head: int | None = None,
    dropout: float = 0.0,
    compiles: bool = False,
    splits: int = 0,
) -> Tensor:
    """`core.backend.Attend` in kernels that never write probabilities, for D up to 128 and dtypes of 16 or 32 bits.

    Without a `value` it is `core.backend.AttendContext`: `key` is (B, K, 2, H, D), and `d_head` is D without zeros.
    `splits` is that of `attention`.
    """
    scale = (d_head or query.shape[3]) ** -0.5
    width = _padded(max(query.shape[3], key.shape[-1]))
    if value is not None:
        key, value = _rows(key), _rows(value)
        if key.stride() != value.stride() or key.stride(3) != 1:
            key, value = key.contiguous(), value.contiguous()
    with torch.autocast(query.device.type, enabled=False):
        content, position = compiled(scaled_queries, compiles)(
            _rows(query), terms.content_bias, terms.position_bias, scale, width
        )
        key = pad_to(key, width)
        if value is not None:
            value = pad_to(value, width)
        columns = _count_columns(terms)
        by_distance = _position_scores(position, terms, columns)
        seed = torch.randint(2**62, (1,), device=query.device) if dropout else None
        dropped = round(dropout * 2**32)
        query_rows = content.contiguous()
        out, _ = attention(query_rows, key, value, by_distance, seed, terms.reach, columns, dropped, splits)
        return _rows(out)[..., : query.shape[3]]


def _rows(heads: Tensor) -> Tensor:
    """(B, H, x, D) -> (B, x, H, D), and back."""
    return heads.transpose(1, 2)


def _padded(count: int) -> int:
    """Return the next multiple of 8: rows of 16 bits then begin at multiples of 16 bytes, as fast products need."""
    return count + -count % COLUMN_MULTIPLE


def _count_columns(terms: ScoreTerms) -> int:
    """Return the number of distances with a score of their own; 0 without position scores."""
    if terms.distance_bias is not None or terms.farthest is not None:
        return terms.reach
    if terms.position_key is None:
        return 0
    if torch.is_grad_enabled():
        return terms.reach
    return min(terms.position_key.shape[1], terms.reach)


def _position_scores(rows: Tensor, terms: ScoreTerms, columns: int) -> Tensor | None:
    """Return the scores (H, B, L, P) of queries (B, L, H, D) for all distances, None if there are none.

    The first `columns` are by distance, those after them padding.
    """
    batch_size, seg_len, heads, width = rows.shape
    pitch = _padded(columns)
    scores: Tensor | None = None
    if terms.position_key is not None:
        position_key = pad_to(terms.position_key.to(rows.dtype), width)
        if position_key.shape[1] != pitch:  # else it may have rows for the padding
            position_key = pad_to(nearest_rows(position_key, columns), width, pitch)  # (H, P, D)
        of_head = rows.reshape(batch_size * seg_len, heads, width).transpose(0, 1)  # (H, B * L, D)
        scores = torch.bmm(of_head, position_key.mT).view(heads, batch_size, seg_len, pitch)
    if terms.distance_bias is not None:
        bias = pad_to(terms.distance_bias, pitch).to(rows.dtype)[:, None, None]  # (H, 1, 1, P)
        bias = bias.expand(heads, batch_size, seg_len, pitch)
        scores = bias.contiguous() if scores is None else scores + bias
    if terms.farthest is not None:
        if scores is None:
            scores = rows.new_zeros(heads, batch_size, seg_len, pitch)
        distance = torch.arange(columns - 1, columns - 1 - pitch, -1, device=rows.device)
        scores = scores.masked_fill(distance > terms.farthest[:, :, None], UNSEEN)
    return scores


@torch.library.custom_op("txl::attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    by_distance: Tensor | None,
    seed: Tensor | None,
    reach: int,
    columns: int,
    dropped: int,
    splits: int,
) -> tuple[Tensor, Tensor]:
    """Attend to the keys that are seen, with scores by distance and dropout of attention weights.

    Args:
        query: (B, L, H, D), contiguous, scaled.
        key: (B, K, H, D); the last L keys are the positions of the queries. Or keys and values, (B, K, 2, H, D).
        value: as `key`, with the same strides; None if `key` has the values.
        by_distance: position scores (H, B, L, P), contiguous.
        seed: (1,), chooses the attention weights that are dropped.
        reach: n.
        columns: m; for gradients n, or 0 without position scores.
        dropped: of 2**32 random numbers, those that drop an attention weight.
        splits: S; 0 chooses a number for the device.
    Returns:
        The output (B, L, H, D), and the log normalizers (B, H, L) to base 2.
    """
    batch_size, seg_len, heads, _ = query.shape
    key_len = key.shape[1]
    if value is None:
        key, value = key.unbind(2)
    constants = _constants_of("forward", query, key)
    blocks = batch_size * heads * triton.cdiv(seg_len, constants["QUERIES"])
    tiles = min(key_len, seg_len + reach) // constants["KEYS"]
    splits = splits or splits_of(blocks, tiles, _count_processors(query.device))
    own_columns = columns if 0 < columns < reach else None
    sizes = (seg_len, key_len, reach, own_columns, _pitch(by_distance, reach))

    def attend_part(out: Tensor, log_total: Tensor) -> None:
        kernels.forward_kernel[blocks, splits](
            query, key, value, by_distance, seed, out, log_total, *key.stride()[:3], *sizes,
            **constants, DROPPED=dropped, SPLITS=splits,
        )  # fmt: skip

    return _combined(query, splits, attend_part)


def _outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    """Return memory for the output (B, L, H, D) and the log normalizers (B, H, L)."""
    batch_size, seg_len, heads, _ = query.shape
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    log_total = query.new_empty(batch_size, heads, seg_len, dtype=torch.float32)
    return out, log_total


def _combined(query: Tensor, splits: int, attend_part: Callable[[Tensor, Tensor], None]) -> tuple[Tensor, Tensor]:
    """Return what a kernel writes, for all keys: that of S splits of them is combined by their log normalizers."""
    out, log_total = _outputs(query)
    if splits == 1:
        attend_part(out, log_total)
        return out, log_total
    parts = log_total.new_empty(splits, *out.shape)
    logs = log_total.new_empty(splits, *log_total.shape)
    attend_part(parts, logs)
    _, seg_len, heads, width = out.shape
    kernels.combine_kernel[log_total.numel(),](
        parts, logs, out, log_total, seg_len, HEADS=heads, WIDTH=width, SPLITS=splits
    )
    return out, log_total


def _pitch(by_distance: Tensor | None, reach: int) -> int:
    """Return P; without position scores, of the gradients of the scores."""
    return _padded(reach) if by_distance is None else by_distance.shape[3]


attention.register_fake(lambda query, *_: _outputs(query))


@torch.library.custom_op("txl::attention_backward", mutates_args=())
def attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    by_distance: Tensor | None,
    seed: Tensor | None,
    log_total: Tensor,
    grad_out: Tensor,
    product: Tensor,
    reach: int,
    dropped: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries (B, L, H, D), keys and values (B, K, 2, H, D) and all scores (H, B, L, P).

    Args:
        query: as the next four, see `attention`.
        log_total: (B, H, L), log normalizers.
        grad_out: (B, L, H, D), contiguous.
        product: (B, H, L), the sum over D of output and its gradient, contiguous.
    """
    batch_size, seg_len, heads, _ = query.shape
    key_len = key.shape[1]
    sequences = batch_size * heads
    grad_query, grad_key_value, grad_score = _gradients(query, key, by_distance, reach)
    if value is None:
        key, value = key.unbind(2)
    sizes = (*key.stride()[:3], seg_len, key_len, reach, _pitch(by_distance, reach))
    constants = _constants_of("keys", query, key)
    kernels.backward_of_keys_kernel[sequences * triton.cdiv(key_len, constants["KEYS"]),](
        query, key, value, by_distance, seed, log_total, grad_out, product, grad_key_value, grad_score, *sizes,
        **constants, DROPPED=dropped,
    )  # fmt: skip
    constants = _constants_of("queries", query, key)
    kernels.backward_of_queries_kernel[sequences * triton.cdiv(seg_len, constants["QUERIES"]),](
        key, grad_score, grad_query, *sizes, **constants
    )
    return grad_query, grad_key_value, grad_score


def _gradients(query: Tensor, key: Tensor, by_distance: Tensor | None, reach: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the gradients of `attention_backward`."""
    batch_size, seg_len, heads, width = query.shape
    grad_key_value = query.new_empty(batch_size, key.shape[1], 2, heads, width)
    grad_score = query.new_empty(heads, batch_size, seg_len, _pitch(by_distance, reach))
    return torch.empty_like(query), grad_key_value, grad_score


attention_backward.register_fake(
    lambda query, key, value, by_distance, *others: _gradients(query, key, by_distance, others[-2])
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, reach, _, dropped, _ = inputs
    ctx.reach = reach
    ctx.dropped = dropped
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, by_distance, seed, out, log_total = ctx.saved_tensors
    product = (grad_out.float() * out.float()).sum(-1).transpose(1, 2).contiguous()  # (B, H, L), sum over keys of P dP
    inputs = query, key, value, by_distance, seed
    grad_query, grad_key, grad_score = attention_backward(
        *inputs, log_total, grad_out.contiguous(), product, ctx.reach, ctx.dropped
    )
    grad_value: Tensor | None = None
    if value is not None:
        grad_key, grad_value = grad_key.unbind(2)
    grad_by_distance = None if by_distance is None else grad_score
    return grad_query, grad_key, grad_value, grad_by_distance, None, None, None, None, None


attention.register_autograd(_differentiate, setup_context=_save)


@torch.library.custom_op("txl::attend_token", mutates_args=())
def attend_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    content_bias: Tensor | None,
    position_bias: Tensor | None,
    distance_bias: Tensor | None,
    distances: Tensor,
    reach: Tensor,
    splits: int,
) -> Tensor:
    """Return the output (B, 1, H, D) of single queries that see keys at any places of a buffer, without gradients.

    Args:
        query: (B, 1, H, D), the heads of each side by side.
        key: (B, K, H, D).
        value: as `key`, with the same strides.
        position_key: (H, m, D); the first one is of all farther distances, too.
        content_bias: (H, D).
        position_bias: (H, D).
        distance_bias: (H, n).
        distances: (K,) of each key, negative where there is none.
        reach: (1,), keys at this distance or more are not seen.
        splits: S; 0 chooses a number for the device.
    """
    batch_size, _, heads, width = query.shape
    key_len = key.shape[1]
    sequences = batch_size * heads
    splits = splits or splits_of(sequences, key_len // KEYS_OF_TOKEN, _count_processors(query.device))
    position_keys = 0 if position_key is None else position_key.shape[1]
    biases = 0 if distance_bias is None else distance_bias.shape[1]
    key_strides = key.stride()[:3]
    strides = (query.stride(0), *key_strides)
    scale = width**-0.5

    def attend_part(out: Tensor, log_total: Tensor) -> None:
        kernels.token_kernel[sequences, splits](
            query, key, value, position_key, content_bias, position_bias, distance_bias, distances, reach, out,
            log_total, *strides, key_len, position_keys, biases, scale,
            HEADS=heads, WIDTH=width, KEYS=KEYS_OF_TOKEN, ALIGN=alignment_of(*key_strides), SPLITS=splits,
        )  # fmt: skip

    return _combined(query, splits, attend_part)[0]


attend_token.register_fake(lambda query, *_: _outputs(query)[0])
