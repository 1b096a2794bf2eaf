"""Checks that several processes run together."""
