"""Recipes and settings: every key with its default, unit and range."""
