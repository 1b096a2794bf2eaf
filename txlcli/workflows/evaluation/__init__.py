"""Evaluate a run on a text, in one or more settings."""
