"""The paper's numbers, as data."""

SLOWDOWN_BY_ATTN_LEN = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Table 9: how many times slower the vanilla model predicts a token than Transformer-XL, by attention length."""
