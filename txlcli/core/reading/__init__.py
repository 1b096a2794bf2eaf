"""Inference: read text with a memory, score it, sample from it."""
