"""Imports weights of other systems as runs, and exports runs."""
