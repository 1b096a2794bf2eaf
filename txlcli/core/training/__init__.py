"""Optimization: the loop, its steps, their state."""
