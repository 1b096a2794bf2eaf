"""Runs: their folders, their history, and how they are loaded."""
