"""Sizes and terms on which Triton's kernels are compared with the definition.

Axes: L segment, K keys, n distances scored, D head width.
"""

RELATIVE = ("content_bias", "position_bias", "position_key")
TERMS = {
    "all terms": RELATIVE,
    "no positions": (),
    "content bias": ("content_bias",),
    "Shaw": ("position_key",),
    "distance bias": ("distance_bias",),
    "distance bias, all terms": (*RELATIVE, "distance_bias"),
}
SMALL = {  # L, K, n, D
    "a single key": (1, 1, 1, 16),
    "a single query": (1, 43, 43, 16),
    "no memory": (5, 5, 5, 41),
    "reach below L": (21, 34, 9, 24),
    "reach below K": (21, 75, 50, 64),
    "as far as TF's memory": (16, 33, 18, 96),
}
LARGE = {
    "several tiles": (130, 203, 203, 64),
    "several tiles, reach below K": (130, 203, 150, 41),
    "several tiles, no memory": (130, 130, 130, 128),
    "several tiles, reach below L": (130, 171, 70, 16),
}
