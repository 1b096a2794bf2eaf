"""Relative effective context length of a group of runs (Appendix C)."""
