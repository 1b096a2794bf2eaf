"""Transformer-XL (Dai et al. 2019) as a command-line toolkit."""

__version__ = "0.1.0"
