"""Inputs of attention in small, unequal sizes, and calls of its implementations.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key.
"""

import dataclasses
import math

import numpy as np
import torch

from tests import reference
from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.score_buffer import CACHE_BYTES, MIN_QUERIES, ScoreBuffers
from txlcli.core.model import backends

B, L, M, H, D, WIDTH = 2, 5, 7, 3, 11, 14
SHAPES = [(1, 1), (1, 7), (2, 3), (5, 5), (5, 12)]
"""Pairs of L and K."""

# A tiling is the bytes of scores in one tile and the smallest number of queries in a block, see `workspace_of`.
DEFAULT = (CACHE_BYTES, MIN_QUERIES)
TWO_SEQUENCES, ONE_SEQUENCE = (2 * H * L * (M + 2 * L - 1) * 8, 64), (1, 64)
UNEQUAL_BLOCKS, SINGLE_QUERIES = (1, 2), (1, 1)  # blocks of three queries and of two; of one
TILINGS = [DEFAULT, ONE_SEQUENCE, UNEQUAL_BLOCKS, SINGLE_QUERIES]
ARGUMENTS = ("query", "key", "value", "content_bias", "position_bias", "position_key")


def draw(*shape, seed=3, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def workspace_of(tiling):
    """A workspace whose tiles hold at most so many bytes, and whose blocks at least so many queries."""
    cache_bytes, min_queries = tiling
    return ScoreBuffers(cache_bytes=cache_bytes, min_queries=min_queries)


def draw_inputs(*, batch_size=B, seg_len=L, key_len=M + L, reach=None, heads=H, width=D):
    """The tensors of ARGUMENTS, each with a gradient."""
    query, bias = (batch_size, heads, seg_len, width), (heads, width)
    key = (batch_size, heads, key_len, width)
    shapes = (query, key, key, bias, bias, (heads, reach or key_len, width))
    return [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def call(function, *, query, key, value, dropout=0.0, **terms):
    """Call an implementation of attention with the fields of its ScoreTerms as arguments."""
    return function(query, key, value, ScoreTerms(**terms), dropout=dropout)


def attend(*tensors, reach, backend="auto", workspace=None, recompute=False, dropout=0.0):
    """The output of a backend for the tensors of ARGUMENTS."""
    chosen = dataclasses.replace(backends.FAST, attention=backend, recompute=recompute)
    function = backends.make_backend(chosen, workspace or ScoreBuffers()).attend
    return call(function, **dict(zip(ARGUMENTS, tensors, strict=True)), reach=reach, dropout=dropout)


def attend_all(*inputs, **options):
    """`attend` to every distance that has a position key."""
    return attend(*inputs, reach=inputs[-1].shape[1], **options)


def laid_out(tensors, reach):
    """The tensors of ARGUMENTS in the layout of the kernels."""
    query, key, value, content_bias, position_bias, position_key = tensors
    terms = ScoreTerms(reach, position_key, content_bias, position_bias)
    return AttentionInputs.of(query, key, value, terms)


def shifted(by_distance, seg_len, key_len):
    """Scores (rows, L, n) of the distances n - 1 .. 0 by key (rows, L, K), by definition; -inf for keys not seen."""
    reach = by_distance.shape[-1]
    unseen = np.full((seg_len, key_len - reach), -math.inf)
    rows = [
        reference.relative_shift_by_definition(np.concatenate([unseen, row], axis=1)) for row in by_distance.numpy()
    ]
    return np.where(np.isnan(rows), -math.inf, rows)
