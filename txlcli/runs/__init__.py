"""Runs: their directories, their history, and how they are loaded."""
