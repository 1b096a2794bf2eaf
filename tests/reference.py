"""The paper's equations written as plain loops in float64, so that nothing fast has to be trusted.

Axes: L segment, M memory, K = M + L keys, H heads, D head width, d model width, F inner width, V vocabulary, N layers,
n ids of a band, w width of a band, C tail bands.
One batch row at a time. Query i of the segment is token M + i of the extended context, key j is token j of it.

Weights are a plain dict; a matrix maps row vectors, y = x @ W, and head h owns columns h*D to (h+1)*D - 1:
    embedding (V, d)            softmax_bias (V,)           final_norm (gain, bias), norm = "pre" only
    content_bias, position_bias (H, D), or (N, H, D) for one per layer; the paper's u and v. With another encoding than
        "relative", n_heads (H) in place of both and of w_k_position; with "t5" bucket_biases (H, 32); with
        "relative_tied" tied_distances True: W_kR is w_k_content, and u = v = W_q R_0
    layers: N dicts of
        w_q, w_k_content, w_v, w_k_position (d, H*D)        w_o (H*D, d)
        attention_norm, ff_norm (gain (d,), bias (d,))      ff_1 (W (d, F), b (F,))      ff_2 (W (F, d), b (d,))
A layer of another block may have ff_gate, as ff_1 (SwiGLU); q_norm and k_norm (D,), gains of normalized queries and
keys; attention_gate and feed_forward_gate, dicts of w_r, w_z, w_g, u_r, u_z, u_g (d, d) and update_bias (d,). The bias
of an "rms" norm is not read; other biases that a layer lacks are zeros. A layer with compressed memory may have
compression, (W (c*d, d), b (d,)): rows i*d to (i+1)*d - 1 of W are those of the i-th of c positions.
That is one band of ids, embedded d wide, and a softmax tied to it. In general, in the order of the ids, the head first:
    embedding: list of bands, each (table (n, w), projection (w, d) or None)
    softmax: list of bands, each (table (n, w), projection (d, w) or None, bias (n,)), in place of softmax_bias
    clusters (W (w, C), b (C,)), where there are tail bands; w is the head's

A layer of an LSTM or a QRNN is a dict of its own (`lstm_layer`, `qrnn_layer`).

Weights may be complex, so that a step along the imaginary axis gives exact derivatives (`complex_step_gradient`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

LAYER_NORM_EPS = 1e-5
COMPLEX_STEP = 1e-30
SCORE_WEIGHTS = ("w_q", "w_k_content", "w_k_position", "content_bias", "position_bias", "bucket_biases")


class Scores(NamedTuple):
    """The four terms of 3.3 before scaling, each (H, L, K), with the pairs (i, j) that the softmax may see.

    (b) and (d) are NaN where the distance M + i - j is negative, since R has no such row. Encodings other than the
    paper's have (a) alone, and perhaps a bias (H, L, K), which is added after the scaling.
    """

    a: ndarray
    b: ndarray
    c: ndarray
    d: ndarray
    allowed: set[tuple[int, int]]
    bias: ndarray | None = None


def distance_encoding(distance: int, d: int) -> ndarray:
    """R_distance (d,): d/2 sines, then d/2 cosines, of distance / 10000^(2k/d) for k = 0 .. d/2 - 1 (3.3)."""
    if d % 2:
        raise ValueError(f"the width of a sinusoid is even, not {d}")
    encoding = np.zeros(d)
    for k in range(d // 2):
        angle = distance / 10000 ** (2 * k / d)
        encoding[k] = math.sin(angle)
        encoding[d // 2 + k] = math.cos(angle)
    return encoding


def relative_shift_by_definition(position_score: ndarray) -> ndarray:
    """Entry (i, j) of the (L, K) result is row i's score of distance M + i - j, or NaN where that is negative (App. B).

    Args:
        position_score: (L, K); column c scores distance K - 1 - c.
    """
    L, K = position_score.shape
    M = K - L
    shifted = np.full((L, K), np.nan)
    for i in range(L):
        for j in range(K):
            for c in range(K):
                if K - 1 - c == M + i - j:
                    shifted[i, j] = position_score[i, c]
    return shifted


def allowed_pairs(*, seg_len: int, mem_len: int, key_limit: int | None = None) -> set[tuple[int, int]]:
    """The pairs (query i, key j) that are neither in the future nor, with `key_limit`, at a distance >= key_limit.

    same_length is key_limit = mem_len in the released PyTorch code and in HF's, full memory or not; TF: mem_len + 1.
    """
    pairs = set()
    for i in range(seg_len):
        for j in range(mem_len + seg_len):
            distance = mem_len + i - j
            if distance >= 0 and (key_limit is None or distance < key_limit):
                pairs.add((i, j))
    return pairs


def layer_weights(weights: dict, n: int) -> dict:
    """Layer n's own weights with its "content_bias" and "position_bias" (H, D) beside them, shared or per layer."""
    layer = dict(weights["layers"][n])
    if weights.get("tied_distances"):
        D = layer["w_q"].shape[1] // weights["n_heads"]
        bias = (distance_encoding(0, len(layer["w_q"])) @ layer["w_q"]).reshape(-1, D)
        return layer | {"w_k_position": layer["w_k_content"], "content_bias": bias, "position_bias": bias}
    if "content_bias" not in weights:
        return layer | {name: weights[name] for name in ("n_heads", "bucket_biases") if name in weights}
    for name in ("content_bias", "position_bias"):
        bias = _numbers(weights[name])
        layer[name] = bias[n] if bias.ndim == 3 else bias
    return layer


def attention_scores(
    hidden: ndarray, memory: ndarray, layer: dict, *, max_distance: int | None = None, key_limit: int | None = None
) -> Scores:
    """Terms (a), (b), (c), (d) of A^rel_ij (3.3), with R_(i-j) built anew for every pair as the naive way does.

    Args:
        hidden: (L, d); memory: (M, d), M may be 0. Both already normalised when the layer is pre-norm.
        layer: what `layer_weights` returns.
        max_distance: a larger distance takes this distance's encoding.
        key_limit: only distances 0 .. key_limit - 1 are allowed.
    """
    extended = _concatenate(memory, hidden)
    L, M, K, d = len(hidden), len(memory), len(extended), extended.shape[1]
    H, D = layer["content_bias"].shape
    kind = _kind_of_scores(extended, layer)
    a, c = np.zeros((H, L, K), dtype=kind), np.zeros((H, L, K), dtype=kind)
    b_term, d_term = np.full((H, L, K), np.nan, dtype=kind), np.full((H, L, K), np.nan, dtype=kind)
    for h in range(H):
        u, v = layer["content_bias"][h], layer["position_bias"][h]
        for i in range(L):
            query = _projected(extended[M + i], layer, "q", h, D)
            for j in range(K):
                content_key = _projected(extended[j], layer, "k", h, D)
                a[h, i, j] = _dot(query, content_key)
                c[h, i, j] = _dot(u, content_key)
                distance = M + i - j
                if distance < 0:
                    continue
                if max_distance is not None and distance > max_distance:
                    distance = max_distance
                position_key = distance_encoding(distance, d) @ _head(layer["w_k_position"], h, D)
                b_term[h, i, j] = _dot(query, position_key)
                d_term[h, i, j] = _dot(v, position_key)
    return Scores(a, b_term, c, d_term, allowed_pairs(seg_len=L, mem_len=M, key_limit=key_limit))


def alibi_slope(h: int, n_heads: int) -> float:
    """The slope of head h = 0 .. H - 1 (Press et al. 2022): 2^(-8/H), 2^(-16/H), ..., 2^-8 for H a power of two.

    Otherwise the slopes of P heads, P the largest power of two below H, then the 1st, 3rd, 5th, ... of 2P heads.
    """
    power = 1
    while 2 * power <= n_heads:
        power *= 2
    if h < power:
        return (2 ** (-8 / power)) ** (h + 1)
    return (2 ** (-8 / (2 * power))) ** (2 * (h - power) + 1)


def t5_bucket(distance: int) -> int:
    """The bucket of a distance of the past (Raffel et al. 2020): 0 .. 15, then 16 whose borders rise to 128."""
    if distance < 16:
        return distance
    for bucket in range(16, 31):
        if distance < 16 * 8 ** ((bucket - 15) / 16):
            return bucket
    return 31


def turned(vector: ndarray, position: int) -> ndarray:
    """A query or key (D,) turned by its position (Su et al. 2021): pair (c, c + D/2) by position / 10000^(2c/D)."""
    D = len(vector)
    result = np.zeros(D, dtype=_kind(vector))
    for c in range(D // 2):
        angle = position / 10000 ** (2 * c / D)
        first, second = vector[c], vector[c + D // 2]
        result[c] = first * math.cos(angle) - second * math.sin(angle)
        result[c + D // 2] = first * math.sin(angle) + second * math.cos(angle)
    return result


def content_scores(
    hidden: ndarray, memory: ndarray, layer: dict, *, position: str, max_distance: int | None, key_limit: int | None
) -> Scores:
    """The scores of the encodings "rotary", "alibi", "t5" and "none": (a), and a bias with "alibi" and "t5"."""
    extended = _concatenate(memory, hidden)
    L, M, K = len(hidden), len(memory), len(extended)
    H, D = _heads(layer)
    kind = _kind_of_scores(extended, layer)
    a, bias, nothing = (np.zeros((H, L, K), dtype=kind) for _ in range(3))
    for h in range(H):
        for i in range(L):
            for j in range(M + i + 1):
                query = _projected(extended[M + i], layer, "q", h, D)
                key = _projected(extended[j], layer, "k", h, D)
                if position == "rotary":
                    query, key = turned(query, M + i), turned(key, j)
                a[h, i, j] = _dot(query, key)
                distance = M + i - j
                if max_distance is not None and distance > max_distance:
                    distance = max_distance
                if position == "alibi":
                    bias[h, i, j] = -alibi_slope(h, H) * distance
                if position == "t5":
                    bias[h, i, j] = layer["bucket_biases"][h, t5_bucket(distance)]
    allowed = allowed_pairs(seg_len=L, mem_len=M, key_limit=key_limit)
    return Scores(a, nothing, nothing, nothing, allowed, bias)


def attention_weights(scores: Scores, *, head_width: int) -> ndarray:
    """Masked softmax of (a + b + c + d) / sqrt(D) (3.3): (H, L, K), zero at every pair that is not allowed."""
    H, L, K = scores.a.shape
    attended = np.zeros((H, L, K), dtype=scores.a.dtype)
    for h in range(H):
        for i in range(L):
            seen = [j for j in range(K) if (i, j) in scores.allowed]
            logits = []
            for j in seen:
                total = scores.a[h, i, j] + scores.b[h, i, j] + scores.c[h, i, j] + scores.d[h, i, j]
                added = 0.0 if scores.bias is None else scores.bias[h, i, j]
                logits.append(total / math.sqrt(head_width) + added)
            for j, log_share in zip(seen, log_softmax(np.array(logits)), strict=True):
                attended[h, i, j] = np.exp(log_share)
    return attended


def attention(
    hidden: ndarray,
    memory: ndarray,
    layer: dict,
    *,
    position: str = "relative",
    max_distance: int | None = None,
    key_limit: int | None = None,
) -> ndarray:
    """Linear(Masked-Softmax(A) v) of 3.3, (L, d): heads side by side, then w_o; no residual and no norm."""
    extended = _concatenate(memory, hidden)
    L, K = len(hidden), len(extended)
    H, D = _heads(layer)
    limits: dict[str, Any] = {"max_distance": max_distance, "key_limit": key_limit}
    if position in ("relative", "relative_tied"):
        scores = attention_scores(hidden, memory, layer, **limits)
    else:
        scores = content_scores(hidden, memory, layer, position=position, **limits)
    attended = attention_weights(scores, head_width=D)
    mixed = np.zeros((L, H * D), dtype=_kind(extended, attended, layer["w_v"]))
    for h in range(H):
        for i in range(L):
            for j in range(K):
                value = extended[j] @ _head(layer["w_v"], h, D)
                mixed[i, h * D : (h + 1) * D] += attended[h, i, j] * value
    return np.stack([mixed[i] @ layer["w_o"] for i in range(L)])


def layer_norm(x: ndarray, norm: tuple[ndarray, ndarray], *, eps: float = LAYER_NORM_EPS) -> ndarray:
    """Each row of x (rows, d) to mean 0 and (biased) variance 1, times gain (d,) plus bias (d,)."""
    gain, bias = norm
    x = _numbers(x)
    d = x.shape[1]
    normed = np.zeros(x.shape, dtype=_kind(x, gain, bias))
    for i in range(len(x)):
        mean = sum(x[i, e] for e in range(d)) / d
        variance = sum((x[i, e] - mean) ** 2 for e in range(d)) / d
        for e in range(d):
            normed[i, e] = (x[i, e] - mean) / np.sqrt(variance + eps) * gain[e] + bias[e]
    return normed


def rms_norm(x: ndarray, gain: ndarray, *, eps: float = LAYER_NORM_EPS) -> ndarray:
    """Each row of x (rows, d) divided by its root mean square, times gain (d,) (Zhang & Sennrich 2019)."""
    x = _numbers(x)
    d = x.shape[1]
    normed = np.zeros(x.shape, dtype=_kind(x, gain))
    for i in range(len(x)):
        mean_square = sum(x[i, e] ** 2 for e in range(d)) / d
        for e in range(d):
            normed[i, e] = x[i, e] / np.sqrt(mean_square + eps) * gain[e]
    return normed


def normed(x: ndarray, norm: tuple[ndarray, ndarray], *, norm_type: str, eps: float) -> ndarray:
    """Each row of x (rows, d) normalized: norm_type is "layer", or "rms" without the bias."""
    if norm_type == "rms":
        return rms_norm(x, norm[0], eps=eps)
    return layer_norm(x, norm, eps=eps)


def feed_forward(x: ndarray, layer: dict) -> ndarray:
    """ReLU(x W1 + b1) W2 + b2 for each row of x (L, d); no residual and no norm.

    With "ff_gate" (W, b), SwiGLU (Shazeer 2020): (s(x W + b) (x W1 + b1)) W2 + b2, where s(y) = y sigmoid(y).
    """
    w_1, b_1 = layer["ff_1"]
    w_2, b_2 = layer["ff_2"]
    rows = []
    for row in _numbers(x):
        inner = row @ w_1 + b_1
        if "ff_gate" in layer:
            w, b = layer["ff_gate"]
            gate = row @ w + b
            active = np.array([gate[f] * sigmoid(gate[f]) * inner[f] for f in range(len(inner))])
        else:
            active = np.array([entry if entry.real > 0 else 0.0 for entry in inner])
        rows.append(active @ w_2 + b_2)
    return np.stack(rows)


def attention_layer(
    hidden: ndarray,
    memory: ndarray,
    layer: dict,
    *,
    norm: str = "post",
    norm_type: str = "layer",
    norm_eps: float = LAYER_NORM_EPS,
    **options: Any,
) -> ndarray:
    """One whole layer of 3.3, (L, d): attention and feed-forward, each with its residual and layer norm.

    norm="post" is the paper's LN(x + f(x)); "pre" and "pre_released" are x + f(LN(x)), where the memory, kept as raw
    layer inputs, passes through the same LN as the segment before it is projected. `options` are those of `attention`.
    """
    how = {"norm_type": norm_type, "eps": norm_eps}
    layer = layer | {"eps": norm_eps}
    if norm == "post":
        attended = attention(hidden, memory, layer, **options)
        hidden = normed(hidden + attended, layer["attention_norm"], **how)
        return normed(hidden + feed_forward(hidden, layer), layer["ff_norm"], **how)
    if norm in ("pre", "pre_released"):
        read, remembered = (normed(x, layer["attention_norm"], **how) for x in (hidden, memory))
        attended = attention(read, remembered, layer, **options)
        hidden = joined(hidden, attended, layer.get("attention_gate"))
        fed = feed_forward(normed(hidden, layer["ff_norm"], **how), layer)
        return joined(hidden, fed, layer.get("feed_forward_gate"))
    raise ValueError(f'norm is "post", "pre" or "pre_released", not {norm!r}')


def joined(hidden: ndarray, branch: ndarray, gate: dict | None) -> ndarray:
    """Hidden states x plus the output y of a sublayer, (L, d) each; with a gate, GTrXL's (Parisotto et al. 2020).

    r = s(W_r y + U_r x), z = s(W_z y + U_z x - b), g = tanh(W_g y + U_g (r x)), all of max(y, 0): (1 - z) x + z g.
    """
    if gate is None:
        return hidden + branch
    rows = []
    for x, output in zip(hidden, branch, strict=True):
        y = np.array([entry if entry.real > 0 else 0.0 for entry in output])
        r = sigmoid(y @ gate["w_r"] + x @ gate["u_r"])
        z = sigmoid(y @ gate["w_z"] + x @ gate["u_z"] - gate["update_bias"])
        g = np.tanh(y @ gate["w_g"] + (r * x) @ gate["u_g"])
        rows.append((1 - z) * x + z * g)
    return np.stack(rows)


def sigmoid(x: complex) -> complex:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def lstm_layer(inputs: ndarray, hidden: ndarray, cell: ndarray, layer: dict) -> tuple[ndarray, ndarray, ndarray]:
    """An LSTM with forget gate (Gers et al. 2000): h of all L tokens (L, W), h and c (W,) after the last.

    Args:
        inputs: (L, d); hidden, cell: h and c (W,) before the first token.
        layer: for each of "input", "forget", "candidate" and "output": (W_x (d, W), W_h (W, W), b (W,)).
    """
    rows = []
    for x in inputs:
        gate = {name: x @ w_x + hidden @ w_h + bias for name, (w_x, w_h, bias) in layer.items()}
        new_cell = np.zeros(len(cell))
        new_hidden = np.zeros(len(cell))
        for e in range(len(cell)):
            candidate = np.tanh(gate["candidate"][e])
            new_cell[e] = sigmoid(gate["forget"][e]) * cell[e] + sigmoid(gate["input"][e]) * candidate
            new_hidden[e] = sigmoid(gate["output"][e]) * np.tanh(new_cell[e])
        hidden, cell = new_hidden, new_cell
        rows.append(hidden)
    return np.stack(rows), hidden, cell


def qrnn_layer(inputs: ndarray, cell: ndarray, past: ndarray, layer: dict) -> tuple[ndarray, ndarray, ndarray]:
    """A QRNN with fo-pooling (Bradbury et al. 2016): h of all L tokens (L, W), c (W,) and inputs after the last.

    Args:
        inputs: (L, d); cell: c (W,) and past: the inputs (window - 1, d) before the first token.
        layer: for each of "candidate", "forget" and "output": (W (window, d, W), the oldest input first, b (W,)).
    """
    window = len(past) + 1
    extended = _concatenate(past, inputs)
    rows = []
    for t in range(len(inputs)):
        gate = {}
        for name, (weight, bias) in layer.items():
            gate[name] = np.array(bias)
            for n in range(window):
                gate[name] = gate[name] + extended[t + n] @ weight[n]
        new_cell, row = np.zeros(len(cell)), np.zeros(len(cell))
        for e in range(len(cell)):
            keep = sigmoid(gate["forget"][e])
            new_cell[e] = keep * cell[e] + (1 - keep) * np.tanh(gate["candidate"][e])
            row[e] = sigmoid(gate["output"][e]) * new_cell[e]
        cell = new_cell
        rows.append(row)
    return np.stack(rows), cell, extended[len(inputs) :]


def embed(token: int, weights: dict) -> ndarray:
    """The input of the first layer, (d,): the token's row, projected to model width, times sqrt(d)."""
    first = 0
    for table, projection in _embedding_bands(weights):
        if first <= token < first + len(table):
            vector = table[token - first]
            if projection is not None:
                vector = vector @ projection
            return vector * math.sqrt(len(vector))
        first += len(table)
    raise ValueError(f"no band holds token {token}")


def token_log_probs(hidden: ndarray, weights: dict) -> ndarray:
    """Log-probabilities (V,) after one position (d,): the head's ids and one cluster per tail share a softmax.

    A tail's token has the logarithm of P(its cluster) P(token | its band); cluster c stands for tail c, in order.
    """
    head, *tails = _softmax_bands(weights)
    logits = list(_band_logits(hidden, head))
    if tails:
        _, projection, _ = head
        projected = hidden if projection is None else hidden @ projection
        cluster_weight, cluster_bias = weights["clusters"]
        for c in range(len(tails)):
            logits.append(_dot(projected, cluster_weight[:, c]) + cluster_bias[c])
    shared = log_softmax(np.array(logits))
    ids = len(head[0])
    log_probs = list(shared[:ids])
    for c, band in enumerate(tails):
        for within in log_softmax(_band_logits(hidden, band)):
            log_probs.append(shared[ids + c] + within)
    return np.array(log_probs)


def first_memory(weights: dict, *, zeros: int = 0) -> list[ndarray]:
    """N memories of no rows, (0, d), or of M zero vectors, (M, d): what the first segment sees."""
    return [np.zeros((zeros, len(embed(0, weights)))) for _ in weights["layers"]]


def update_memory(hidden: ndarray, memory: ndarray, *, mem_len: int) -> ndarray:
    """The last mem_len rows, or as many as there are, of [memory o hidden] (3.2)."""
    extended = _concatenate(memory, hidden)
    return extended[max(0, len(extended) - mem_len) :]


def forward(
    tokens: list[int],
    memory: list[ndarray],
    weights: dict,
    *,
    mem_len: int,
    norm: str = "post",
    norm_type: str = "layer",
    norm_eps: float = LAYER_NORM_EPS,
    **options: Any,
) -> tuple[ndarray, list[ndarray]]:
    """Log-probabilities (L, V) of what follows each token of one segment, and the memory for the next segment (3.3).

    Args:
        tokens: L token ids.
        memory: one (M, d) per layer, the raw inputs of that layer at the M tokens before this segment; M <= mem_len.
        options: the encoding (`position`), `max_distance` and `key_limit`.
    """
    hidden = np.stack([embed(token, weights) for token in tokens])
    new_memory = []
    for n in range(len(weights["layers"])):
        layer, layer_input = layer_weights(weights, n), hidden
        hidden = attention_layer(hidden, memory[n], layer, norm=norm, norm_type=norm_type, norm_eps=norm_eps, **options)
        new_memory.append(update_memory(layer_input, memory[n], mem_len=mem_len))
    if norm == "pre":
        hidden = normed(hidden, weights["final_norm"], norm_type=norm_type, eps=norm_eps)
    return np.stack([token_log_probs(row, weights) for row in hidden]), new_memory


def forward_segments(
    segments: list[list[int]], weights: dict, *, mem_len: int, memory_start: str = "empty", **options: Any
) -> tuple[list[ndarray], list[ndarray]]:
    """One (L, V) of log-probabilities per segment, in reading order from the first memory, and the last memory (3.2).

    Lengths may differ. memory_start="zeros" begins with M zero vectors that are attended to; `how` is `forward`'s. A
    derivative of this function also travels through the memory, which the model's gradient must not (SG):
    differentiate `forward` with its memory held fixed instead.
    """
    memory = first_memory(weights, zeros={"empty": 0, "zeros": mem_len}[memory_start])
    log_probs = []
    for tokens in segments:
        segment_log_probs, memory = forward(tokens, memory, weights, mem_len=mem_len, **options)
        log_probs.append(segment_log_probs)
    return log_probs, memory


def compressed(rows: ndarray, layer: dict, *, rate: int, compression: str) -> ndarray:
    """One row for every `rate` rows of (n * rate, d): their convolution, mean or maximum (Rae et al. 2019)."""
    slots = []
    for first in range(0, len(rows), rate):
        group = rows[first : first + rate]
        if compression == "convolution":
            w, b = layer["compression"]
            d = len(b)
            slot = np.array(b, dtype=_kind(group, w, b))
            for i in range(rate):
                slot = slot + group[i] @ w[i * d : (i + 1) * d]
        elif compression == "mean":
            slot = sum(group) / rate
        else:
            slot = np.array([max((row[e] for row in group), key=lambda x: x.real) for e in range(rows.shape[1])])
        slots.append(slot)
    return np.array(slots).reshape(len(slots), rows.shape[1])


def compress_memory(
    hidden: ndarray,
    memory: ndarray,
    slots: ndarray,
    layer: dict,
    *,
    mem_len: int,
    compressed_len: int,
    rate: int,
    compression: str,
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Memory and slots after a segment; then the rows that left the memory, and the slots made of them.

    The oldest rows of [memory o hidden] leave, `rate` at a time, until fewer than mem_len + rate are left.
    """
    extended = _concatenate(memory, hidden)
    count = 0
    while len(extended) - count - rate >= mem_len:
        count += rate
    leaving = extended[:count]
    made = compressed(leaving, layer, rate=rate, compression=compression)
    slots = _concatenate(slots, made) if count else slots
    return extended[count:], slots[max(0, len(slots) - compressed_len) :], leaving, made


def content_attention(hidden: ndarray, context: ndarray, layer: dict) -> ndarray:
    """softmax(q k / sqrt(D)) v over all rows of `context`, by content only: (H, L, D), before w_o."""
    H, D = _heads(layer)
    result = np.zeros(
        (H, len(hidden), D), dtype=_kind(hidden, context, layer["w_q"], layer["w_k_content"], layer["w_v"])
    )
    for h in range(H):
        for i in range(len(hidden)):
            query = _projected(hidden[i], layer, "q", h, D)
            logits = [_dot(query, _projected(row, layer, "k", h, D)) / math.sqrt(D) for row in context]
            for row, log_share in zip(context, log_softmax(np.array(logits)), strict=True):
                result[h, i] += np.exp(log_share) * (row @ _head(layer["w_v"], h, D))
    return result


def reconstruction_loss(hidden: ndarray, leaving: ndarray, made: ndarray, layer: dict, **how: Any) -> complex:
    """The attention-reconstruction loss of one layer (Rae et al. 2019): the mean square over heads, queries and D.

    Args:
        hidden: inputs of the layer in the segment; with `how["norm"]` "pre" and "pre_released" all are normalized.
        leaving: the rows that leave the memory.
        made: the slots in their place.
        how: norm, norm_type and norm_eps, as for `attention_layer`.
    """
    layer = layer | {"eps": how["norm_eps"]}
    if how["norm"] != "post":
        of_norm = {"norm_type": how["norm_type"], "eps": how["norm_eps"]}
        hidden, leaving, made = (normed(x, layer["attention_norm"], **of_norm) for x in (hidden, leaving, made))
    error = content_attention(hidden, made, layer) - content_attention(hidden, leaving, layer)
    return sum(entry**2 for entry in error.flatten()) / error.size


class Compressed(NamedTuple):
    """A segment read with compressed memory: log-probabilities (L, V), the memories, the loss of each layer."""

    log_probs: ndarray
    memory: list[ndarray]
    slots: list[ndarray]
    losses: list[complex]


def forward_compressive(
    tokens: list[int],
    memory: list[ndarray],
    slots: list[ndarray],
    weights: dict,
    *,
    lengths: dict[str, Any],
    norm: str = "post",
    norm_type: str = "layer",
    norm_eps: float = LAYER_NORM_EPS,
    **options: Any,
) -> Compressed:
    """A segment after [slots o memory] in each layer (Rae et al. 2019), and what both are after it.

    Args:
        tokens: L token ids.
        memory: one (M, d) per layer.
        slots: one (C, d) per layer; to the attention they are positions before the memory.
        weights: see above.
        lengths: mem_len, compressed_len, rate and compression, those of `compress_memory`.
        norm: as for `attention_layer`; so are norm_type and norm_eps.
        options: those of `attention`.
    """
    how: dict[str, Any] = {"norm": norm, "norm_type": norm_type, "norm_eps": norm_eps}
    hidden = np.stack([embed(token, weights) for token in tokens])
    new_memory, new_slots, losses = [], [], []
    for n in range(len(weights["layers"])):
        layer, layer_input = layer_weights(weights, n), hidden
        hidden = attention_layer(hidden, _concatenate(slots[n], memory[n]), layer, **how, **options)
        after = compress_memory(layer_input, memory[n], slots[n], layer, **lengths)
        new_memory.append(after[0])
        new_slots.append(after[1])
        losses.append(reconstruction_loss(layer_input, after[2], after[3], layer, **how) if len(after[2]) else 0.0)
    if norm == "pre":
        hidden = normed(hidden, weights["final_norm"], norm_type=norm_type, eps=norm_eps)
    return Compressed(np.stack([token_log_probs(row, weights) for row in hidden]), new_memory, new_slots, losses)


def forward_with_tokens_of_memory(
    tokens: list[int],
    state: ndarray,
    weights: dict,
    *,
    norm: str = "post",
    norm_type: str = "layer",
    norm_eps: float = LAYER_NORM_EPS,
    **options: Any,
) -> tuple[ndarray, ndarray]:
    """Log-probabilities (L, V) of a segment read as [state o segment o state], and the next state.

    This is the Recurrent Memory Transformer (Bulatov et al. 2022).

    Args:
        tokens: L token ids.
        state: (n, d), of the segment before; weights["first_state"] before the first one.
        weights: see above.
        norm: as for `attention_layer`; so are norm_type and norm_eps.
        options: those of `attention`.
    """
    n, L = len(state), len(tokens)
    hidden = _concatenate(_concatenate(state, np.stack([embed(token, weights) for token in tokens])), state)
    how: dict[str, Any] = {"norm": norm, "norm_type": norm_type, "norm_eps": norm_eps}
    for number in range(len(weights["layers"])):
        hidden = attention_layer(hidden, hidden[:0], layer_weights(weights, number), **how, **options)
    if norm == "pre":
        hidden = normed(hidden, weights["final_norm"], norm_type=norm_type, eps=norm_eps)
    return np.stack([token_log_probs(row, weights) for row in hidden[n : n + L]]), hidden[n + L :]


def log_softmax(logits: ndarray) -> ndarray:
    """The logarithm of exp(logits) / sum exp(logits) over the one axis of `logits`."""
    largest = max(logit.real for logit in logits)
    log_total = largest + np.log(sum(np.exp(logit - largest) for logit in logits))
    return np.array([logit - log_total for logit in logits])


def cross_entropy_nats(log_probs: ndarray, targets: list[int]) -> ndarray:
    """The loss of each token in nats and token order, (L,), from log-probabilities (L, V)."""
    return np.array([-log_probs[i][target] for i, target in enumerate(targets)])


def complex_step_gradient(function: Callable[[ndarray], complex], array: ndarray, index: tuple[int, ...]) -> float:
    """The derivative of function(array) along array[index], to the last digits: f(x + ih) = f(x) + ih f'(x) - ...

    No difference is taken, so the step can be so small that its square is nothing. `array` itself stays as it is.
    """
    stepped = np.array(array, dtype=np.complex128)
    stepped[index] += 1j * COMPLEX_STEP
    return function(stepped).imag / COMPLEX_STEP


def _embedding_bands(weights: dict) -> list[tuple[ndarray, ndarray | None]]:
    bands = weights["embedding"]
    return bands if isinstance(bands, list) else [(_numbers(bands), None)]


def _softmax_bands(weights: dict) -> list[tuple[ndarray, ndarray | None, ndarray]]:
    if "softmax" in weights:
        return weights["softmax"]
    return [(_numbers(weights["embedding"]), None, weights["softmax_bias"])]


def _band_logits(hidden: ndarray, band: tuple[ndarray, ndarray | None, ndarray]) -> ndarray:
    table, projection, bias = band
    projected = hidden if projection is None else hidden @ projection
    return np.array([_dot(row, projected) + bias[n] for n, row in enumerate(table)])


def _numbers(array: ndarray) -> ndarray:
    """Float64, or complex128 where it is complex."""
    return np.asarray(array, dtype=_kind(array))


def _kind(*arrays: ndarray) -> np.dtype:
    return np.result_type(np.float64, *arrays)


def _kind_of_scores(extended: ndarray, layer: dict) -> np.dtype:
    return _kind(extended, *(layer[name] for name in (*SCORE_WEIGHTS, "q_norm", "k_norm") if name in layer))


def _projected(row: ndarray, layer: dict, which: str, h: int, head_width: int) -> ndarray:
    """The query ("q") or key ("k") of head h, (D,), normalized by "q_norm" or "k_norm" where the layer has it."""
    projected = row @ _head(layer["w_q" if which == "q" else "w_k_content"], h, head_width)
    gain = layer.get(f"{which}_norm")
    if gain is None:
        return projected
    return rms_norm(projected[None], gain, eps=layer.get("eps", LAYER_NORM_EPS))[0]


def _concatenate(memory: ndarray, hidden: ndarray) -> ndarray:
    return np.concatenate([_numbers(memory), _numbers(hidden)])


def _head(matrix: ndarray, h: int, head_width: int) -> ndarray:
    return matrix[:, h * head_width : (h + 1) * head_width]


def _heads(layer: dict) -> tuple[int, int]:
    """H and D."""
    H = len(layer["content_bias"]) if "content_bias" in layer else layer["n_heads"]
    return H, layer["w_q"].shape[1] // H


def _dot(left: ndarray, right: ndarray) -> complex:
    return sum(left[e] * right[e] for e in range(len(left)))
