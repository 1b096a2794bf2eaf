"""Tests that only a GPU can run."""
