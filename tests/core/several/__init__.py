"""Checks that several processes carry out together."""
