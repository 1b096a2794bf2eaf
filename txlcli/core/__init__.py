"""The PyTorch core: it returns or yields values, never prints, never parses."""
