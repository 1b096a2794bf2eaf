"""Faster implementations of the functions that core/model defines."""
