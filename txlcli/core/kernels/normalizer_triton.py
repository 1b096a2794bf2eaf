"""Row kernels of the softmax normalizer for CUDA: 12 bytes per 16-bit logit instead of 58.

The product writes a block of logits (2 bytes each). One kernel reads them once for the log normalizers (2). In the
backward pass another kernel overwrites them by their gradients (4), which two products read (4); it also adds up the
gradient of the bias, in parts of TOKENS tokens, without atomic additions.

Importing this module needs Triton.

Axes: t tokens and c ids of a block.
"""

import torch
import triton
from torch import Tensor

from txlcli.core.kernels import normalizer_triton_kernels as kernels

IDS_OF_ROW, TOKENS, IDS_OF_TILE = 4096, 64, 1024
"""Ids that a program reads at once for the normalizers; tokens and ids of a program's part of the gradient."""


class TritonRows:
    """`normalizer.RowOperations` by Triton; sums are in float32."""

    spends_logits = True

    def accumulate(self, logits: Tensor, chosen: Tensor, ids: slice, total: Tensor, logit: Tensor) -> None:
        if logits.numel():
            kernels.accumulate_kernel[len(logits),](
                logits, total, logit, chosen, logits.shape[1], ids.start, logits.stride(0), IDS=IDS_OF_ROW, num_warps=8
            )

    def gradient(
        self, logits: Tensor, chosen: Tensor, ids: slice, total: Tensor, grad_total: Tensor, grad_logit: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Overwrite logits (t, c) by their gradients; return them and their sums over tokens (c,)."""
        tokens, count = logits.shape
        parts = triton.cdiv(tokens, TOKENS)
        sums = torch.zeros(parts, count, dtype=torch.float32, device=logits.device)
        if logits.numel():
            kernels.gradient_kernel[triton.cdiv(count, IDS_OF_TILE), parts](
                logits, total, grad_total.contiguous(), grad_logit.contiguous(), chosen, sums, tokens, count, ids.start,
                logits.stride(0), TOKENS=TOKENS, IDS=IDS_OF_TILE, num_warps=4,
            )  # fmt: skip
        return logits, sums.sum(dim=0)
