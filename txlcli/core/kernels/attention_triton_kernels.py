"""The kernels of `attention_triton`, which explains them.

Strides are in elements and named by tensor and axis: b sequence, h head, l row. The elements of a row lie side by side.
Position scores are (H, B, L, P): column c of row i is distance m - 1 - c, so key j stands in column
m - 1 - (M + i - j).

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width (WIDTH, padded to PADDED), m distances with a
position score (`columns`), P columns of a row of position scores (`pitch`), S splits of the keys.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
PHILOX_ROUNDS = tl.constexpr(7)
SIZES = ("batch_size", "heads", "seg_len", "key_len", "reach", "columns", "threshold")
"""Arguments for whose values no kernel is compiled again."""


@triton.jit
def _rows_of(
    base, stride_batch, stride_head, stride_row, batch, head, rows, count, WIDTH: tl.constexpr, PADDED: tl.constexpr
):
    """Load rows (x, PADDED) of a tensor (B, H, count, WIDTH); zeros beyond its end."""
    columns = tl.arange(0, PADDED)
    start = base + batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head
    mask = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(start + rows[:, None] * stride_row + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _store_rows(
    base, values, stride_batch, stride_head, stride_row, batch, head, rows, count, WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Store rows (x, PADDED) to a tensor (B, H, count, WIDTH)."""
    columns = tl.arange(0, PADDED)
    start = base + batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head
    mask = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    tl.store(start + rows[:, None] * stride_row + columns[None, :], values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _position_rows(by_distance, batch, head, batch_size, seg_len, pitch):
    """Return the address of the position scores (L, P) of a sequence and head."""
    return by_distance + (head.to(tl.int64) * batch_size + batch) * seg_len * pitch


@triton.jit
def _keep(seed, sequence, queries, first_key, threshold, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Return True (QUERIES, KEYS) for attention weights to keep: a function of seed and element, whatever the tile."""
    fours = first_key // 4 + tl.arange(0, KEYS // 4)  # each random number has four parts
    row = tl.broadcast_to(queries[:, None], (QUERIES, KEYS // 4)).to(tl.uint32)
    column = tl.broadcast_to(fours[None, :], (QUERIES, KEYS // 4)).to(tl.uint32)
    none = tl.zeros_like(row)
    parts = tl.philox(tl.load(seed), column, row, none + sequence.to(tl.uint32), none, PHILOX_ROUNDS)
    drawn = tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3])).reshape((QUERIES, KEYS))
    return drawn.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def _scores(
    query, key, queries, keys, position_rows, seg_len, key_len, pitch, reach, columns, POSITIONS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return scores (QUERIES, KEYS) to base 2, -inf for keys that are not seen, and offsets of the position scores."""
    distance = (queries + (key_len - seg_len))[:, None] - keys[None, :]
    seen = (distance >= 0) & (distance < reach) & (queries < seg_len)[:, None]
    score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    place = queries[:, None] * pitch + tl.maximum(columns - 1 - distance, 0)  # farther distances share column 0
    if POSITIONS:
        score += tl.load(position_rows + place, mask=seen, other=0.0).to(tl.float32)
    return tl.where(seen, score * LOG2_E, float("-inf")), seen, place


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    query_base, key_base, value_base, by_distance, seed, out_base, log_total_base,
    query_b, query_h, query_l, key_b, key_h, key_l, value_b, value_h, value_l, out_b, out_h, out_l,
    batch_size, heads, seg_len, key_len, pitch, reach, columns, threshold, keep_scale,
    POSITIONS: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Attend from a block of queries to all keys that they see, or to one of SPLITS parts of these."""
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # the last ones first: they see most keys
    sequence, split = tl.program_id(1), tl.program_id(2)
    batch, head = sequence // heads, sequence % heads
    queries = first_query + tl.arange(0, QUERIES)
    query = _rows_of(query_base, query_b, query_h, query_l, batch, head, queries, seg_len, WIDTH, PADDED)
    position_rows = _position_rows(by_distance, batch, head, batch_size, seg_len, pitch) if POSITIONS else by_distance
    mem_len = key_len - seg_len
    begin = tl.maximum(0, first_query + mem_len - reach + 1) // KEYS * KEYS
    end = tl.minimum(key_len, first_query + QUERIES + mem_len)
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(end - begin, KEYS), SPLITS) * KEYS
        begin += split * share
        end = tl.minimum(end, begin + share)
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    weighed = tl.zeros((QUERIES, PADDED), tl.float32)
    for first_key in range(begin, end, KEYS):
        keys = first_key + tl.arange(0, KEYS)
        key = _rows_of(key_base, key_b, key_h, key_l, batch, head, keys, key_len, WIDTH, PADDED)
        score, _, _ = _scores(
            query, key, queries, keys, position_rows, seg_len, key_len, pitch, reach, columns, POSITIONS, PRECISION
        )
        new_largest = tl.maximum(largest, tl.max(score, 1))
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # no key seen yet
        probability = tl.exp2(score - shift[:, None])
        shrink = tl.exp2(largest - shift)
        total = total * shrink + tl.sum(probability, 1)
        if DROPOUT:
            kept = _keep(seed, sequence, queries, first_key, threshold, QUERIES, KEYS)
            probability = tl.where(kept, probability, 0.0)
        value = _rows_of(value_base, value_b, value_h, value_l, batch, head, keys, key_len, WIDTH, PADDED)
        weighed = weighed * shrink[:, None]
        weighed = tl.dot(probability.to(value.dtype), value, weighed, input_precision=PRECISION)
        largest = new_largest
    total = tl.where(total == 0.0, 1.0, total)  # rows beyond the segment, and splits without a key
    weighed = weighed / total[:, None]
    if DROPOUT:
        weighed = weighed * keep_scale
    rows_of_splits = split.to(tl.int64) * batch_size * heads * seg_len  # rows before this split's
    out_start = out_base + rows_of_splits * WIDTH
    _store_rows(out_start, weighed, out_b, out_h, out_l, batch, head, queries, seg_len, WIDTH, PADDED)
    log_rows = log_total_base + rows_of_splits + sequence.to(tl.int64) * seg_len + queries
    tl.store(log_rows, largest + tl.log2(total), mask=queries < seg_len)


@triton.jit(do_not_specialize=("heads", "seg_len", "rows"))
def combine_kernel(
    parts_base, log_total_base, out_base, out_b, out_h, out_l, heads, seg_len, rows,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr,
):  # fmt: skip
    """Combine the outputs (S, B, H, L, D) of the splits of one query by their log normalizers (S, B, H, L)."""
    row = tl.program_id(0)
    sequence, query = row // seg_len, row % seg_len
    splits, columns = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED)
    logs = tl.load(log_total_base + splits.to(tl.int64) * rows + row, mask=splits < SPLITS, other=float("-inf"))
    share = tl.exp2(logs - tl.max(logs, 0))
    share = share / tl.sum(share, 0)
    places = (splits.to(tl.int64) * rows + row)[:, None] * WIDTH + columns[None, :]
    inside = (splits < SPLITS)[:, None] & (columns < WIDTH)[None, :]
    combined = tl.sum(tl.load(parts_base + places, mask=inside, other=0.0) * share[:, None], 0)
    start = (
        out_base + (sequence // heads).to(tl.int64) * out_b + (sequence % heads).to(tl.int64) * out_h + query * out_l
    )
    tl.store(start + columns, combined.to(out_base.dtype.element_ty), mask=columns < WIDTH)


@triton.jit
def _gradient_of_scores(
    score, seen, grad_out, value, log_total, product, seed, sequence, queries, first_key, threshold, keep_scale,
    DROPOUT: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the attention weights after dropout and the gradient of the scores, (QUERIES, KEYS) each."""
    probability = tl.where(seen, tl.exp2(score - log_total[:, None]), 0.0)
    grad = tl.dot(grad_out, tl.trans(value), input_precision=PRECISION)
    used = probability
    if DROPOUT:
        kept = _keep(seed, sequence, queries, first_key, threshold, QUERIES, KEYS)
        used = tl.where(kept, probability * keep_scale, 0.0)
        grad = tl.where(kept, grad * keep_scale, 0.0)
    return used, probability * (grad - product[:, None])


@triton.jit(do_not_specialize=SIZES)
def backward_of_keys_kernel(
    query_base, key_base, value_base, by_distance, seed, log_total_base, grad_out_base, product_base,
    grad_key_base, grad_value_base,
    query_b, query_h, query_l, key_b, key_h, key_l, value_b, value_h, value_l, grad_b, grad_h, grad_l,
    grad_key_b, grad_key_h, grad_key_l, grad_value_b, grad_value_h, grad_value_l,
    batch_size, heads, seg_len, key_len, pitch, reach, columns, threshold, keep_scale,
    POSITIONS: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block of keys and of their values, from all queries that see them."""
    first_key, sequence = tl.program_id(0) * KEYS, tl.program_id(1)
    batch, head = sequence // heads, sequence % heads
    keys = first_key + tl.arange(0, KEYS)
    key = _rows_of(key_base, key_b, key_h, key_l, batch, head, keys, key_len, WIDTH, PADDED)
    value = _rows_of(value_base, value_b, value_h, value_l, batch, head, keys, key_len, WIDTH, PADDED)
    position_rows = _position_rows(by_distance, batch, head, batch_size, seg_len, pitch) if POSITIONS else by_distance
    of_sequence = sequence.to(tl.int64) * seg_len
    mem_len = key_len - seg_len
    begin = tl.maximum(0, first_key - mem_len) // QUERIES * QUERIES
    end = tl.minimum(seg_len, first_key + KEYS - 1 - mem_len + reach)
    grad_key = tl.zeros((KEYS, PADDED), tl.float32)
    grad_value = tl.zeros((KEYS, PADDED), tl.float32)
    for first_query in range(begin, end, QUERIES):
        queries = first_query + tl.arange(0, QUERIES)
        query = _rows_of(query_base, query_b, query_h, query_l, batch, head, queries, seg_len, WIDTH, PADDED)
        grad_out = _rows_of(grad_out_base, grad_b, grad_h, grad_l, batch, head, queries, seg_len, WIDTH, PADDED)
        log_total = tl.load(log_total_base + of_sequence + queries, mask=queries < seg_len, other=0.0)
        product = tl.load(product_base + of_sequence + queries, mask=queries < seg_len, other=0.0)
        score, seen, _ = _scores(
            query, key, queries, keys, position_rows, seg_len, key_len, pitch, reach, columns, POSITIONS, PRECISION
        )
        used, grad_score = _gradient_of_scores(
            score, seen, grad_out, value, log_total, product, seed, sequence, queries, first_key, threshold, keep_scale,
            DROPOUT, QUERIES, KEYS, PRECISION,
        )  # fmt: skip
        grad_value = tl.dot(tl.trans(used.to(grad_out.dtype)), grad_out, grad_value, input_precision=PRECISION)
        grad_key = tl.dot(tl.trans(grad_score.to(query.dtype)), query, grad_key, input_precision=PRECISION)
    _store_rows(grad_key_base, grad_key, grad_key_b, grad_key_h, grad_key_l, batch, head, keys, key_len, WIDTH, PADDED)
    _store_rows(
        grad_value_base, grad_value, grad_value_b, grad_value_h, grad_value_l, batch, head, keys, key_len, WIDTH, PADDED
    )


@triton.jit(do_not_specialize=SIZES)
def backward_of_queries_kernel(
    query_base, key_base, value_base, by_distance, seed, log_total_base, grad_out_base, product_base, grad_query_base,
    query_b, query_h, query_l, key_b, key_h, key_l, value_b, value_h, value_l, grad_b, grad_h, grad_l,
    grad_query_b, grad_query_h, grad_query_l,
    batch_size, heads, seg_len, key_len, pitch, reach, columns, threshold, keep_scale,
    POSITIONS: tl.constexpr, DROPOUT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a block of queries from the content score; overwrite position scores by their gradients."""
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES  # the last ones first: they see most keys
    sequence = tl.program_id(1)
    batch, head = sequence // heads, sequence % heads
    queries = first_query + tl.arange(0, QUERIES)
    query = _rows_of(query_base, query_b, query_h, query_l, batch, head, queries, seg_len, WIDTH, PADDED)
    grad_out = _rows_of(grad_out_base, grad_b, grad_h, grad_l, batch, head, queries, seg_len, WIDTH, PADDED)
    of_sequence = sequence.to(tl.int64) * seg_len
    log_total = tl.load(log_total_base + of_sequence + queries, mask=queries < seg_len, other=0.0)
    product = tl.load(product_base + of_sequence + queries, mask=queries < seg_len, other=0.0)
    position_rows = _position_rows(by_distance, batch, head, batch_size, seg_len, pitch) if POSITIONS else by_distance
    mem_len = key_len - seg_len
    begin = tl.maximum(0, first_query + mem_len - reach + 1) // KEYS * KEYS
    end = tl.minimum(key_len, first_query + QUERIES + mem_len)
    grad_query = tl.zeros((QUERIES, PADDED), tl.float32)
    for first_key in range(begin, end, KEYS):
        keys = first_key + tl.arange(0, KEYS)
        key = _rows_of(key_base, key_b, key_h, key_l, batch, head, keys, key_len, WIDTH, PADDED)
        value = _rows_of(value_base, value_b, value_h, value_l, batch, head, keys, key_len, WIDTH, PADDED)
        score, seen, place = _scores(
            query, key, queries, keys, position_rows, seg_len, key_len, pitch, reach, columns, POSITIONS, PRECISION
        )
        _, grad_score = _gradient_of_scores(
            score, seen, grad_out, value, log_total, product, seed, sequence, queries, first_key, threshold, keep_scale,
            DROPOUT, QUERIES, KEYS, PRECISION,
        )  # fmt: skip
        cast = grad_score.to(query.dtype)
        if POSITIONS:
            tl.store(position_rows + place, cast, mask=seen)
        grad_query = tl.dot(cast, key, grad_query, input_precision=PRECISION)
    _store_rows(
        grad_query_base, grad_query, grad_query_b, grad_query_h, grad_query_l, batch, head, queries, seg_len, WIDTH,
        PADDED,
    )  # fmt: skip
    if POSITIONS:
        for first_column in range(0, pitch, KEYS):  # distances beyond the first key, and padding, have no gradient
            column = first_column + tl.arange(0, KEYS)[None, :]
            idle = (column < (columns - 1 - mem_len - queries)[:, None]) | (column >= columns)
            inside = idle & (column < pitch) & (queries < seg_len)[:, None]
            zeros = tl.zeros((QUERIES, KEYS), by_distance.dtype.element_ty)
            tl.store(position_rows + queries[:, None] * pitch + column, zeros, mask=inside)
