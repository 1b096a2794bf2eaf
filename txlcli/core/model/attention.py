"""Attention with relative positions: section 3.3 of the paper, from top to bottom.

The score of query i for key j, at distance i - j, is the sum of four terms, divided by sqrt(D):

    (a) q_i . k_j                content
    (b) q_i . W_kR R_(i-j)       content and distance
    (c) u . k_j                  global content bias
    (d) v . W_kR R_(i-j)         global distance bias

with q = W_q h, k = W_kE h, so that (a) + (c) = (q + u) . k and (b) + (d) = (q + v) . W_kR R. Queries come from the
segment, keys and values from memory and segment. `attend` computes this, one operation per step: it is the definition.
u, v and W_kR belong to `encodings.RelativeEncoding`; the other projections to `Attention`.

The modules `core.kernels.attention_*` have functions of the same signature (`core.backend.Attend`) that are faster: by
tiles in distance space, by kernels of Triton for CUDA, and for single tokens of a CUDA graph.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, d model width, n distances scored.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.core.backend import Attend, ScoreTerms, nearest_rows


def distance_encoding(distance: Tensor, width: int) -> Tensor:
    """Return the sinusoids R of section 3.3: all sines, then all cosines.

    Args:
        distance: (n,) distances, or positions for an encoding of positions.
        width: d, even.
    Returns:
        (n, d) in float64, or float32 on a device without it: a float32 angle is off by 1e-4 at distance 2000.
    """
    device = torch.device("cpu") if distance.device.type == "mps" else distance.device  # mps has no float64
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    angle = distance.to(device, torch.float64)[:, None] * frequency  # (n, d/2)
    encoding = torch.cat([angle.sin(), angle.cos()], dim=-1)
    return encoding if device == distance.device else encoding.float().to(distance.device)


def relative_shift(score: Tensor) -> Tensor:
    """Shift row i left by L - 1 - i, so that column j scores distance M + i - j (Appendix B).

    Args:
        score: (..., L, K), column c of every row scores distance K - 1 - c.
    Returns:
        (..., L, K). Keys of the future (j > M + i) hold numbers of other rows and must be masked.
    """
    *outer, seg_len, key_len = score.shape
    padded = F.pad(score, (1, 0))  # (..., L, K + 1)
    return padded.reshape(*outer, key_len + 1, seg_len)[..., 1:, :].reshape(score.shape)


def visible_keys(seg_len: int, key_len: int, reach: int, device: torch.device) -> Tensor:
    """Return a mask (L, K), True where query i may see key j: at a distance of 0 to reach - 1."""
    query = torch.arange(key_len - seg_len, key_len, device=device)[:, None]
    distance = query - torch.arange(key_len, device=device)  # (L, K)
    return (distance >= 0) & (distance < reach)


def attend(query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
    """Weigh values by the softmax of the four terms, over the keys that each query may see (section 3.3).

    Args:
        query: (B, H, L, D).
        key: (B, H, K, D or wider, then ending in zeros); the last L keys are the positions of the queries.
        value: (B, H, K, like `key`).
        terms: position key, u, v and the number of distances that are seen.
        dropout: probability of dropping an attention weight.
    Returns:
        (B, H, L, D), in the dtype of `value`.
    """
    seg_len = query.shape[2]
    key_len = key.shape[2]
    width = query.shape[3]
    key = key[..., :width]
    value = value[..., :width]
    scale = width**-0.5
    with torch.autocast(query.device.type, enabled=False):
        content_score = _plus(query, terms.content_bias) @ key.mT  # (a) + (c): (B, H, L, K)
        score = content_score * scale
        if terms.position_key is not None:
            position_key = nearest_rows(terms.position_key, key_len).to(query.dtype)  # (H, K, D)
            position_score = relative_shift(_plus(query, terms.position_bias) @ position_key.mT)  # (b) + (d)
            score = score + position_score * scale
        if terms.distance_bias is not None:
            by_distance = nearest_rows(terms.distance_bias, key_len)[:, None]  # (H, 1, K)
            score = score + relative_shift(by_distance.expand(-1, seg_len, -1)).to(score.dtype)
        masked = ~visible_keys(seg_len, key_len, terms.reach, query.device)
        unseen = terms.unseen(key_len)
        if unseen is not None:
            masked = masked | unseen
        score = score.masked_fill(masked, -math.inf)
        probability = torch.softmax(score, dim=-1, dtype=torch.promote_types(score.dtype, torch.float32))
        probability = F.dropout(probability, dropout).to(value.dtype)
        return probability @ value


def _plus(query: Tensor, bias: Tensor | None) -> Tensor:
    """Add a bias (H, D) to every query (B, H, L, D)."""
    if bias is None:
        return query
    return query + bias.to(query.dtype)[:, None]


def split_heads(projected: Tensor, n_heads: int) -> Tensor:
    """(..., x, H * D) -> (..., H, x, D)."""
    return projected.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


class HeadNorm(nn.RMSNorm):
    """RMSNorm of the queries or keys of each head, with gains (D,) that all heads share."""

    def forward(self, heads: Tensor) -> Tensor:
        """Normalize (B, H, x, D) in float32 at least; return the dtype of the input."""
        dtype = torch.promote_types(heads.dtype, torch.float32)
        return super().forward(heads.to(dtype)).to(heads.dtype)


class Attention(nn.Module):
    """The multi-head attention sublayer, without its residual and norm (section 3.3).

    Keys are projected apart from queries, so that a decoder can keep projected keys and values. Everything that depends
    on positions comes from outside, as ScoreTerms.

    Args:
        d_model: d.
        n_heads: H.
        d_head: D.
        dropout: probability of dropping an attention weight in training.
        linear: class of the four matrices, which have no biases.
        qk_norm_eps: constant of the RMSNorm of queries and keys; None does not normalize them, as in the paper.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        d_head: int,
        dropout: float = 0.0,
        linear: type[nn.Linear] = nn.Linear,
        qk_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_head
        self.dropout = dropout
        width = n_heads * d_head
        self.w_q = linear(d_model, width, bias=False)
        self.w_k_content = linear(d_model, width, bias=False)
        self.w_v = linear(d_model, width, bias=False)
        self.w_o = linear(width, d_model, bias=False)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if qk_norm_eps is not None:
            self.q_norm = HeadNorm(d_head, qk_norm_eps)
            self.k_norm = HeadNorm(d_head, qk_norm_eps)
        self.project_all: Callable[[Tensor], Tensor] | None = None
        """Multiplies by W_q, W_kE and W_v side by side, (B, L, d) -> (B, L, 3 * H * D), for reading."""

    def project(self, segment: Tensor, *, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, L, D), from position `first` on, keys and values likewise, of the segment (B, L, d)."""
        if self.project_all is None or first:
            query = self.project_queries(segment[:, first:])
            key, value = self.project_keys_values(segment)
            return query, key, value
        projected = self.project_all(segment).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.n_heads) for part in projected)
        return self.q_norm(query), self.k_norm(key), value

    def project_queries(self, segment: Tensor) -> Tensor:
        """Return W_q h, (B, H, L, D), normalized if the model does so, of the segment (B, L, d)."""
        query: Tensor = self.q_norm(split_heads(self.w_q(segment), self.n_heads))
        return query

    def project_keys_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return W_kE h, normalized likewise, and W_v h, (B, H, K, D) each, of the context (B, K, d)."""
        key = split_heads(self.w_k_content(context), self.n_heads)
        value = split_heads(self.w_v(context), self.n_heads)
        return self.k_norm(key), value

    def project_distances(self, terms: ScoreTerms, dropout: Callable[[Tensor], Tensor]) -> ScoreTerms:
        """Return the position keys W_k R, and W_q R_0 as u and v, if the terms have distances to project.

        `dropout` is that of queries and keys.
        """
        if terms.distances is None:
            return terms
        keys = dropout(F.linear(terms.distances, self.w_k_content.weight))  # (m, H * D)
        query = dropout(F.linear(terms.distances[-1:], self.w_q.weight))
        key = split_heads(keys, self.n_heads)
        bias = split_heads(query, self.n_heads)[:, 0]  # (H, D)
        return dataclasses.replace(terms, distances=None, position_key=key, content_bias=bias, position_bias=bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, attend: Attend = attend) -> Tensor:
        """Attend from queries (B, H, L, D) to keys and values (B, H, K, D); return (B, L, d).

        Args:
            query: from `project_queries`, of the segment.
            key: from `project_keys_values`, of memory and segment.
            value: likewise.
            terms: the other terms of the score.
            attend: the definition above, or a faster implementation.
        """
        attended = attend(query, key, value, terms, dropout=self.active_dropout)
        output: Tensor = self.w_o(attended.transpose(1, 2).flatten(2))
        return output

    @property
    def active_dropout(self) -> float:
        """The rate of dropping attention weights in training, 0 in evaluation."""
        return self.dropout if self.training else 0.0
