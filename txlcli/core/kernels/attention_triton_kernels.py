"""The kernels of `attention_triton`, which explains them.

Rows of D numbers lie side by side. Queries, outputs and their gradients are (B, L, H, D), gradients of keys and values
(B, K, H, D), log normalizers (B, H, L), all contiguous; keys and values share their strides. Position scores and the
gradients of all scores are (H, B, L, P): column c of row i is distance m - 1 - c, so key j stands in column
m - 1 - (M + i - j). Its address is the sum i * (P - 1) + j + m - 1 - M, by which Triton knows that neighboring keys
are neighbors in memory.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width (WIDTH), n distances that are seen (`reach`),
m distances with a score of their own (`columns`, None if n), P columns of a row (`pitch`), S splits of the keys. A
sequence is one head of one lane; DROPPED of 2**32 random numbers drop an attention weight; ALIGN divides the strides of
keys and values.
"""

import triton
import triton.language as tl
from triton.language import constexpr

from txlcli.core.kernels.alignment_triton import aligned

LOG2_E = constexpr(1.4426950408889634)
PHILOX_ROUNDS = constexpr(7)
SIZES = ("seg_len", "key_len", "reach", "columns", "pitch")
"""Arguments for whose values no kernel is compiled again."""


@triton.constexpr_function
def _padded(width):
    """Return D, padded: tiles have powers of two as sides, and tensor cores multiply none below 16."""
    return max(16, triton.next_power_of_2(width))


@triton.jit
def _columns(WIDTH: constexpr):
    """Return the columns of a row of D numbers, padded."""
    return tl.arange(0, _padded(WIDTH))


@triton.jit
def _load_rows(start, stride, rows, count, WIDTH: constexpr):
    """Load rows (x, D, padded) of `count` rows (D); zeros beyond."""
    columns = _columns(WIDTH)
    mask = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(start + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _store_rows(start, stride, rows, count, values, WIDTH: constexpr):
    """Store rows (x, D, padded) to `count` rows (D)."""
    columns = _columns(WIDTH)
    mask = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    tl.store(start + rows[:, None] * stride + columns[None, :], values.to(start.dtype.element_ty), mask=mask)


@triton.jit
def _rows_of(sequence, count, HEADS: constexpr, WIDTH: constexpr):
    """Return the offset of a sequence in a tensor (B, count, HEADS, WIDTH); its rows are HEADS * WIDTH apart."""
    return ((sequence // HEADS).to(tl.int64) * count * HEADS + sequence % HEADS) * WIDTH


@triton.jit
def _keys_of(sequence, stride_batch, stride_head, HEADS: constexpr, ALIGN: constexpr):
    """Return the offset of a sequence in the keys, and in the values."""
    lane = (sequence // HEADS).to(tl.int64) * aligned(stride_batch, ALIGN)
    return lane + (sequence % HEADS).to(tl.int64) * aligned(stride_head, ALIGN)


@triton.jit
def _scores_of(sequence, sequences, seg_len, pitch, HEADS: constexpr):
    """Return the offset of a sequence in the position scores (H, B, L, P)."""
    return ((sequence % HEADS).to(tl.int64) * (sequences // HEADS) + sequence // HEADS) * seg_len * pitch


@triton.jit
def _distances(queries, keys, seg_len, key_len, reach):
    """Return distances (QUERIES, KEYS), and True for keys that the queries see."""
    distance = (queries + (key_len - seg_len))[:, None] - keys[None, :]
    return distance, (distance >= 0) & (distance < reach) & (queries < seg_len)[:, None]


@triton.jit
def _places(queries, keys, seg_len, key_len, columns, pitch):
    """Return the places (QUERIES, KEYS) of pairs among the scores of their sequence."""
    return queries[:, None] * (pitch - 1) + keys[None, :] + (columns - 1 - (key_len - seg_len))


@triton.jit
def _position_scores(rows, queries, keys, seg_len, key_len, reach, columns, pitch):
    """Load position scores (QUERIES, KEYS); 0 for keys that are not seen."""
    distance, seen = _distances(queries, keys, seg_len, key_len, reach)
    if columns is None:
        scores = tl.load(rows + _places(queries, keys, seg_len, key_len, reach, pitch), mask=seen, other=0.0)
    else:
        own = distance < columns
        near = tl.load(rows + _places(queries, keys, seg_len, key_len, columns, pitch), mask=seen & own, other=0.0)
        farthest = tl.load(rows + queries * pitch, mask=queries < seg_len, other=0.0)  # column 0 is of all farther ones
        scores = tl.where(own, near, farthest[:, None])
    return scores


@triton.jit
def _keep(seed, sequence, queries, first_key, DROPPED: constexpr, QUERIES: constexpr, KEYS: constexpr):
    """Return True (QUERIES, KEYS) for attention weights to keep: a function of seed and element, whatever the tile."""
    fours = first_key // 4 + tl.arange(0, KEYS // 4)  # each random number has four parts
    row = tl.broadcast_to(queries[:, None], (QUERIES, KEYS // 4)).to(tl.uint32)
    column = tl.broadcast_to(fours[None, :], (QUERIES, KEYS // 4)).to(tl.uint32)
    none = tl.zeros_like(row)
    parts = tl.philox(tl.load(seed), column, row, none + sequence.to(tl.uint32), none, PHILOX_ROUNDS)
    drawn = tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3])).reshape((QUERIES, KEYS))
    return drawn.to(tl.int32, bitcast=True) >= min(DROPPED, 2**32 - 1) - 2**31


@triton.constexpr_function
def _keep_scale(dropped):
    """Return the factor of the attention weights that are kept; 0 if none is."""
    return 0.0 if dropped == 2**32 else 2**32 / (2**32 - dropped)


@triton.jit
def _block_and_sequence(count, BLOCK: constexpr):
    """Return this program's block of queries, its sequence, and the number of sequences.

    The last block of a sequence comes first, since it sees most keys.
    """
    blocks = tl.cdiv(count, BLOCK)
    return blocks - 1 - tl.program_id(0) % blocks, tl.program_id(0) // blocks, tl.num_programs(0) // blocks


@triton.jit
def _seen_keys(first_query, seg_len, key_len, reach, QUERIES: constexpr, KEYS: constexpr):
    """Return the first key, aligned to tiles, and the end of the keys that a block of queries sees."""
    mem_len = key_len - seg_len
    return tl.maximum(0, first_query + mem_len - reach + 1) // KEYS * KEYS, tl.minimum(
        key_len, first_query + QUERIES + mem_len
    )


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    query_base, key_base, value_base, by_distance, seed, out_base, log_total_base, key_b, key_l, key_h,
    seg_len, key_len, reach, columns, pitch, HEADS: constexpr, WIDTH: constexpr,
    QUERIES: constexpr, KEYS: constexpr, PRECISION: constexpr, ALIGN: constexpr, DROPPED: constexpr,
    SPLITS: constexpr,
):  # fmt: skip
    """Attend from a block of queries to all keys that they see, or to one of SPLITS parts of these."""
    block, sequence, sequences = _block_and_sequence(seg_len, QUERIES)
    first_query = block * QUERIES
    queries = first_query + tl.arange(0, QUERIES)
    query_rows = _rows_of(sequence, seg_len, HEADS, WIDTH)
    query = _load_rows(query_base + query_rows, HEADS * WIDTH, queries, seg_len, WIDTH)
    key_rows = _keys_of(sequence, key_b, key_h, HEADS, ALIGN)
    key_l = aligned(key_l, ALIGN)
    begin, end = _seen_keys(first_query, seg_len, key_len, reach, QUERIES, KEYS)
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(end - begin, KEYS), SPLITS) * KEYS
        begin += tl.program_id(1) * share
        end = tl.minimum(end, begin + share)
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    weighed = tl.zeros((QUERIES, _padded(WIDTH)), tl.float32)
    if by_distance is not None:
        rows = by_distance + _scores_of(sequence, sequences, seg_len, pitch, HEADS)
        keys = begin + tl.arange(0, KEYS)
        next_scores = _position_scores(rows, queries, keys, seg_len, key_len, reach, columns, pitch)
    for first_key in range(begin, end, KEYS):
        keys = first_key + tl.arange(0, KEYS)
        key = _load_rows(key_base + key_rows, key_l, keys, key_len, WIDTH)
        if by_distance is not None:
            position_scores = next_scores.to(tl.float32)  # loaded while the tile before was computed
            next_scores = _position_scores(rows, queries, keys + KEYS, seg_len, key_len, reach, columns, pitch)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if by_distance is not None:
            score += position_scores
        _, seen = _distances(queries, keys, seg_len, key_len, reach)
        score = tl.where(seen, score * LOG2_E, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(score, 1))
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # no key seen yet
        probability = tl.exp2(score - shift[:, None])
        shrink = tl.exp2(largest - shift)
        total = total * shrink + tl.sum(probability, 1)
        if DROPPED:
            kept = _keep(seed, sequence, queries, first_key, DROPPED, QUERIES, KEYS)
            probability = tl.where(kept, probability, 0.0)
        value = _load_rows(value_base + key_rows, key_l, keys, key_len, WIDTH)
        weighed = weighed * shrink[:, None]
        weighed = tl.dot(probability.to(value.dtype), value, weighed, input_precision=PRECISION)
        largest = new_largest
    total = tl.where(total == 0.0, 1.0, total)  # rows beyond the segment, and splits without a key
    weighed = weighed / total[:, None]
    if DROPPED:
        weighed = weighed * _keep_scale(DROPPED)
    split_rows = tl.program_id(1).to(tl.int64) * sequences * seg_len  # rows of the splits before
    out_start = out_base + split_rows * WIDTH + query_rows
    _store_rows(out_start, HEADS * WIDTH, queries, seg_len, weighed, WIDTH)
    log_start = log_total_base + split_rows + sequence.to(tl.int64) * seg_len
    tl.store(log_start + queries, largest + tl.log2(total), mask=queries < seg_len)


@triton.jit(do_not_specialize=("key_len", "position_keys", "biases"))
def token_kernel(
    query_base, key_base, value_base, position_key, content_bias, position_bias, distance_bias, distances, reach_base,
    out_base, log_total_base, query_b, key_b, key_l, key_h, key_len, position_keys, biases, scale, HEADS: constexpr,
    WIDTH: constexpr, KEYS: constexpr, ALIGN: constexpr, SPLITS: constexpr,
):  # fmt: skip
    """Attend from single queries (B, 1, H, D) to one of SPLITS parts of all keys, whose distances are on the device.

    Position keys are (H, m, D), biases by distance (H, n), the other biases (H, D); the sum of the terms is scaled.
    """
    sequence, split = tl.program_id(0), tl.program_id(1)
    head = sequence % HEADS
    columns = _columns(WIDTH)
    inside = columns < WIDTH
    query_row = (sequence // HEADS) * query_b + head * WIDTH
    query = tl.load(query_base + query_row + columns, mask=inside, other=0.0).to(tl.float32)
    content = query
    if content_bias is not None:
        content += tl.load(content_bias + head * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    if position_bias is not None:
        query += tl.load(position_bias + head * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    key_rows = _keys_of(sequence, key_b, key_h, HEADS, ALIGN)
    key_l = aligned(key_l, ALIGN)
    reach = tl.load(reach_base)
    share = tl.cdiv(tl.cdiv(key_len, KEYS), SPLITS) * KEYS
    largest, total = float("-inf"), 0.0
    weighed = tl.zeros((_padded(WIDTH),), tl.float32)
    for first_key in range(split * share, tl.minimum(key_len, (split + 1) * share), KEYS):
        keys = first_key + tl.arange(0, KEYS)
        distance = tl.load(distances + keys, mask=keys < key_len, other=-1).to(tl.int32)
        seen = (distance >= 0) & (distance < reach)
        rows, mask = keys[:, None] * key_l + columns[None, :], seen[:, None] & inside[None, :]
        key = tl.load(key_base + key_rows + rows, mask=mask, other=0.0).to(tl.float32)
        score = tl.sum(key * content[None, :], 1)
        if position_key is not None:
            row = head * position_keys + tl.maximum(position_keys - 1 - distance, 0)  # the first is of all farther ones
            by_position = tl.load(position_key + row[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0)
            score += tl.sum(by_position.to(tl.float32) * query[None, :], 1)
        score *= scale
        if distance_bias is not None:
            score += tl.load(distance_bias + head * biases + biases - 1 - distance, mask=seen, other=0.0).to(tl.float32)
        score = tl.where(seen, score * LOG2_E, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(score, 0))
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        probability, shrink = tl.exp2(score - shift), tl.exp2(largest - shift)
        value = tl.load(value_base + key_rows + rows, mask=mask, other=0.0).to(tl.float32)
        total = total * shrink + tl.sum(probability, 0)
        weighed = weighed * shrink + tl.sum(value * probability[:, None], 0)
        largest = new_largest
    total = tl.where(total == 0.0, 1.0, total)
    row = split.to(tl.int64) * tl.num_programs(0) + sequence
    tl.store(out_base + row * WIDTH + columns, (weighed / total).to(out_base.dtype.element_ty), mask=inside)
    tl.store(log_total_base + row, largest + tl.log2(total))


@triton.jit(do_not_specialize=("seg_len",))
def combine_kernel(
    parts_base, logs_base, out_base, log_total_base, seg_len, HEADS: constexpr, WIDTH: constexpr,
    SPLITS: constexpr,
):  # fmt: skip
    """Combine the outputs (S, B, L, H, D) of the splits of one query by their log normalizers (S, B, H, L)."""
    row, rows = tl.program_id(0), tl.num_programs(0)
    splits, columns = tl.arange(0, SPLITS), _columns(WIDTH)
    logs = tl.load(logs_base + splits.to(tl.int64) * rows + row)
    largest = tl.max(logs, 0)
    share = tl.exp2(logs - largest)
    total = tl.sum(share, 0)
    start = _rows_of(row // seg_len, seg_len, HEADS, WIDTH) + (row % seg_len) * (HEADS * WIDTH)
    places = start + (splits.to(tl.int64) * rows * WIDTH)[:, None] + columns[None, :]
    parts = tl.load(parts_base + places, mask=(columns < WIDTH)[None, :], other=0.0)
    combined = tl.sum(parts * (share / total)[:, None], 0)
    tl.store(out_base + start + columns, combined.to(out_base.dtype.element_ty), mask=columns < WIDTH)
    tl.store(log_total_base + row, largest + tl.log2(total))


@triton.jit(do_not_specialize=SIZES)
def backward_of_keys_kernel(
    query_base, key_base, value_base, by_distance, seed, log_total_base, grad_out_base, product_base,
    grad_base, grad_score_base, key_b, key_l, key_h, seg_len, key_len, reach, pitch,
    HEADS: constexpr, WIDTH: constexpr, QUERIES: constexpr, KEYS: constexpr,
    PRECISION: constexpr, ALIGN: constexpr, DROPPED: constexpr,
):  # fmt: skip
    """Write the gradients of a block of keys and values, (B, K, 2, H, D), and of their scores, from all queries."""
    blocks = tl.cdiv(key_len, KEYS)
    sequence, sequences = tl.program_id(0) // blocks, tl.num_programs(0) // blocks
    first_key = tl.program_id(0) % blocks * KEYS
    keys = first_key + tl.arange(0, KEYS)
    key_rows = _keys_of(sequence, key_b, key_h, HEADS, ALIGN)
    key_l = aligned(key_l, ALIGN)
    key = _load_rows(key_base + key_rows, key_l, keys, key_len, WIDTH)
    value = _load_rows(value_base + key_rows, key_l, keys, key_len, WIDTH)
    query_rows = _rows_of(sequence, seg_len, HEADS, WIDTH)
    score_rows = _scores_of(sequence, sequences, seg_len, pitch, HEADS)
    first_row = sequence.to(tl.int64) * seg_len
    begin = tl.maximum(0, first_key - (key_len - seg_len)) // QUERIES * QUERIES
    end = tl.minimum(seg_len, first_key + KEYS - 1 - (key_len - seg_len) + reach)
    grad_key = tl.zeros((KEYS, _padded(WIDTH)), tl.float32)
    grad_value = tl.zeros((KEYS, _padded(WIDTH)), tl.float32)
    for first_query in range(begin, end, QUERIES):
        queries = first_query + tl.arange(0, QUERIES)
        query = _load_rows(query_base + query_rows, HEADS * WIDTH, queries, seg_len, WIDTH)
        grad_out = _load_rows(grad_out_base + query_rows, HEADS * WIDTH, queries, seg_len, WIDTH)
        log_total = tl.load(log_total_base + first_row + queries, mask=queries < seg_len, other=0.0)
        product = tl.load(product_base + first_row + queries, mask=queries < seg_len, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if by_distance is not None:
            rows = by_distance + score_rows
            score += _position_scores(rows, queries, keys, seg_len, key_len, reach, None, pitch).to(tl.float32)
        _, seen = _distances(queries, keys, seg_len, key_len, reach)
        probability = tl.where(seen, tl.exp2(score * LOG2_E - log_total[:, None]), 0.0)
        used = probability
        if DROPPED:
            kept = _keep(seed, sequence, queries, first_key, DROPPED, QUERIES, KEYS)
            used = tl.where(kept, probability * _keep_scale(DROPPED), 0.0)
        grad_value = tl.dot(tl.trans(used.to(grad_out.dtype)), grad_out, grad_value, input_precision=PRECISION)
        grad = tl.dot(grad_out, tl.trans(value), input_precision=PRECISION)
        grad_score = (used * grad - probability * product[:, None]).to(query.dtype)
        places = _places(queries, keys, seg_len, key_len, reach, pitch)
        tl.store(grad_score_base + score_rows + places, grad_score, mask=seen)
        grad_key = tl.dot(tl.trans(grad_score), query, grad_key, input_precision=PRECISION)
    grad_rows = grad_base + _rows_of(sequence, key_len * 2, HEADS, WIDTH)
    _store_rows(grad_rows, 2 * HEADS * WIDTH, keys, key_len, grad_key, WIDTH)
    _store_rows(grad_rows + HEADS * WIDTH, 2 * HEADS * WIDTH, keys, key_len, grad_value, WIDTH)


@triton.jit(do_not_specialize=SIZES)
def backward_of_queries_kernel(
    key_base, grad_score_base, grad_query_base, key_b, key_l, key_h, seg_len, key_len, reach, pitch,
    HEADS: constexpr, WIDTH: constexpr, QUERIES: constexpr, KEYS: constexpr,
    PRECISION: constexpr, ALIGN: constexpr,
):  # fmt: skip
    """Write the gradient of a block of queries, and zeros as gradients of scores that no query has."""
    block, sequence, sequences = _block_and_sequence(seg_len, QUERIES)
    first_query = block * QUERIES
    queries = first_query + tl.arange(0, QUERIES)
    rows = grad_score_base + _scores_of(sequence, sequences, seg_len, pitch, HEADS)
    key_rows = _keys_of(sequence, key_b, key_h, HEADS, ALIGN)
    key_l = aligned(key_l, ALIGN)
    begin, end = _seen_keys(first_query, seg_len, key_len, reach, QUERIES, KEYS)
    grad_query = tl.zeros((QUERIES, _padded(WIDTH)), tl.float32)
    for first_key in range(begin, end, KEYS):
        keys = first_key + tl.arange(0, KEYS)
        grad_score = _position_scores(rows, queries, keys, seg_len, key_len, reach, None, pitch)
        key = _load_rows(key_base + key_rows, key_l, keys, key_len, WIDTH)
        grad_query = tl.dot(grad_score.to(key.dtype), key, grad_query, input_precision=PRECISION)
    grad_start = grad_query_base + _rows_of(sequence, seg_len, HEADS, WIDTH)
    _store_rows(grad_start, HEADS * WIDTH, queries, seg_len, grad_query, WIDTH)
    zeros = tl.zeros((QUERIES, KEYS), grad_score_base.dtype.element_ty)
    before_first_key = reach - 1 - (key_len - seg_len) - queries  # columns of each row
    for first_column in range(0, reach - 1 - (key_len - seg_len) - first_query, KEYS):
        column = first_column + tl.arange(0, KEYS)
        mask = (column[None, :] < before_first_key[:, None]) & (queries < seg_len)[:, None]
        tl.store(rows + queries[:, None] * pitch + column[None, :], zeros, mask=mask)
    padding = reach + tl.arange(0, KEYS)
    mask = (padding < pitch)[None, :] & (queries < seg_len)[:, None]
    tl.store(rows + queries[:, None] * pitch + padding[None, :], zeros, mask=mask)
