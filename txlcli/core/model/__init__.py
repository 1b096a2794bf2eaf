"""The models: what they compute, as the paper defines it."""
