"""Tells Triton which strides are multiples of 8, so that a thread accesses 16 bytes of 16-bit numbers at once.

Triton finds out by itself if an argument of a kernel is a multiple of 16. Importing this module needs Triton.
"""

import math

import triton
import triton.language as tl  # Triton's interpreter looks for it in the module of each function

ALIGNMENT = 8
"""Numbers of 16 bits in the widest access of a GPU, 16 bytes."""


def alignment_of(*strides: int) -> int:
    """Return the ALIGN of a kernel for these strides: 8 if all are multiples of it, else what divides them."""
    return math.gcd(ALIGNMENT, *strides)


@triton.jit
def aligned(count, ALIGN: tl.constexpr):
    """Round down to a multiple of ALIGN; a stride is one already. Triton knows of a product what divides it."""
    return count // ALIGN * ALIGN
